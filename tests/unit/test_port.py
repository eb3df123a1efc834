"""The scheduler's port over a real mesh: whose requests come, and in which order."""

from __future__ import annotations

import pytest

from tpc_server.affinity.plan import CorePlan, PlanSettings, parse_cores, plan
from tpc_server.affinity.topology import read
from tpc_server.boundary import wire
from tpc_server.boundary.port import SchedulerPort
from tpc_server.mesh import ABORTS, DATA, SCHEDULER, Ends, Mesh


def plan_of(*words: str) -> CorePlan:
    return plan(read(), PlanSettings(cores=parse_cores(list(words)), unpinned=True))


@pytest.fixture
def mesh():
    link = Mesh(plan_of("ingress=0", "tokenize=0,1,2", "detok=0", "egress=0"), 64, 64, 64)
    yield link
    link.close()


def test_no_tokenize_core_starves_however_busy_the_others_are(mesh):
    """Each may fill what is asked for at once: then they take turns."""
    cores = mesh.plan.stage_cores("tokenize")
    assert len(cores) == 3
    ends = Ends(mesh)
    senders = [ends.sender(core, SCHEDULER) for core in cores]
    port = SchedulerPort(mesh)
    for _ in range(8):
        for number, sender in enumerate(senders):
            assert sender.post(wire.REQUEST, b"", wire.request_parts(b"%d" % number, []))
    taken = [port.recv(2) for _ in range(3)]
    assert sorted(request.header for some in taken for request in some) == [
        b"0", b"0", b"1", b"1", b"2", b"2",
    ]  # fmt: skip
    port.close()


@pytest.mark.parametrize("room", range(1, 9))
def test_an_abort_never_overtakes_its_request(mesh, room):
    """Not either where pieces of a large request use up what is asked for at once."""
    (core, *_) = mesh.plan.stage_cores("tokenize")
    ends = Ends(mesh)
    requests, aborts = ends.sender(core, SCHEDULER), ends.sender(core, SCHEDULER, ABORTS)
    port = SchedulerPort(mesh)
    large = bytes(mesh.ring((core, SCHEDULER, DATA))[1] * 5 // 8)  # in three pieces
    sent = [(b"large", large), *[(b"%d" % k, b"small") for k in range(4)]]
    unsent = list(sent)
    got: list[bytes] = []
    aborted = False
    while len(got) <= len(sent):
        while unsent and requests.post(
            wire.REQUEST, unsent[0][0], wire.request_parts(unsent[0][1], [])
        ):
            unsent.pop(0)
        requests.flush()
        if not unsent and not requests.backlog and not aborted:  # as its stage does it
            aborts.post_urgent(wire.ABORT, b"3", wire.request_parts(b"abort", []))
            aborted = True
        got += [one.header for one in port.recv(room)]
    assert got == [*[header for _, header in sent], b"abort"]
    port.close()


def test_what_comes_later_holds_no_abort_back(mesh):
    """Under load something always does, before messages are made of what was read."""
    (core, *_) = mesh.plan.stage_cores("tokenize")
    ends = Ends(mesh)
    requests, aborts = ends.sender(core, SCHEDULER), ends.sender(core, SCHEDULER, ABORTS)
    port = SchedulerPort(mesh)
    read = port.read

    def busy(records):
        if records and records[0][0] == wire.REQUEST:
            assert requests.post(wire.REQUEST, b"more", wire.request_parts(b"more", []))
        return read(records)

    port.read = busy
    assert requests.post(wire.REQUEST, b"one", wire.request_parts(b"one", []))
    aborts.post_urgent(wire.ABORT, b"one", wire.request_parts(b"abort", []))
    assert [one.header for one in port.recv(64)] == [b"one", b"abort"]
    assert [one.header for one in port.recv(64)] == [b"more"]
    port.close()


def test_an_abort_waits_for_what_was_there_before_it_and_no_longer(mesh):
    """However much comes behind, and however slowly it is taken."""
    (core, *_) = mesh.plan.stage_cores("tokenize")
    ends = Ends(mesh)
    requests, aborts = ends.sender(core, SCHEDULER), ends.sender(core, SCHEDULER, ABORTS)
    port = SchedulerPort(mesh)
    got: list[bytes] = []
    for k in range(20):
        assert requests.post(wire.REQUEST, b"%d" % k, wire.request_parts(b"%d" % k, []))
    aborts.post_urgent(wire.ABORT, b"0", wire.request_parts(b"abort 0", []))
    for k in range(20, 60):
        got += [one.header for one in port.recv(1)]
        assert requests.post(wire.REQUEST, b"%d" % k, wire.request_parts(b"%d" % k, []))
        if k == 30:
            aborts.post_urgent(wire.ABORT, b"30", wire.request_parts(b"abort 30", []))
    assert got.index(b"abort 0") == 20 and got.index(b"abort 30") == 20 + 12
    port.close()
