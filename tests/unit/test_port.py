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


class Lane:
    """A tokenize core's rings to the scheduler, from both ends."""

    def __init__(self, mesh: Mesh) -> None:
        (core, *_) = mesh.plan.stage_cores("tokenize")
        ends = Ends(mesh)
        self.requests = ends.sender(core, SCHEDULER)
        self.aborts = ends.sender(core, SCHEDULER, ABORTS)
        self.port = SchedulerPort(mesh)
        self.bytes = mesh.ring((core, SCHEDULER, DATA))[1]

    def request(self, rid: bytes, header: bytes = b"") -> bool:
        return self.requests.post(wire.REQUEST, rid, wire.request_parts(header or rid, []))

    def abort(self, rid: bytes) -> None:
        self.aborts.post_urgent(wire.ABORT, rid, wire.request_parts(b"abort " + rid, []))

    def take(self, most: int) -> list[bytes]:
        """Headers of what a scheduler gets."""
        return [one.header for one in self.port.recv(most)]


@pytest.fixture
def lane(mesh):
    made = Lane(mesh)
    yield made
    made.port.close()


@pytest.mark.parametrize("room", range(1, 9))
def test_an_abort_never_overtakes_its_request(lane, room):
    """Not either where pieces of a large request use up what is asked for at once."""
    large = bytes(lane.bytes * 5 // 8)  # in three pieces
    sent = [(b"large", large), *[(b"%d" % k, b"small") for k in range(4)]]
    unsent = list(sent)
    got: list[bytes] = []
    aborted = False
    while len(got) <= len(sent):
        while unsent and lane.request(*unsent[0]):
            unsent.pop(0)
        lane.requests.flush()
        if not unsent and not lane.requests.backlog and not aborted:  # as its stage does it
            lane.abort(b"3")
            aborted = True
        got += lane.take(room)
    assert got == [*[header for _, header in sent], b"abort 3"]


def test_what_comes_later_holds_no_abort_back(lane):
    """Under load something always does, before messages are made of what was read."""
    read = lane.port.read

    def busy(records):
        if records and records[0][0] == wire.REQUEST:
            assert lane.request(b"more")
        return read(records)

    lane.port.read = busy
    assert lane.request(b"one")
    lane.abort(b"one")
    assert lane.take(64) == [b"one", b"abort one"]
    assert lane.take(64) == [b"more"]


def test_an_abort_waits_for_what_was_there_before_it_and_no_longer(lane):
    """However much comes behind, and however slowly it is taken."""
    got: list[bytes] = []
    for k in range(20):
        assert lane.request(b"%d" % k)
    lane.abort(b"0")
    for k in range(20, 60):
        got += lane.take(1)
        assert lane.request(b"%d" % k)
        if k == 30:
            lane.abort(b"30")
    assert got.index(b"abort 0") == 20 and got.index(b"abort 30") == 20 + 12
