"""Spreading connections: what a core was given counts before it can say so."""

from __future__ import annotations

from tpc_server.stages.accept import Loads


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
