"""A scheduler under the test's control. Owner: its own thread; tests talk to it through queues.

Every request is answered by a script: a list of frames, each the ids of one step and, on the
last, a finish reason. Frames go out as fast as they can, or one a call of `step`.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

import msgpack

LENGTH = "length"
# Control messages whose answers a server waits long for.
SLOW = (
    "CheckWeightsReqInput", "ClearHiCacheReqInput", "AttachHiCacheStorageReqInput",
    "DetachHiCacheStorageReqInput",
)  # fmt: skip


class Live:
    """One request the scheduler holds."""

    def __init__(self, header: list[Any], ids: list[int], frames: list[tuple[list[int], Any]]):
        self.header = header
        self.rid: str = header[1]
        self.ids = ids
        self.frames = frames
        self.at = 0


Script = Callable[[list[Any], list[int]], list[tuple[list[int], Any]]]


def echo(header: list[Any], ids: list[int]) -> list[tuple[list[int], Any]]:
    """The prompt's ids again, one a step, up to max_new_tokens."""
    limit = header[8][0]
    limit = len(ids) if limit is None else limit
    out = [ids[i % len(ids)] for i in range(limit)]
    finish = {"type": "length", "length": limit}
    if not out:
        return [([], finish)]
    return [([token], finish if i == limit - 1 else None) for i, token in enumerate(out)]


class FakeScheduler:
    """Drives a `Server`; keeps every message it received."""

    def __init__(self, server: Any, script: Script = echo, manual: bool = False) -> None:
        self.server = server
        self.script = script
        self.manual = manual
        self.received: list[list[Any]] = []
        self.prompts: list[list[int]] = []  # ids of every request, in order
        self.aborted: list[str] = []
        self.live: dict[str, Live] = {}
        self.changed = threading.Condition()
        self._steps = 0
        self._stop = False
        self.pushes = 0
        self.paused = False
        self.silent = False  # receives, never answers
        self.control: dict[str, Any] = {
            "GetInternalStateReq": {"internal_state": {}},
            "OpenSessionReqInput": {"success": True},
            **{tag: {"success": True} for tag in SLOW},
        }
        self._thread = threading.Thread(target=self._run, name="fake-scheduler", daemon=True)
        self._thread.start()

    # -- for tests -------------------------------------------------------------------

    def step(self, count: int = 1) -> None:
        """Let the scheduler push `count` more steps."""
        with self.changed:
            self._steps += count
            self.changed.notify_all()

    def wait_for(self, what: Callable[[FakeScheduler], Any], timeout: float = 20.0) -> None:
        """Until `what(self)` is true; AssertionError after the time-out."""
        with self.changed:
            if not self.changed.wait_for(lambda: what(self), timeout):
                raise AssertionError(
                    f"not reached: live {list(self.live)}, aborted {self.aborted}, "
                    f"received {[m[:2] for m in self.received]}"
                )

    def push(self, rows: list[tuple[str, Any, list[int], int]]) -> bool:
        """One frame: (rid, finish, ids, prompt tokens) a row. Any thread."""
        self.pushes += 1
        header = [
            [r[0] for r in rows], [r[1] for r in rows], [r[3] for r in rows],
            [len(r[2]) for r in rows], [0] * len(rows), [0] * len(rows),
        ]  # fmt: skip
        data = array("q", [i for r in rows for i in r[2]]).tobytes()
        return bool(self.server.push_decode_result_batch(msgpack.packb(header), [data]))

    def stop(self) -> None:
        """End the thread."""
        with self.changed:
            self._stop = True
            self.changed.notify_all()
        self._thread.join(10)

    # -- thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            self._receive()
            if not self._may_step():
                if self.manual and self.live:
                    self.server.wait_request(5)
                else:
                    self.server.wait_request(50)
                continue
            self._push_step()

    def _may_step(self) -> bool:
        if not self.live or self.silent or self.paused:
            return False
        if not self.manual:
            return True
        with self.changed:
            if self._steps:
                self._steps -= 1
                return True
        return False

    def _receive(self) -> None:
        for request in self.server.recv_requests(256):
            header = msgpack.unpackb(request.header, strict_map_key=False)
            buffers = dict(request.buffers)
            with self.changed:
                self.received.append(header)
                self._take(header, buffers)
                self.changed.notify_all()

    def _take(self, header: list[Any], buffers: dict[str, Any]) -> None:
        tag, rid = header[0], header[1]
        if tag == "TokenizedGenerateReqInput":
            ids = [int(i) for i in buffers["input_ids"]]
            self.prompts.append(ids)
            frames = self.script(header, ids)
            self.live[rid] = Live(header, ids, frames)
        elif tag == "AbortReq":
            self.aborted.append(rid)
            for live in [v for k, v in self.live.items() if header[3] or k.startswith(rid)]:
                del self.live[live.rid]
                message = "Aborted" if live.at else "Abort in waiting queue"
                if self.silent:
                    continue
                self.push([(live.rid, {"type": "abort", "message": message}, [], len(live.ids))])
        elif tag == "OpenSessionReqInput":
            answer = {"session_id": header[4], **self.control[tag]}
            self.server.push_control_result(rid, msgpack.packb(answer))
        elif tag == "PauseGenerationReqInput":
            self.paused = True
        elif tag == "ContinueGenerationReqInput":
            self.paused = False
        elif tag in self.control:
            self.server.push_control_result(rid, msgpack.packb(self.control[tag]))

    def _push_step(self) -> None:
        rows: list[tuple[str, Any, list[int], int]] = []
        with self.changed:
            for live in list(self.live.values()):
                if live.at >= len(live.frames):
                    continue
                ids, finish = live.frames[live.at]
                live.at += 1
                rows.append((live.rid, finish, ids, len(live.ids)))
                if finish is not None:
                    del self.live[live.rid]
            self.changed.notify_all()
        if rows:
            self.push(rows)
        else:
            self.server.wait_request(5)
