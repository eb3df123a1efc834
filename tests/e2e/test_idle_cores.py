"""A core without live requests is not woken by the steps of the others' requests."""

from __future__ import annotations

from typing import Any

from tests.e2e.parity_scheduler import by_hand
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed

DONE = {"type": "length", "length": 2}


def frames_of(run):
    return [core["frames"] for core in run.server.counters()]


def live_of(run):
    return [core["live_requests"] for core in run.server.counters()]


def test_steps_go_where_requests_live(model_folder):
    with by_hand(model_folder, {"plan": placed(["2"])}) as run:
        clients: dict[int, list[Any]] = {0: [], 1: []}
        live = [0, 0]
        while not (clients[0] and clients[1]):  # the kernel deals connections out
            opened = run.open(f"r{sum(live)}")
            count = sum(live) + 1
            until(run, lambda count=count: sum(live_of(run)) == count)
            now = live_of(run)
            clients[0 if now[0] > live[0] else 1].append(opened)
            live = now
        for _ in range(5):
            run.push(*[(rid, "a", None) for _, rid in clients[0] + clients[1]])
        until(run, lambda: frames_of(run) == [5, 5])
        run.push(*[(rid, "!", DONE) for _, rid in clients[0]])
        until(run, lambda: live_of(run)[0] == 0 and frames_of(run) == [6, 6])
        rung = run.server.port.doorbells()
        for _ in range(50):
            run.push(*[(rid, "b", None) for _, rid in clients[1]])
        until(run, lambda: frames_of(run)[1] == 56)
        assert frames_of(run)[0] == 6
        # Nor was it rung for: once a step at most, for the other.
        assert sum(run.server.port.doorbells()) - sum(rung) == 50
        run.push(*[(rid, "!", DONE) for _, rid in clients[1]])
        until(run, lambda: sum(live_of(run)) == 0)
        # Nobody is left: a frame goes nowhere, and the next request finds its own.
        run.push((clients[1][0][1], "late", None))
        third, rid = run.open("third", stream=False)
        run.push((rid, "ok", DONE))
        assert third.answer().json()["text"] == "ok"
