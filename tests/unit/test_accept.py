"""Spreading connections: what a core was given counts before it can say so."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

from tpc_server.counters import Counters
from tpc_server.stages.accept import Acceptor, Loads


def test_a_burst_is_spread_evenly_although_the_others_have_not_counted_yet():
    words = [0, 0, 0]
    loads = Loads(words, {0: 0, 1: 1, 2: 2}, 0)
    own, given = 0, {1: 0, 2: 0}
    for _ in range(30):
        target = loads.give(own)
        if target is None:
            own += 1
            loads.report(own)
        else:
            given[target] += 1
    assert words[0] == own
    assert max(own, *given.values()) - min(own, *given.values()) <= 3
    # They take them one by one, and are never thought to have more than they were given.
    for core, count in given.items():
        for k in range(1, count + 1):
            words[core] = k
            loads.give(0)
    words[1] = 0  # one of them has lost its clients: it gets new ones
    assert loads.give(own) == 1


def test_alone_everything_stays():
    loads = Loads([0], {0: 0}, 0)
    assert loads.give(100) is None


class Full:
    """A listening socket where no descriptor is left."""

    def fileno(self):
        return 7

    def accept(self):
        raise OSError(errno.EMFILE, "too many")


def test_a_shortage_is_told_once_and_then_once_a_minute():
    lines = []
    setup = SimpleNamespace(log=lambda level, text, **fields: lines.append((level, text, fields)))
    poller = SimpleNamespace(register=lambda *_: None, unregister=lambda fd: None)
    full: Any = Full()
    acceptor = Acceptor(3, setup, Counters(), poller, [full], lambda sock: None)
    acceptor.start()
    second = 1_000_000_000
    for quarter in range(4 * 130):  # as a core ticks
        acceptor.on_tick(10 * second + quarter * second // 4)
        acceptor.on_events(7, 1)
    text = "out of descriptors: accepting pauses"
    assert lines == [
        ("warning", text, {"core": 3, "times": times}) for times in (1, 4 * 60, 4 * 60)
    ]
    lines.clear()
    acceptor.on_tick(400 * second)  # a shortage later on is told at once
    acceptor.on_events(7, 1)
    assert [fields["times"] for _, _, fields in lines] == [40]
