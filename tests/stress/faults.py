"""What goes wrong, and what it may do to an answer. Owner: plain data; the test's main thread.

Two kinds: faults of the scheduler, chosen by a request through the start of its rid, and injuries
of the server (a core that throws or hangs, an abort of everything, a drain), done at set times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.stress import oracle
from tests.stress.checks import ABORTS, Outcome, Wanted

MALFORMED: Final = "malformed scheduler output frame"
SCRIPTED: Final = "scripted fault"
OVERLOADED: Final = ("the server is overloaded", "the scheduler's queue is full")
SLOW: Final = "reads too slowly"
RESTARTED: Final = "a core was restarted"
SHUTDOWN: Final = "the server is shutting down"


class RidFault(NamedTuple):
    """A fault that requests ask for: `rid` starts with `f-<name>-`."""

    name: str
    fault: dict[str, Any]  # of the synthetic engine's script
    streams: tuple[bool, ...]  # which kinds of request it is for
    least: int  # max_new_tokens, so that the frame comes at all
    may: Callable[[Outcome], bool]  # an end that is not the expected answer
    splice: Callable[[Any, int], Any] | None = None  # the answer is another one


def _ok(outcome: Outcome) -> bool:
    return outcome.kind == "ok"


def _failed(outcome: Outcome) -> bool:
    return outcome.code == 500 and MALFORMED in outcome.message


def _refused(outcome: Outcome) -> bool:
    return outcome.code == 400 and SCRIPTED in outcome.message


def _ended(outcome: Outcome) -> bool:
    return outcome.message == SCRIPTED and outcome.code in (200, 503)


def _aborted(outcome: Outcome) -> bool:
    return outcome.kind == "abort" and outcome.message in ABORTS


STREAM: Final = (True,)
BOTH: Final = (True, False)
RID_FAULTS: Final = (
    RidFault("late", {"kind": "late", "at": 2, "ms": 120}, BOTH, 4, _ok),
    RidFault("bad", {"kind": "malformed", "at": 2}, STREAM, 5, _failed),
    RidFault("bad0", {"kind": "malformed", "at": 0}, BOTH, 1, _failed),
    RidFault("torn", {"kind": "cut", "at": 1}, STREAM, 5, _failed),
    RidFault("torn0", {"kind": "cut", "at": 0}, BOTH, 1, _failed),
    RidFault("lost", {"kind": "garbage", "at": 1}, STREAM, 5, _ok, oracle.without),
    RidFault("twice", {"kind": "duplicate", "at": 1}, STREAM, 5, _ok, oracle.doubled),
    RidFault("mute", {"kind": "silence", "at": 1}, STREAM, 5, _aborted),
    RidFault("err", {"kind": "error", "at": 1, "text": SCRIPTED}, STREAM, 5, _refused),
    RidFault("err0", {"kind": "error", "at": 0, "text": SCRIPTED}, BOTH, 1, _refused),
    RidFault("end", {"kind": "abort", "at": 1, "text": SCRIPTED, "status": 503}, STREAM, 5, _ended),
    RidFault("end0", {"kind": "abort", "at": 0, "text": SCRIPTED, "status": 503}, BOTH, 1, _ended),
    RidFault("oov", {"kind": "out_of_vocabulary", "at": 1}, BOTH, 3, _ok),
    RidFault("wide", {"kind": "giant_hidden", "at": 1, "size": 700_000}, STREAM, 3, _ok),
    RidFault("who", {"kind": "unknown_rids", "at": 1, "size": 40}, STREAM, 3, _ok),
)  # fmt: skip
BY_NAME: Final = {fault.name: fault for fault in RID_FAULTS}
ENGINE_FAULTS: Final = (
    {"kind": "unknown_rids", "every": 37, "size": 5},
    {"kind": "late", "every": 211, "ms": 30},
)


def script() -> dict[str, Any]:
    """The synthetic engine's script, as its JSON file."""
    scripts = [{"rid": f"f-{fault.name}-", "faults": [fault.fault]} for fault in RID_FAULTS]
    return {"scripts": scripts, "faults": list(ENGINE_FAULTS)}


def apply(fault: RidFault, wanted: Wanted) -> None:
    """Change what is expected of a request that asked for a fault."""
    if fault.splice is not None:
        wanted.items = [fault.splice(item, fault.fault["at"]) for item in wanted.items]
    wanted.blind = fault.name == "oov"
    wanted.may = fault.may


