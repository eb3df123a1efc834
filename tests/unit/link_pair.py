"""A frontend's mesh and the scheduler's link to it, in one process, for tests of links. Owner: a
test."""

from __future__ import annotations

import socket
import time
from typing import Any

from tests.unit.test_port import plan_of
from tpc_server.boundary import codec, columns, messages, wire
from tpc_server.link.attached import describe
from tpc_server.link.link import attached
from tpc_server.link.messages import Channel
from tpc_server.mesh import ABORTS, SCHEDULER, Ends, Mesh

PACK = codec.make_packer()


class Pair:
    """A frontend's mesh, and the scheduler's link to it."""

    def __init__(self, cores: str = "1", stall_s: float = 5.0) -> None:
        self.mesh = Mesh(plan_of(*cores.split()), 64, 64, 64)
        ours, theirs = socket.socketpair()
        self.far = Channel(theirs)
        about, fds = describe(self.mesh)
        assert self.far.send({"mesh": about}, fds)
        near = Channel(ours)
        message = near.wait(5)
        self.link = attached(near, message["mesh"], stall_s)
        self.ends = Ends(self.mesh)
        core = self.mesh.plan.stage_cores("tokenize")[0]
        self.requests = self.ends.sender(core, SCHEDULER)
        self.aborts = self.ends.sender(core, SCHEDULER, ABORTS)
        detok = self.mesh.plan.stage_cores("detok")
        self.frames = [self.ends.receiver(SCHEDULER, core) for core in detok]

    def request(self, rid: bytes) -> None:
        assert self.requests.post(wire.REQUEST, rid, wire.request_parts(b"r", []))

    def begin(self, rid: bytes = b"first") -> None:
        """Its first request is given out: it takes part in what is pushed."""
        self.request(rid)
        self.link.recv(64)

    def accept(self) -> None:
        """It says that it takes connections."""
        assert self.far.send({"accepting": True})
        self.link.hear()
        assert self.link.accepting

    def turn(self) -> None:
        """Its cores publish that they turn."""
        for core in range(self.mesh.n):
            self.ends.words[self.mesh.counters_at(core)] = time.monotonic_ns()

    def fill(self) -> None:
        """No more room for what is pushed."""
        left = self.link.offer(wire.HEALTH_ACK, b"", ())
        while left is None:
            left = self.link.offer(wire.HEALTH_ACK, b"", ())
        left(False)

    def abort(self, rid: bytes) -> None:
        header = messages.pack_abort(PACK, rid.decode())
        self.aborts.post_urgent(wire.ABORT, rid, wire.request_parts(header, []))

    def end(self, *rids: str) -> tuple[bytes, list[bytes]]:
        finish: list[Any] = [{"type": "length", "length": 1}] * len(rids)
        ones = [1] * len(rids)
        return columns.pack_frame(PACK, rids, finish, ones, [[1]] * len(rids), ones, ones)

    def close(self) -> None:
        self.link.destroy()
        self.far.close()
        self.mesh.close()
