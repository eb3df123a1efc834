"""Stalls, told by an injected clock."""

from __future__ import annotations

from tpc_server.monitor import Stalls

S = 1_000_000_000


def test_a_core_that_stands_still_is_told_once_until_it_goes_on():
    stalls = Stalls(5 * S, 0)
    told = []
    for second in range(1, 20):
        told += stalls.look(second * S, [second * S, 2 * S])
    assert told == [(1, 6 * S)]
    assert stalls.look(20 * S, [20 * S, 20 * S]) == []
    for second in range(21, 30):
        told += stalls.look(second * S, [second * S, 20 * S])
    assert told == [(1, 6 * S), (1, 6 * S)]


def test_a_stopped_process_or_a_sleeping_machine_is_no_stall():
    stalls = Stalls(5 * S, 0)
    assert stalls.look(1 * S, [1 * S, 1 * S]) == []
    # SIGSTOP, an hour, SIGCONT: the monitor may come before the cores have had a turn.
    assert stalls.look(3600 * S, [1 * S, 1 * S]) == []
    assert stalls.look(3601 * S, [3601 * S, 1 * S]) == []
    for second in range(3602, 3606):
        assert stalls.look(second * S, [second * S, 1 * S]) == []
    # One that did not come back with the others stands still for real.
    assert stalls.look(3606 * S, [3606 * S, 1 * S]) == [(1, 6 * S)]
    # It stays reported over another sleep, as it has not moved.
    assert stalls.look(9000 * S, [9000 * S, 1 * S]) == []
    for second in range(9001, 9010):
        assert stalls.look(second * S, [second * S, 1 * S]) == []


def test_a_late_look_on_a_busy_machine_forgives_nothing():
    stalls = Stalls(5 * S, 0)
    told = []
    for half in range(3, 30, 4):  # every two seconds
        told += stalls.look(half * S // 2, [0])
    assert told == [(0, 11 * S // 2)]
