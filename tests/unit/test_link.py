"""The scheduler's end of one frontend process: what it remembers, what it makes of nonsense."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.link_pair import Pair
from tests.unit.test_port import plan_of
from tpc_server.boundary import codec, port, wire
from tpc_server.eventfd import EventFd
from tpc_server.link import link as link_module
from tpc_server.link import messages as link_messages
from tpc_server.link.attached import AttachedMesh, describe
from tpc_server.link.hub import Hub
from tpc_server.link.link import Link, attached
from tpc_server.link.messages import Channel
from tpc_server.mesh import SCHEDULER, Ends, Mesh

pytestmark = pytest.mark.timeout(30)
PACK = codec.make_packer()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def both(pair):
    """Two links of one hub, each with a request given out."""
    other = Pair()
    hub = Hub(lambda: None)
    for one in (pair, other):
        hub.add(one.link)
        one.begin()
    yield hub, pair, other
    hub.bury(other.link)
    other.far.close()
    other.mesh.close()


def _left(link: Link) -> int:
    return len(link.aborts())


def test_what_ended_or_was_aborted_is_forgotten(pair):
    for rid in (b"a", b"b", b"c", b"d"):
        pair.request(rid)
    pair.abort(b"b")
    assert len(pair.link.recv(64)) == 5
    header, data = pair.end("a")
    assert pair.link.frame(header, data)
    # A buffer that the scheduler uses again.
    reused = bytearray(pair.end("c")[0])
    pair.link.note(wire.BATCH, b"", wire.frame_parts(memoryview(reused), []))
    reused[:] = bytes(len(reused))
    assert [codec.unpack(one.header)[1] for one in pair.link.aborts()] == ["d"]


def test_dropped_probes_do_not_pile_up(pair):
    """A busy scheduler answers a probe with a sign of life and never with a row of its own."""
    for k in range(100):
        rid = b"HEALTH_CHECK_%d" % k
        pair.request(rid)
        pair.link.recv(64)
        pair.abort(rid)
        pair.link.recv(64)
    assert not _left(pair.link)


def test_ends_are_read_a_few_at_a_time(pair, monkeypatch):
    read: list[int] = []
    unpack = codec.unpack

    def counted(data):
        read.append(1)
        return unpack(data)

    monkeypatch.setattr(codec, "unpack", counted)
    for k in range(600):
        pair.request(b"%d" % k)
        pair.link.recv(64)
        before = len(read)
        header, data = pair.end(str(k))
        pair.link.note(wire.BATCH, b"", wire.frame_parts(header, data))
        assert len(read) - before <= 2
    assert not _left(pair.link)


def test_several_threads_hear_without_losing_a_word(pair):
    """A push that waits for room looks as well, on its own thread."""
    stop = threading.Event()

    def listen() -> None:
        while not stop.is_set():
            pair.link.hear()

    threads = [threading.Thread(target=listen) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3000):
        assert pair.far.send({"ready": True})
    assert pair.far.send({"accepting": True})
    pause = threading.Event()
    while not pair.link.accepting and not pair.link.gone:
        pause.wait(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert pair.link.accepting and not pair.link.gone


def test_who_never_stops_talking_is_not_listened_to_for_ever(pair, monkeypatch):
    monkeypatch.setattr(pair.link.channel, "poll", lambda: {"ready": True})
    pair.link.hear()
    assert pair.link.ready


def test_who_does_not_read_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(link_messages, "_SEND_S", 0.05)
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours)
        assert not channel.send({"config": "x" * (64 << 20)})
        channel.close()


def test_descriptors_that_come_later_are_closed(pair):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert pair.far.send({"ready": True}, [0])
        pair.link.hear()
    assert len(os.listdir("/proc/self/fd")) == before


def _changed(about: dict[str, Any], how: str) -> Any:
    if how == "nothing":
        return None
    if how == "a list":
        return [1]
    if how == "no cores":
        return {**about, "cores": 0}
    if how == "no rings":
        return {**about, "rings": []}
    if how == "rings elsewhere":
        return {**about, "rings": [[*row[:3], 1 << 40, *row[4:]] for row in about["rings"]]}
    if how == "bells elsewhere":
        return {**about, "bells": 1 << 40}
    return {**about, {"cores": "cores", "size": "size"}[how]: 1 << 40}


@pytest.mark.parametrize(
    "how",
    [
        "nothing",
        "a list",
        "no cores",
        "no rings",
        "rings elsewhere",
        "bells elsewhere",
        "cores",
        "size",
    ],
)
def test_nonsense_is_one_error_and_leaves_no_descriptor(how):
    """A guest of another version says what it likes: the scheduler goes on."""
    before = sorted(os.listdir("/proc/self/fd"))
    mesh = Mesh(plan_of("1"), 64, 64, 64)
    ours, theirs = socket.socketpair()
    near, far = Channel(ours), Channel(theirs)
    about, fds = describe(mesh)
    assert far.send({"mesh": _changed(about, how)}, fds)
    message = near.wait(5)
    with pytest.raises(ValueError, match="its rings cannot be used"):
        attached(near, message["mesh"], 5.0)
    near.close()
    far.close()
    mesh.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_ring_that_makes_no_sense_ends_its_link_alone(pair):
    pair.request(b"a")
    assert len(pair.link.recv(64)) == 1
    at, _, _ = pair.mesh.ring((0, SCHEDULER, 0))
    Ends(pair.mesh).words[at >> 3] += 1 << 40
    assert pair.link.recv(64) == []
    assert pair.link.gone and "cannot be read" in pair.link.failure
    assert _left(pair.link) == 1


def test_memory_that_could_be_taken_back_is_refused():
    mesh = Mesh(plan_of("1"), 64, 64, 64)
    about, fds = describe(mesh)
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, mesh.size)
    with pytest.raises(ValueError, match="taken from under us"):
        AttachedMesh(about, [loose, *[os.dup(fd) for fd in fds[1:]]])
    mesh.close()


def test_received_descriptors_end_with_the_process(pair):
    assert not os.get_inheritable(pair.link.mesh.region.fd)
    assert not any(os.get_inheritable(event.fileno()) for event in pair.link.mesh.events)


def test_a_peer_is_gone_with_its_process(pair):
    """Another one has inherited its end of the socket, and lives."""
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    line = '{\\"failed\\": \\"last words\\"}'
    program = f'exec 9<&0; cat <&9 >/dev/null & echo "{line}" >&{fd}; exit 0'
    process = subprocess.Popen(["bash", "-c", program], stdin=subprocess.PIPE, pass_fds=[fd])
    theirs.close()
    before = len(os.listdir("/proc/self/fd"))
    channel = Channel(ours)
    channel.watch(process.pid)
    assert len(channel.filenos()) == 2
    assert channel.wait(20) == {"failed": "last words"}
    with pytest.raises(link_messages.LinkClosed, match="process at the other end has ended"):
        channel.wait(20)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):  # the socket alone would not have told
        ours.recv(1)
    channel.close()
    assert channel.filenos() == [] and len(os.listdir("/proc/self/fd")) == before - 1
    process.communicate()


def test_a_link_ends_with_its_process(pair):
    """The scheduler sleeps on it, too."""
    hub = Hub(lambda: None)
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    pair.link.channel.watch(process.pid)
    pair.link._poll.register(pair.link.channel.filenos()[1])
    hub.add(pair.link)
    assert not hub.wait(1)
    process.communicate()
    assert not hub.wait(20) and pair.link.gone


def test_who_made_the_pair_is_the_other_end(pair):
    pair.far.watch()
    assert not pair.far._ended()
    (_, process) = pair.far.filenos()
    with open(f"/proc/self/fdinfo/{process}") as file:
        assert f"Pid:\t{os.getpid()}\n" in file.read()


def _in_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_only_the_thread_that_receives_buries(pair):
    """A push from another one must not close what it sleeps on."""
    tended: list[int] = []
    hub = Hub(lambda: tended.append(threading.get_ident()))
    hub.add(pair.link)
    hub.recv(1)
    pair.link.gone = True
    tended.clear()
    _in_thread(lambda: hub.push(wire.HEALTH_ACK, b"", ()))
    assert not tended
    assert hub.push(wire.HEALTH_ACK, b"", ()) and tended == [threading.get_ident()]


def test_closing_waits_for_who_sleeps_or_tends(pair):
    begun = threading.Event()
    hub = Hub(begun.set)
    hub.add(pair.link)
    said: list[Any] = []
    thread = threading.Thread(target=lambda: said.append(hub.wait(20_000)))
    thread.start()
    assert begun.wait(10)
    hub.close()
    hub.bury(pair.link)
    thread.join()
    assert said == [False] and not hub.links
    begun.clear()
    assert not hub.wait(1) and not begun.is_set()


def test_an_interrupted_push_leaves_no_link_locked(both, monkeypatch):
    """Several frontends without room: the wait for one ends with an interrupt of the scheduler."""
    hub, pair, other = both

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(port, "complete", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100):
            hub.push(wire.HEALTH_ACK, b"", ())
    for one in (other, pair):
        hub.bury(one.link)  # takes their locks


def test_a_push_that_fails_leaves_no_link_locked(both, monkeypatch):
    """What one has no room for is waited for only once the others have had it."""
    hub, pair, other = both
    pair.fill()

    def failing(*_: Any) -> Any:
        raise RuntimeError("of the machine")

    monkeypatch.setattr(other.link, "offer", failing)
    with pytest.raises(RuntimeError):
        hub.push(wire.HEALTH_ACK, b"", ())
    for one in (other, pair):
        hub.bury(one.link)  # takes their locks


def test_threads_that_push_may_all_look(pair):
    """A poll object is for one thread at a time."""
    pair.accept()
    failures: list[BaseException] = []
    over = threading.Event()
    real = pair.link._poll
    within: list[int] = []

    class Poll:
        def poll(self, timeout: int) -> Any:
            within.append(1)
            over.wait(0.0005)  # as a system call that lets go of the GIL
            assert len(within) == 1
            within.pop()
            return real.poll(timeout)

    pair.link._poll = Poll()

    def look() -> None:
        try:
            for _ in range(300):
                pair.turn()
                pair.link.look(time.monotonic_ns())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and not pair.link.gone


def test_a_link_that_is_let_go_of_needs_no_collector():
    gc.collect()
    gc.disable()
    try:
        made = Pair()
        link = weakref.ref(made.link)
        hub = Hub(lambda: None)
        hub.add(made.link)
        hub.bury(made.link)
        del made.link
        assert link() is None
    finally:
        gc.enable()
    made.far.close()
    made.mesh.close()


def test_a_bell_that_is_closed_rings_for_nobody():
    event = EventFd()
    event.close()
    event.write()
    event.read()


# -- who does not read ------------------------------------------------------------------


def test_nothing_is_pushed_to_one_that_had_no_request(pair):
    """It may be stopped before its cores run: nothing waits for it, and nobody is woken there."""
    hub = Hub(lambda: None)
    hub.add(pair.link)
    header, data = pair.end("other")
    for _ in range(1000):  # its rings have room for 64
        assert hub.push(wire.BATCH, b"", wire.frame_parts(header, data))
        assert hub.push(wire.HEALTH_ACK, b"", ())
        assert not pair.link.frame(header, data)
    assert not pair.frames[0].drain(1)
    pair.begin()
    assert pair.link.frame(header, data)
    assert hub.push(wire.HEALTH_ACK, b"", ())
    assert [kind for kind, _, _ in pair.frames[0].drain(9)] == [wire.BATCH, wire.HEALTH_ACK]


def test_one_that_never_takes_connections_is_given_up(pair, monkeypatch):
    monkeypatch.setattr(link_module, "START_S", 0.0)
    hub = Hub(lambda: None)
    hub.add(pair.link)
    pair.begin(b"early")
    hub.tend(now=True)
    assert pair.link.gone and "did not take connections" in pair.link.failure
    hub.bury(pair.link)
    assert [codec.unpack(one.header)[1] for one in hub.recv(64)] == ["early"]


def test_one_that_accepts_is_not(pair, monkeypatch):
    pair.accept()
    monkeypatch.setattr(link_module, "START_S", 0.0)
    pair.turn()
    pair.link.look(time.monotonic_ns())
    assert not pair.link.gone


@pytest.mark.parametrize("cores", ["1", "ingress=0 tokenize=1 detok=2,3 egress=0"])
def test_a_ring_that_nobody_reads_ends_its_link_alone(cores):
    """Although all cores turn: the push that waits returns, the requests are aborted, and what
    else there is has had everything."""
    bad, good = Pair(cores, 0.4), Pair("1", 0.4)
    hub = Hub(lambda: None)
    got: list[Any] = []
    stop = threading.Event()

    def turn() -> None:
        read = [*good.frames, *bad.frames[1:]]
        while not stop.is_set():
            bad.turn()
            good.turn()
            for receiver in read:
                got.extend(receiver.drain(64))
            stop.wait(0.005)

    for one in (bad, good):
        hub.add(one.link)
        one.accept()
        one.begin()
    for opened, _ in bad.mesh.watched():
        if opened:
            bad.ends.words[opened[0]] += 1  # a request lives at each of its cores
    thread = threading.Thread(target=turn)
    thread.start()
    header, data = bad.end("nobody")
    began = time.monotonic()
    pushed = 0
    while not bad.link.gone:
        assert hub.push(wire.BATCH, b"", wire.frame_parts(header, data))
        pushed += 1
    assert pushed > 64 and time.monotonic() - began < 10
    for _ in range(3):
        assert hub.push(wire.BATCH, b"", wire.frame_parts(header, data))
        pushed += 1
    hub.tend(now=True)
    assert bad.link.failure == "it does not read what is pushed"
    assert not good.link.gone
    hub.bury(bad.link)
    assert [codec.unpack(one.header)[1] for one in hub.recv(64)] == ["first"]
    while len(got) < pushed:
        stop.wait(0.005)
    stop.set()
    thread.join()
    good.close()
    bad.far.close()
    bad.mesh.close()


def test_a_ring_that_is_read_slowly_is_waited_for():
    pair = Pair(stall_s=0.2)
    pair.accept()
    pair.begin()
    header, data = pair.end("nobody")
    for _ in range(64):
        assert pair.link.frame(header, data)
    now = time.monotonic_ns()
    for _ in range(20):
        now += 150_000_000
        for core in range(pair.mesh.n):
            pair.ends.words[pair.mesh.counters_at(core)] = now
        pair.frames[0].drain(1)
        pair.link.look(now)
    assert not pair.link.gone
    for _ in range(5):  # a look counts a fourth of the limit at most
        now += 150_000_000
        for core in range(pair.mesh.n):
            pair.ends.words[pair.mesh.counters_at(core)] = now
        pair.link.look(now)
    assert pair.link.gone
    pair.close()


def test_our_own_pause_is_nobody_s_fault():
    """The whole machine stood still: what lies unread is not old."""
    pair = Pair(stall_s=0.2)
    pair.accept()
    pair.begin()
    header, data = pair.end("nobody")
    assert pair.link.frame(header, data)
    now = time.monotonic_ns()
    pair.link.look(now)
    pair.link.look(now + 60_000_000_000)
    assert not pair.link.gone
    pair.close()


class _Clock:
    """A scheduler that looks when it is let, and a frontend that turns when it is let."""

    def __init__(self, stall_s: float) -> None:
        self.pair = Pair(stall_s=stall_s)
        self.pair.accept()
        self.now = 1_000_000_000
        self.turn()
        self.pair.link.look(self.now)

    def turn(self) -> None:
        for core in range(self.pair.mesh.n):
            self.pair.ends.words[self.pair.mesh.counters_at(core)] = self.now

    def looks(self, gaps_s: list[float]) -> bool:
        """So many looks, so far apart, and no turn between; whether it is still there."""
        for gap_s in gaps_s:
            self.now += int(gap_s * 1e9)
            self.pair.link.look(self.now)
        return not self.pair.link.gone


@pytest.mark.parametrize(
    "gaps_s",
    [
        [60.0] * 5,  # both were stopped, again and again
        [1.9] * 30,  # both get a little time of an overloaded machine; or steps that long
        [0.05, 0.05, 11.0, 0.05, 0.05],  # one long step, or one pause
        [0.05] * 190,  # not yet
    ],
)
def test_a_frontend_that_starves_with_its_scheduler_is_not_given_up(gaps_s):
    clock = _Clock(10.0)
    assert clock.looks(gaps_s)
    clock.turn()
    assert clock.looks(gaps_s)  # a turn makes up for all of it
    clock.pair.close()


@pytest.mark.parametrize("gap_s", [0.05, 0.25, 1.0, 3.0])
def test_a_frontend_that_never_turns_is_given_up_in_the_end(gap_s):
    """Also by a scheduler whose every step takes seconds: it took each of them for a pause."""
    clock = _Clock(10.0)
    assert not clock.looks([gap_s] * int(10.0 / min(gap_s, 0.25) + 2))
    assert clock.pair.link.failure == "its cores do not turn"
    clock.pair.close()


def test_a_start_that_the_machine_interrupts_is_waited_for(pair):
    now = time.monotonic_ns()
    for _ in range(3):
        now += int(link_module.START_S * 1e9)
        pair.link.look(now)
    assert not pair.link.gone
    for _ in range(int(link_module.START_S * 4)):
        now += 300_000_000
        pair.link.look(now)
    assert "did not take connections" in pair.link.failure


def test_an_abort_of_another_frontend_waits_for_no_room(pair):
    """It is told in `recv_requests`, which never waits, and again when there is room."""
    other = Pair()
    hub = Hub(lambda: None)
    hub.add(pair.link)
    hub.add(other.link)
    pair.begin()
    pair.fill()
    for rid in (b"a", b"b"):
        assert other.requests.post(wire.SHARED_ABORT, b"", (rid,))
    assert hub.recv(64) == []
    full = pair.frames[0].drain(1000)
    assert not [payload for kind, _, payload in full if kind == wire.FOREIGN_ABORT]
    hub.tend(now=True)
    told = [bytes(payload) for kind, _, payload in pair.frames[0].drain(1000)
            if kind == wire.FOREIGN_ABORT]  # fmt: skip
    assert told == [b"a", b"b"]
    hub.bury(other.link)
    other.far.close()
    other.mesh.close()


def test_an_abort_reaches_one_that_has_given_out_nothing_yet(pair):
    """Its requests may still be on the way to the scheduler."""
    pair.link.tell(b"a")
    assert [kind for kind, _, _ in pair.frames[0].drain(9)] == [wire.FOREIGN_ABORT]
