"""A synthetic scheduler behind the frontend boundary. Owner: the peer's main thread.

One token per running request and step, a step per tick, ids of real text: what a decoding engine
hands over, and nothing else. Everything a step needs is prepared before its tick, so that the
moment noted on the board is the hand-over itself. The header is encoded again only when the set
of running requests changed; a frontend sees ordinary frames either way.
"""

from __future__ import annotations

import time
from array import array
from typing import Any, Protocol

import msgpack
import numpy as np

from perf.harness.board import REQUESTS, STEPS, Board
from perf.harness.workloads import text_offset

TAG_GENERATE = "TokenizedGenerateReqInput"
TAG_ABORT = "AbortReq"
TAG_STATE = "GetInternalStateReq"
# positions in the request header and in its sampling parameters
RID, SAMPLING = 1, 8
MAX_NEW_TOKENS, SEED = 0, 24


class Boundary(Protocol):
    """The part of `Server` that a scheduler calls."""

    def recv_requests(self, max: int) -> list[Any]: ...
    def wait_request(self, timeout_ms: int) -> Any: ...
    def push_decode_result_batch(self, header: bytes, data_cols: list[bytes]) -> bool: ...
    def push_control_result(self, rid: str, payload: bytes) -> bool: ...
    def push_error(self, rid: str, message: str) -> bool: ...


class SyntheticScheduler:
    """Drives `server`. `tick_ns` 0 means as fast as it can. Counters are read at any time."""

    def __init__(self, server: Boundary, ids: bytes, board: Board, tick_ns: int) -> None:
        self.server = server
        self.board = board
        self.tick_ns = tick_ns
        self.ids = np.frombuffer(ids, dtype=np.int64)
        self.pack = msgpack.Packer().pack
        self.rids: list[str] = []
        self.prompt_tokens: list[int] = []
        self.offsets = np.zeros(0, dtype=np.int64)
        self.left = np.zeros(0, dtype=np.int64)
        self.budgets: list[int] = []
        self.steady_header: bytes | None = None
        self.step = 0
        self.tokens = 0
        self.requests = 0
        self.missed_ticks = 0
        self.push_cpu_ns = 0
        self.push_wall_ns = 0
        self.receive_cpu_ns = 0
        # cost of the steps with the most rows seen: "a push of a 256-row step"
        self.full_rows = 0
        self.full_push_cpu_ns = array("q")

    # admission

    def admit(self) -> bool:
        """Takes in what has arrived; says whether anything is running."""
        cpu = time.thread_time_ns()
        arrived = self.server.recv_requests(256)
        self.receive_cpu_ns += time.thread_time_ns() - cpu
        if arrived:
            offsets = []
            left = []
            for request in arrived:
                header = msgpack.unpackb(request.header, strict_map_key=False)
                if header[0] == TAG_GENERATE:
                    sampling = header[SAMPLING]
                    seed = sampling[SEED] or 0
                    prompt = dict(request.buffers)["input_ids"]
                    self.rids.append(header[RID])
                    self.prompt_tokens.append(len(prompt))
                    self.budgets.append(sampling[MAX_NEW_TOKENS])
                    offsets.append(text_offset(seed, len(self.ids)))
                    left.append(sampling[MAX_NEW_TOKENS])
                    self.board.first_step[seed % REQUESTS] = self.step
                    self.requests += 1
                elif header[0] == TAG_ABORT:
                    self._drop(header[RID])
                elif header[0] == TAG_STATE:
                    # /server_info asks; our own counters come with the answer
                    state: dict[str, Any] = {
                        "rid": None,
                        "http_worker_ipc": None,
                        "internal_state": {},
                    }
                    self.server.push_control_result(header[RID], bytes(self.pack(state)))
                else:
                    self.server.push_error(header[RID], "the synthetic scheduler only generates")
            if offsets:
                self.offsets = np.concatenate([self.offsets, np.array(offsets)])
                self.left = np.concatenate([self.left, np.array(left)])
            self.steady_header = None
        return bool(self.rids)

    def wait(self, timeout_ms: int) -> None:
        """Parks until a request comes or the time is up."""
        cpu = time.thread_time_ns()
        self.server.wait_request(timeout_ms)
        self.receive_cpu_ns += time.thread_time_ns() - cpu

    def _drop(self, rid: str) -> None:
        if rid in self.rids:
            self._keep([i for i, each in enumerate(self.rids) if each != rid])

    def _keep(self, rows: list[int]) -> None:
        self.rids = [self.rids[i] for i in rows]
        self.prompt_tokens = [self.prompt_tokens[i] for i in rows]
        self.budgets = [self.budgets[i] for i in rows]
        self.offsets = self.offsets[rows]
        self.left = self.left[rows]
        self.steady_header = None

    # one step

    def prepare(self) -> tuple[bytes, bytes, list[int]]:
        """Header, token ids and finishing rows of the next step, for all running requests."""
        n = len(self.rids)
        data = self.ids.take(self.offsets, mode="wrap").tobytes()
        finishing = np.flatnonzero(self.left <= 1).tolist()
        if finishing:
            reasons: list[dict[str, Any] | None] = [None] * n
            for row in finishing:
                reasons[row] = {"type": "length", "length": self.budgets[row]}
            header = self._header(reasons)
        else:
            if self.steady_header is None:
                self.steady_header = self._header([None] * n)
            header = self.steady_header
        return header, data, finishing

    def _header(self, reasons: list[dict[str, Any] | None]) -> bytes:
        n = len(self.rids)
        zeros = [0] * n
        columns = [self.rids, reasons, self.prompt_tokens, [1] * n, zeros, zeros]
        return bytes(self.pack(columns))

    def push(self, header: bytes, data: bytes, finishing: list[int]) -> bool:
        """Hands one step over; False when the server is shutting down."""
        n = len(self.rids)
        cpu = time.thread_time_ns()
        start = time.monotonic_ns()
        self.board.push_ns[self.step % STEPS] = start
        alive = self.server.push_decode_result_batch(header, [data])
        self.push_wall_ns += time.monotonic_ns() - start
        cpu = time.thread_time_ns() - cpu
        self.push_cpu_ns += cpu
        if n > self.full_rows:
            self.full_rows = n
            self.full_push_cpu_ns = array("q")
        if n == self.full_rows:
            self.full_push_cpu_ns.append(cpu)
        self.step += 1
        self.tokens += n
        self.offsets += 1
        self.left -= 1
        if finishing:
            gone = set(finishing)
            self._keep([i for i in range(n) if i not in gone])
        return alive
