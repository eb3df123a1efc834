"""Seats of frontend processes: what the machine refuses is no fault of the scheduler's calls."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpc_server.link.children import SLOTS, Seat, Starting
from tpc_server.link.hub import Hub
from tpc_server.link.messages import LinkClosed
from tpc_server.link.process import Ending, StartError, hangups_wait

pytestmark = pytest.mark.timeout(20)


def _seat(said: list[str]) -> Seat:
    return Seat(Hub(lambda: None), [], {}, ["/no/such/python"], 5.0, said.append)


def _no_descriptors(*_: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _break(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "descriptors":
        monkeypatch.setattr(socket, "socketpair", _no_descriptors)


@pytest.mark.parametrize("what", ["program", "descriptors"])
@pytest.mark.parametrize("call", [Seat.tend, Seat.reload])
def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Seat], Any], what: str
) -> None:
    _break(monkeypatch, what)
    said: list[str] = []
    seat = _seat(said)
    assert not call(seat)
    (line,) = said
    assert "did not start" in line
    assert not seat.reloading
    before = seat.restarts
    seat.tend()  # not yet
    assert seat.restarts == before
    seat._retry_at = 0.0
    seat.tend()
    assert seat.restarts == before + 1 and len(said) == 2


@pytest.mark.parametrize("what", ["program", "descriptors"])
def test_the_first_start_says_why(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    _break(monkeypatch, what)
    with pytest.raises(StartError):
        _seat([]).start()


class _Dying:
    """A process that takes its time; a wait for it would hold up the scheduler."""

    pid = 1

    def __init__(self, status: int) -> None:
        self.status = status
        self.polls = 0

    def poll(self) -> int | None:
        self.polls += 1
        return self.status if self.polls > 4 else None

    def wait(self, timeout: float) -> int:
        assert self.poll() is not None and not timeout
        return self.status

    def send_signal(self, number: int) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "text"), [(-9, "killed by SIGKILL"), (-40, "killed by signal 40"), (3, "status 3")]
)
def test_nobody_waits_for_a_process_to_die(status: int, text: str) -> None:
    said: list[str] = []
    seat = _seat(said)
    process = _Dying(status)
    seat.link = cast(Any, SimpleNamespace(
        process=process, gone=True, accepting=False, failure="", since=0.0, reload_asked=False,
        leaving=False, retired=False,
    ))  # fmt: skip
    seat.tend()
    assert seat.link is None and seat._dying and not [line for line in said if "is gone" in line]
    for _ in range(5):
        seat.tend()
    assert not seat._dying
    (line,) = [line for line in said if "is gone" in line]
    assert text in line


def test_one_that_hangs_up_is_not_killed_before_its_end_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a clean end would read as a kill. One that does not end is killed, and that is said."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said: list[str] = []
    kills: list[int] = []
    process = _Dying(0)
    process.send_signal = kills.append  # type: ignore[method-assign]
    ending = Ending(process, "gone ({})", 2.0)
    while not ending.over(said.append):
        clock[0] += 0.1
    assert said == ["gone (exit status 0)"] and not kills
    process.polls = -30
    ending = Ending(process, "gone ({})", 2.0)
    while not ending.over(said.append):
        clock[0] += 0.1
    assert said[1:] == ["gone (it hung up and did not end: killed)"] and kills
    begun = clock[0]
    process.polls = 0
    Ending(process, "gone ({})")
    assert clock[0] == begun and len(kills) > 1  # what is stuck is killed at once


@pytest.mark.parametrize("stopping", [False, True])
def test_one_that_a_signal_ends_is_followed_at_once(stopping: bool) -> None:
    """It finishes what it has meanwhile; and nobody says that it was killed."""
    said: list[str] = []
    seat = _seat(said)
    seat.stopping = stopping
    old = seat.link = _link(leaving=True, process=_Dying(0))
    seat.tend()
    assert old.retired
    if stopping:
        assert seat.link is old and not said
        return
    assert seat.link is None and seat._retired == [old] and not seat.restarts
    seat._retry_at = 0.0
    seat.tend()
    assert seat.restarts == 1 and seat._retired == [old]
    old.gone = True
    seat._retry_at = 1e18
    for _ in range(6):
        seat.tend()
    assert not seat._retired and not seat._dying
    assert "told to end by a signal" in said[0] and "(exit status 0)" in said[-1]
    assert not [line for line in said if "aborted" in line]


def test_one_that_a_signal_ends_when_no_place_is_free_is_followed_later() -> None:
    seat = _seat([])
    seat._retired = [_link(slot, retired=True) for slot in range(SLOTS - 1)]
    last = seat.link = _link(SLOTS - 1, leaving=True, process=_Dying(0))
    seat.tend()
    assert seat.link is last and not seat.restarts
    last.gone = True
    seat.tend()
    assert seat.link is None and len(seat._retired) == SLOTS - 1


def test_one_that_a_signal_ends_during_a_reload_is_not_called_back() -> None:
    """Its listening sockets are closed: who dies instead of the new one is not replaced by it."""
    seat, old, new = _reloading([])
    old.leaving = True
    seat.tend()
    assert old.retired and seat.link is new and seat._retired == [old]
    new.gone = True
    seat.tend()
    assert seat.link is None and seat._retired == [old]


def test_a_hangup_waits_for_a_process_that_is_started() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    script = "import signal; print(signal.SIGHUP in signal.pthread_sigmask(0, ()))"
    with hangups_wait():
        told = subprocess.run(
            [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
        )
    assert told.stdout == "True\n"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_every_process_of_a_seat_has_a_place_in_the_metrics() -> None:
    """Also those that finish their requests: what has none is not started."""
    said: list[str] = []
    seat = _seat(said)
    for count in range(1, SLOTS):
        assert not seat.busy
        slot = seat._free_slot()
        others = [link.slot for link in seat._retired]
        assert slot not in others and 0 <= slot < SLOTS
        if seat.link is not None:
            seat._retired.append(seat.link)
        seat.link = cast(Any, SimpleNamespace(
            slot=seat._free_slot(), gone=False, ready=False, accepting=False, reload_asked=True,
            leaving=False, retired=False,
        ))  # fmt: skip
        assert len(seat._retired) == count - 1
    seat._retired.append(seat.link)
    assert seat._free_slot() == SLOTS - 1  # a crash: there is room for one who takes over
    seat.link = seat._retired.pop()
    seat._retired.append(cast(Any, _link(SLOTS - 1)))
    assert not seat.reload()
    seat.tend()  # a process asks for it by a signal
    (line,) = said
    assert f"{SLOTS - 1} processes that were replaced still have requests" in line


# -- reloads -----------------------------------------------------------------------------


class _Socket:
    """The scheduler's end of a link, as a seat uses it."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def post(self, message: Any) -> None:
        self.said.append(message)


