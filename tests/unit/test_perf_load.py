"""The benchmark's clients and its scheduler, against small peers in this process."""

from __future__ import annotations

import json
import threading
from array import array
from pathlib import Path
from typing import Any

import msgpack
import pytest

from perf.clients.stream_client import (
    StreamLoad,
    budgets_of,
    render,
    request_body,
    sample_text,
)
from perf.clients.unary_client import UnaryLoad, answer_complete
from perf.clients.unary_client import request_body as unary_body
from perf.floor import BODY_BYTES, UNARY, Floor, frame_of
from perf.harness.board import Board
from perf.harness.ports import free_port
from perf.harness.scheduler import SyntheticScheduler
from perf.harness.workloads import text_offset

IDS = array("q", range(1000, 2000)).tobytes()


class FloorThread:
    """The floor in a thread; `every` > 1 makes it cheat: several events only every so often."""

    def __init__(self, board: Board, tick_ns: int, every: int = 1) -> None:
        self.port = free_port()
        self.floor = Floor(self.port, board, tick_ns, 233)
        if every > 1:
            self.floor.frame = b"".join([self.floor.frame] * every)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stop.is_set():
            self.floor.listen(0.002)
            if self.floor.left:
                self.floor.tick()

    def __enter__(self) -> FloorThread:
        self.thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop.set()
        self.thread.join(10)
        self.floor.listener.close()
        self.floor.poller.close()
        for sock in self.floor.socks.values():
            sock.close()


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "board", create=True)


def load(peer: FloorThread, board: Board, streams: int, budgets: list[int]) -> dict[str, Any]:
    client = StreamLoad(peer.port, "/generate", streams, budgets)
    requests = [
        render("/generate", request_body("/generate", f"p{i}", tokens, 50 + i))
        for i, tokens in enumerate(budgets)
    ]
    client.run(requests, 30)
    return client.summary(board, 50)


def test_events_and_latencies_of_every_token(board):
    with FloorThread(board, 0) as peer:
        found = load(peer, board, 5, [20] * 5)
    assert (found["done"], found["failed"], found["events"]) == (5, 0, 100)
    assert found["latency_us"]["p1"] > 0
    assert found["latency_us"]["max"] < 30e6
    assert 233 <= found["bytes_per_event"] < 260


def test_streams_one_after_another_on_a_connection(board):
    budgets = budgets_of(12, 10, 0.5, 3)
    assert len(set(budgets)) > 3 and min(budgets) >= 5 and max(budgets) <= 15
    with FloorThread(board, 0) as peer:
        found = load(peer, board, 4, budgets)
    assert (found["done"], found["failed"]) == (12, 0)
    assert found["events"] == found["tokens"] == sum(budgets)


def test_a_frame_sent_twice_is_counted_twice(board):
    with FloorThread(board, 0, every=2) as peer:
        found = load(peer, board, 2, [10, 10])
    assert found["events"] == 40


def test_budgets_without_spread():
    assert budgets_of(3, 7, 0.0, 1) == [7, 7, 7]


def test_unary_load(board):
    with FloorThread(board, 0) as peer:
        client = UnaryLoad(peer.port, 3)
        requests = [render("/generate", unary_body("/generate", f"p{i}", 1, i)) for i in range(9)]
        client.run(requests, 0.2, 30)
    found = client.summary()
    assert found["failed"] == 0 and found["done"] >= 3
    assert found["done"] == peer.floor.requests == len(client.latencies_ns)


