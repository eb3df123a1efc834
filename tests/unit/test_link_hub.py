"""How often frontends are looked after, and what it costs a scheduler while all is calm."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from tests.unit.link_pair import Pair
from tpc_server.boundary import wire
from tpc_server.link import hub as hub_module
from tpc_server.link.hub import Hub
from tpc_server.link.messages import Channel

pytestmark = pytest.mark.timeout(30)


class Calm:
    """A hub with one link, whose processes never want anything; counts the whole looks."""

    def __init__(self, stall_s: float = 5.0) -> None:
        self.pair = Pair(stall_s=stall_s)
        self.tended = 0
        self.calm = True
        self.hub = Hub(self._tend)
        self.hub.add(self.pair.link)
        self.pair.accept()
        self.pair.turn()
        self.settle()

    def _tend(self) -> bool:
        self.tended += 1
        return self.calm

    def settle(self) -> None:
        """Until whole looks are over."""
        for _ in range(4):
            self.hub.recv(64)
        self.tended = 0
        self.hub.recv(64)
        assert not self.tended

    def looked(self) -> int:
        """Whole looks of one more call."""
        self.tended = 0
        self.hub.recv(64)
        return self.tended


@pytest.fixture
def due(monkeypatch):
    """It is always time for a look."""
    monkeypatch.setattr(hub_module, "_TEND_NS", 0)


@pytest.fixture
def made(due):
    calm = Calm()
    yield calm
    if not calm.pair.link.gone:
        calm.hub.bury(calm.pair.link)
    calm.pair.far.close()
    calm.pair.mesh.close()


def test_while_all_is_calm_a_look_is_short(made):
    for _ in range(100):
        assert not made.looked()
        made.pair.turn()
    assert not made.pair.link.gone


def test_what_is_under_way_is_seen_to_each_time(made):
    made.calm = False
    made.hub.stir()
    assert [made.looked() for _ in range(5)] == [1] * 5
    made.calm = True
    made.settle()


@pytest.mark.parametrize("how", ["says", "heard elsewhere", "hangs up", "gone", "comes", "unsent"])
def test_what_happens_ends_the_calm(made, how):
    link, far = made.pair.link, made.pair.far
    if how == "says":
        assert far.send({"ready": True})
    elif how == "heard elsewhere":  # by a push that waits: nothing is left to read
        assert far.send({"reload": True})
        link.hear()
    elif how == "hangs up":
        far.close()
    elif how == "gone":
        link.gone = True
    elif how == "comes":
        ours, theirs = socket.socketpair()
        made.hub.expect(Channel(ours))
        theirs.close()
    else:
        made.calm = False
        made.hub.stir()
        made.looked()
        made.calm = True
        while not link.channel.unsent:
            link.channel.post({"x": "x" * 10_000})
    assert made.looked() == 1
    if how == "says":
        assert link.ready
    elif how == "unsent":  # for as long as it is
        assert [made.looked() for _ in range(3)] == [1] * 3
        while link.channel.unsent:
            far.poll()
            made.looked()
        made.settle()


def test_one_that_does_not_turn_is_given_up_by_short_looks(due):
    made = Calm(stall_s=0.05)
    deadline = time.monotonic() + 20
    while not made.tended:
        made.hub.recv(64)
        assert time.monotonic() < deadline
    assert made.pair.link.failure == "its cores do not turn" and made.pair.link.gone
    made.hub.bury(made.pair.link)
    made.pair.far.close()
    made.pair.mesh.close()


def test_an_abort_that_there_was_no_room_for_is_tried_again(made):
    link = made.pair.link
    made.pair.begin()
    made.settle()
    made.pair.fill()
    link.tell(b"abort")
    assert [made.looked() for _ in range(3)] == [1] * 3
    got: list[Any] = []
    while not any(kind == wire.FOREIGN_ABORT for kind, *_ in got):
        got += made.pair.frames[0].drain(64)
        made.looked()
    made.settle()


def test_who_asks_on_another_socket_is_heard(made):
    near, far = socket.socketpair()

    class Extra:
        served = 0

        def fileno(self) -> int:
            return near.fileno()

        def serve(self) -> None:
            Extra.served += len(near.recv(10))

    made.hub.extra.append(Extra())
    made.hub.stir()
    made.settle()
    far.send(b"x")
    assert made.looked() == 1
    assert made.hub.wait(1) is False and Extra.served == 1
    made.settle()
    near.close()
    far.close()


def test_messages_come_before_the_look_once(made):
    made.calm = False
    made.hub.stir()
    assert made.looked() == 1
    for number in range(3):
        made.pair.request(b"%d" % number)
        made.tended = 0
        assert len(made.hub.recv(64)) == 1
        # However many come: every other call looks.
        assert made.tended == number % 2
    assert made.looked() == 1


def test_aborts_for_other_frontends_reach_them_every_time():
    one, other = Pair(), Pair()
    hub = Hub(lambda: None)
    for pair in (one, other):
        hub.add(pair.link)
        pair.begin()
    for name in (b"a", b"b", b"c"):
        assert one.requests.post(wire.SHARED_ABORT, b"", (name,))
        assert hub.recv(64) == []
        told = [bytes(text) for kind, _, text in other.frames[0].drain(64)
                if kind == wire.FOREIGN_ABORT]  # fmt: skip
        assert told == [name] and not one.frames[0].drain(64)
    for pair in (one, other):
        hub.bury(pair.link)
        pair.far.close()
        pair.mesh.close()


def test_what_begins_within_a_look_ends_the_calm_too(made):
    """As where an operator's word is heard, or a signal's handler asks for a reload."""
    ours, theirs = socket.socketpair()
    made.calm = False
    made.hub.stir()
    tend = made.hub._tend

    def begins() -> bool:
        made.hub._tend = tend
        made.hub.expect(Channel(ours))
        tend()
        return True

    made.hub._tend = begins
    assert [made.looked() for _ in range(3)] == [1] * 3
    made.calm = True
    made.settle()
    theirs.close()
    assert made.looked() == 1
    made.hub.forget(made.hub.coming[0])
    ours.close()
