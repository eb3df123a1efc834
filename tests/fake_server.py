"""A frontend that only notes what a scheduler does to it. Owner: tests."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

from tests.frame_model import rows_of
from tpc_server.boundary import codec
from tpc_server.boundary.batch_header import MalformedFrame, decode_batch
from tpc_server.boundary.messages import (
    GENERATE,
    SAMPLING,
    generate_template,
    pack_abort,
    pack_control,
)

PACK = codec.make_packer()


class Request:
    """What `recv_requests` gives out."""

    def __init__(self, header: bytes, buffers: list[tuple[str, Any]]) -> None:
        self.header = header
        self.buffers = buffers


class FakeServer:
    """The scheduler's side of `Server`, on queues. Everything pushed is kept, decoded."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inbox: list[Request] = []
        self.frames: list[list[dict[str, Any]]] = []  # rows of each frame
        self.malformed: list[MalformedFrame] = []
        self.control: dict[str, Any] = {}
        self.errors: list[tuple[str, str]] = []
        self.acks = 0
        self.closed = False
        self.woken = False

    # -- the scheduler's calls

    def recv_requests(self, max: int = 256) -> list[Request]:
        with self.changed:
            out, self.inbox = self.inbox[:max], self.inbox[max:]
            self.changed.notify_all()
            return out

    def wait_request(self, timeout_ms: int = 1000) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: bool(self.inbox) or self.woken, timeout_ms / 1e3)

    def push_decode_result_batch(self, header: bytes, data_cols: Any) -> bool:
        with self.changed:
            try:
                self.frames.append(rows_of(decode_batch(header, data_cols)))
            except MalformedFrame as error:
                self.malformed.append(error)
            self.changed.notify_all()
            return not self.closed

    def push_control_result(self, rid: str, payload: bytes) -> bool:
        with self.changed:
            self.control[rid] = codec.unpack(payload)
            self.changed.notify_all()
            return not self.closed

    def push_error(self, rid: str, message: str) -> bool:
        with self.changed:
            self.errors.append((rid, message))
            self.changed.notify_all()
            return not self.closed

    def push_health_ack(self) -> bool:
        with self.changed:
            self.acks += 1
            self.changed.notify_all()
            return not self.closed

    # -- the tests' calls

    def wake(self) -> None:
        """End a `wait_request`, so that a test need not wait for its time-out."""
        with self.changed:
            self.woken = True
            self.changed.notify_all()

    def send(self, header: bytes, buffers: Any = ()) -> None:
        with self.changed:
            self.inbox.append(Request(header, list(buffers)))
            self.changed.notify_all()

    def generate(self, rid: str, prompt: list[int], text: str | None = None, **given: Any) -> None:
        """A request; keywords are message or sampling fields by name."""
        message = generate_template()
        message[GENERATE["rid"]] = rid
        message[GENERATE["input_text"]] = text
        buffers = [("input_ids", array("q", prompt))]
        for name, value in given.items():
            if name == "token_ids_logprob":
                buffers.append((name, array("q", value)))
            elif name in SAMPLING:
                message[GENERATE["sampling_params"]][SAMPLING[name]] = value
            else:
                message[GENERATE[name]] = value
        self.send(PACK(message), buffers)

    def abort(self, rid: str, abort_all: bool = False) -> None:
        self.send(pack_abort(PACK, rid, abort_all))

    def ask(self, tag: str, rid: str, **fields: Any) -> None:
        self.send(pack_control(PACK, tag, rid, **fields))

    def wait(self, condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
        """Until something the scheduler pushes makes the condition true."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the scheduler did not get there"

    def rows(self, rid: str) -> list[dict[str, Any]]:
        """All rows of one request, in order."""
        with self.changed:
            return [row for frame in self.frames for row in frame if row["rid"] == rid]

    def finish(self, rid: str) -> Any:
        """Its finish reason, or None while it runs."""
        rows = self.rows(rid)
        return rows[-1]["finish"] if rows else None

    def ids(self, rid: str) -> list[int]:
        """All its ids so far."""
        return [token for row in self.rows(rid) for token in row["ids"]]