def _link(slot: int = 0, **more: Any) -> Any:
    known = {
        "process": _Dying(-9), "gone": False, "accepting": True, "ready": False, "failure": "",
        "since": 0.0, "reload_asked": False, "retired": False, "leaving": False,
        "slot": slot, "channel": _Socket(),
    }  # fmt: skip
    return SimpleNamespace(**{**known, **more})


def _reloading(said: list[str]) -> tuple[Seat, Any, Any]:
    """A seat whose next process has said where its rings are, and does not accept yet."""
    seat = _seat(said)
    old, new = _link(0), _link(1, accepting=False)
    seat._config = {"options": {"retire_s": 7.0}}
    seat._retired.append(old)
    seat.link = new
    seat.reloading = True
    return seat, old, new


def test_the_old_process_goes_on_until_the_new_one_accepts() -> None:
    seat, old, new = _reloading([])
    seat.tend()
    assert old.channel.said == [] and not seat.reload() and "starting already" in seat.busy
    new.accepting = True
    seat.tend()
    assert old.channel.said == [{"retire": 7.0}] and not seat.reloading and seat.link is new
    assert not seat.not_reloaded


@pytest.mark.parametrize("failure", ["", "a core could not start"])
def test_the_old_process_stays_when_the_new_one_dies(failure: str) -> None:
    """Between its first words and its first connection; and another reload may follow."""
    said: list[str] = []
    seat, old, new = _reloading(said)
    new.gone, new.failure = True, failure
    for _ in range(6):
        seat.tend()
    assert seat.link is old and not seat._retired and old.channel.said == []
    assert not seat.restarts and not seat.busy
    (line,) = said
    assert "no reload" in line and (failure or "killed by SIGKILL") in line
    assert (failure or "it has ended") in seat.not_reloaded