# -- injuries ------------------------------------------------------------------------

THROW: Final = "throw"
STALL: Final = "stall"
ABORT_ALL: Final = "abort_all"
KILL: Final = "kill"  # of a frontend's process
FREEZE: Final = "freeze"  # of one, shorter than it takes to be given up
STUCK: Final = "stuck"  # the same, longer
RELOAD: Final = "reload"
DRAIN: Final = "drain"
STOP: Final = "stop"
PAUSE: Final = "pause"  # of the whole machine: explains whatever lay around it
_A_CORE_MAY_DIE: Final = 2  # times; the third within 30 s ends the server


class Injury(NamedTuple):
    """Something done to the server `at` seconds after the load began."""

    at: float
    kind: str
    core: int = 0
    seconds: float = 0.0


def injuries(
    rng: random.Random, kinds: tuple[str, ...], cores: int, seconds: float
) -> list[Injury]:
    """A schedule for one run, oldest first; each core dies at most twice in 30 seconds."""
    out: list[Injury] = []
    begin, end = 0.1 * seconds, 0.9 * seconds
    if THROW in kinds:
        # Over 30 s the deaths come close together, so that no 30 seconds see a third one.
        first = begin
        while first < end:
            last = end if seconds <= 30 else min(end, first + 4.0)
            for core in range(cores):
                for _ in range(_A_CORE_MAY_DIE):
                    out.append(Injury(rng.uniform(first, last), THROW, core))
            first += 35.0
    if STALL in kinds:
        for _ in range(max(2, int(seconds / 2.5))):
            at = rng.uniform(begin, end)
            out.append(Injury(at, STALL, rng.randrange(cores), rng.uniform(0.05, 0.4)))
    if ABORT_ALL in kinds:
        for _ in range(max(1, int(seconds / 4))):
            out.append(Injury(rng.uniform(begin, end), ABORT_ALL))
    return sorted(out)


def ends_of_processes(
    rng: random.Random, kinds: tuple[str, ...], seconds: float, stall_s: float
) -> list[Injury]:
    """A schedule for frontends in processes of their own: each kind in turn, in any order.

    Two of them may meet: a process that is starting, or is about to leave, is killed as well.
    """
    begin, end = 0.1 * seconds, 0.75 * seconds
    rounds = max(1, round(seconds / 10))
    turn = [kind for _ in range(rounds) for kind in rng.sample(kinds, len(kinds))]
    step = (end - begin) / len(turn)
    longer = {FREEZE: 0.3 * stall_s, STUCK: 1.5 * stall_s}
    return [
        Injury(begin + (k + rng.random()) * step, kind, seconds=longer.get(kind, 0.0))
        for k, kind in enumerate(turn)
    ]


class Loose(NamedTuple):
    """An end that only an injury explains: judged when the run is over."""

    kind: str  # cut, refused, closing, core, abort, shutdown
    since: float  # CLOCK_MONOTONIC: the connection (cut) or request began
    until: float
    got: int  # bytes of the answer that had come
    note: str


# How long after an injury a connection may still be one that it hurt.
_AFTER_S: Final = 10.0
# How far apart processes awake after a pause.
_AWAKE_S: Final = 2.0
_EXPLAINS: Final = {
    "core": (THROW,),
    "abort": (ABORT_ALL,),
    "shutdown": (STOP,),
    "refused": (DRAIN, STOP),
    "closing": (DRAIN, STOP, RELOAD),
    "unhealthy": (DRAIN, STOP, THROW),
}


def unexplained(loose: Loose, done: list[tuple[str, float]]) -> str | None:
    """Why no injury of `done` (kind, time) can have caused this end; None if one can."""
    kinds = _EXPLAINS.get(loose.kind)
    if kinds is None:  # a cut: half an answer is never lost by a drain
        kinds = (THROW, STOP, KILL, STUCK)
        if not loose.got:
            kinds += (DRAIN,)
    for kind, at in done:
        near = loose.since <= at + _AWAKE_S and at <= loose.until + _AFTER_S
        if kind == PAUSE and near:
            return None
        if loose.kind == "shutdown" and kind == DRAIN and loose.since >= at:
            return None  # it came when everything that ran had ended
        lasting = kind in (DRAIN, STOP)
        if kind in kinds and at <= loose.until and (lasting or loose.since <= at + _AFTER_S):
            return None
    return f"{loose.kind} without a cause: {loose.note} ({loose.since:.1f} to {loose.until:.1f})"