def test_an_answer_is_complete_at_its_last_byte_only():
    assert [n for n in range(len(UNARY) + 1) if answer_complete(UNARY[:n])] == [len(UNARY)]
    with pytest.raises(ValueError, match="without Content-Length"):
        answer_complete(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
    assert len(UNARY.partition(b"\r\n\r\n")[2]) == BODY_BYTES


@pytest.mark.parametrize("size", [200, 233, 263, 264, 272, 273, 290, 4200])
def test_floor_frames_have_exactly_the_size_asked_for(size):
    frame = frame_of(size)
    assert len(frame) == size
    head, _, rest = frame.partition(b"\r\n")
    assert rest.startswith(b"data: ") and rest.endswith(b"\n\n\r\n")
    assert int(head, 16) == len(rest) - 2


def test_sample_text_of_both_modes():
    def stream(texts: list[str], ids: list[list[int]]) -> bytes:
        events = [
            b"data: " + json.dumps({"text": text, "output_ids": each}).encode() + b"\n\n"
            for text, each in zip(texts, ids, strict=True)
        ]
        return b"HTTP/1.1 200 OK\r\n\r\n" + b"\r\n".join([*events, b"data: [DONE]\n\n"])

    assert sample_text(stream(["a", "b"], [[1], [2]]), False) == ("ab", [1, 2])
    assert sample_text(stream(["a", "ab"], [[1], [1, 2]]), True) == ("ab", [1, 2])


class FakeBoundary:
    """Requests to give out, and the frames that came back, decoded."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.frames: list[tuple[list[Any], list[int]]] = []
        self.errors: list[str] = []
        self.states: list[tuple[str, Any]] = []

    def ask(self, rid: str, tokens: int, seed: int, tag: str = "TokenizedGenerateReqInput") -> None:
        sampling = [tokens] + [None] * 23 + [seed] + [None] * 8
        header = msgpack.packb([tag, rid, None, "text", None, None, None, None, sampling])
        request = type("Request", (), {"header": header, "buffers": [("input_ids", [7, 8, 9])]})
        self.waiting.append(request)

    def recv_requests(self, max: int) -> list[Any]:
        given, self.waiting = self.waiting[:max], self.waiting[max:]
        return given

    def wait_request(self, timeout_ms: int) -> bool:
        return False

    def push_decode_result_batch(self, header: bytes, data_cols: list[bytes]) -> bool:
        self.frames.append((msgpack.unpackb(header), array("q", data_cols[0]).tolist()))
        return True

    def push_control_result(self, rid: str, payload: bytes) -> bool:
        self.states.append((rid, msgpack.unpackb(payload)))
        return True

    def push_error(self, rid: str, message: str) -> bool:
        self.errors.append(rid)
        return True


def steps(scheduler: SyntheticScheduler, count: int) -> None:
    for _ in range(count):
        if scheduler.admit():
            assert scheduler.push(*scheduler.prepare())


def test_scheduler_pushes_the_text_of_each_request(board):
    boundary = FakeBoundary()
    scheduler = SyntheticScheduler(boundary, IDS, board, 0)
    boundary.ask("a", 3, 5)
    steps(scheduler, 1)
    boundary.ask("b", 2, 999)
    steps(scheduler, 5)
    got: dict[str, list[int]] = {"a": [], "b": []}
    ends: dict[str, Any] = {}
    for number, (columns, ids) in enumerate(boundary.frames):
        rids, reasons, prompt, lens, cached, reasoning = columns
        assert set(map(len, columns)) == {len(ids)} and set(lens) == {1} and set(prompt) == {3}
        assert set(cached) == set(reasoning) == {0}
        for rid, reason, token in zip(rids, reasons, ids, strict=True):
            got[rid].append(token)
            if reason:
                ends[rid] = (number, reason)
    for rid, seed, tokens in (("a", 5, 3), ("b", 999, 2)):
        at = text_offset(seed, 1000)
        assert got[rid] == [1000 + (at + i) % 1000 for i in range(tokens)]
    assert ends == {
        "a": (2, {"type": "length", "length": 3}),
        "b": (2, {"type": "length", "length": 2}),
    }
    assert board.first_step[5] == 0 and board.first_step[999] == 1
    assert all(board.push_ns[step] > 0 for step in range(3))
    assert (scheduler.tokens, scheduler.step, scheduler.rids) == (5, 3, [])


def test_scheduler_drops_aborted_requests_and_refuses_others(board):
    boundary = FakeBoundary()
    scheduler = SyntheticScheduler(boundary, IDS, board, 0)
    boundary.ask("a", 50, 1)
    boundary.ask("b", 50, 2)
    steps(scheduler, 2)
    boundary.ask("a", 0, 0, tag="AbortReq")
    boundary.ask("c", 0, 0, tag="FlushCacheReqInput")
    boundary.ask("d", 0, 0, tag="GetInternalStateReq")
    steps(scheduler, 1)
    assert boundary.frames[-1][0][0] == ["b"]
    assert boundary.errors == ["c"]
    assert [(rid, state["internal_state"]) for rid, state in boundary.states] == [("d", {})]
    at = text_offset(2, 1000)
    assert [frame[1][-1] for frame in boundary.frames] == [1000 + (at + i) % 1000 for i in range(3)]