def test_a_process_that_was_told_to_leave_does_not_come_back() -> None:
    said: list[str] = []
    seat, old, new = _reloading(said)
    new.accepting = True
    seat.tend()
    new.gone = True
    seat.tend()
    assert seat.link is None and seat._retired == [old]


@pytest.mark.parametrize("failure", ["", "its cores do not turn"])
def test_an_old_process_that_dies_before_it_is_replaced_has_served(failure: str) -> None:
    """Its requests are aborted; one that was replaced had none to lose, or is told to be one."""
    said: list[str] = []
    seat, old, new = _reloading(said)
    old.gone, old.failure = True, failure
    for _ in range(6):
        seat.tend()
    (line,) = said
    assert "is gone" in line and "requests are aborted" in line and "replaced" not in line
    assert (failure or "killed by SIGKILL") in line
    assert seat.link is new and seat.reloading and not seat._retired
    new.accepting = True
    seat.tend()
    assert len(said) == 1 and not seat.reloading


@pytest.mark.parametrize("then", ["serves", "ends"])
def test_a_reload_goes_on_where_the_old_process_dies_first(then: str) -> None:
    """Before the new one has said where its rings are: nothing serves until that does."""
    said: list[str] = []
    seat = _seat(said)
    seat.link = _link(gone=True)
    over: list[bool] = []

    def word() -> None:
        if over:
            raise LinkClosed("it has ended")

    channel = SimpleNamespace(poll=word, close=lambda: None)
    starting: Any = Starting(_Dying(-9), cast(Any, channel), 1)
    seat._starting = starting
    seat.reloading = True
    seat.tend()
    assert seat.link is None and seat.reloading and not seat.not_reloaded
    if then == "serves":
        seat._starting, seat.link = None, _link(1)
        seat.tend()
        assert not seat.reloading and not seat.not_reloaded
        return
    over.append(True)
    seat.tend()
    assert not seat.reloading and "it has ended" in seat.not_reloaded


def test_a_process_that_was_replaced_and_cut_short_loses_requests_not_unsaid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    seat, old, new = _reloading(said)
    new.accepting = True
    seat.tend()
    said.clear()
    monkeypatch.setattr(Hub, "bury", lambda hub, link: 3)
    old.gone = True
    for _ in range(6):
        seat.tend()
    (line,) = said
    assert "replaced is gone (killed by SIGKILL); 3 of its requests are aborted" in line


def test_both_die_during_a_reload() -> None:
    said: list[str] = []
    seat, old, new = _reloading(said)
    old.gone = new.gone = True
    seat._retry_at = 1e18
    seat._pause_s = 1000.0
    for _ in range(6):
        seat.tend()
    assert seat.link is None and not seat._retired and not seat.busy


def test_a_server_ends_during_a_reload() -> None:
    said: list[str] = []
    seat, old, new = _reloading(said)
    seat.tell_stop()
    assert [one.channel.said for one in (old, new)] == [[{"stop": True}]] * 2
    assert not seat.reload() and "ending" in seat.busy
    for one in (old, new):
        one.gone = True
        one.process.wait = lambda *_: -9
    seat.stop()
    assert seat.processes() == [] and not said


def test_starts_that_fail_come_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """And at once again after a process that lived long."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said: list[str] = []
    seat = _seat(said)
    starts: list[float] = []
    while len(starts) < 9:
        before = seat.restarts
        seat.tend()
        if seat.restarts > before:
            starts.append(clock[0])
        clock[0] += 0.05
    gaps = [round(b - a, 1) for a, b in itertools.pairwise(starts)]
    assert gaps[:5] == [pytest.approx(0.1 * 2**k, abs=0.06) for k in range(5)]
    assert gaps[-1] == pytest.approx(5.0, abs=0.1) and max(gaps) < 5.2
    seat.link = _link(gone=True, since=clock[0] - 60.0)
    before = seat.restarts
    seat.tend()
    seat.tend()
    assert seat.restarts == before + 1 and seat._pause_s <= 0.2
