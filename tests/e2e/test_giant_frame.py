"""A step of hidden states, many times larger than the ring it goes through."""

from __future__ import annotations

import random
import threading
from array import array
from pathlib import Path

import msgpack
import pytest

from tests.e2e.parity_scheduler import by_hand, next_event
from tests.e2e.test_placements import placed
from tests.http_client import Client
from tpc_server.mesh import FRAME_RING_BYTES

WIDTH = 4096  # numbers a position
DONE = {"type": "length", "length": 1}


def status_bytes(name: str) -> int:
    """A size out of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return int(line.split()[1]) << 10


class Giant:
    """Positions of one request, all with the same numbers, and their JSON."""

    def __init__(self, size: int, exact: bool) -> None:
        numbers = random.Random(size)
        values = array("f", [numbers.gauss(0, 1) for _ in range(WIDTH)])
        if exact:  # as of a model that computes in bfloat16
            halves = memoryview(values).cast("B").cast("H")
            for at in range(0, len(halves), 2):
                halves[at] = 0
        self.count = size // (4 * WIDTH)
        self.column = values.tobytes() * self.count
        self.one = b"[" + ",".join(map(repr, values)).encode() + b"]"

    @property
    def text_bytes(self) -> int:
        return (len(self.one) + 1) * self.count

    def read(self, client: Client) -> None:
        """The array out of an answer, position by position, never whole."""
        client.until(b'"hidden_states":[')
        for k in range(self.count):
            assert client.take(len(self.one)) == self.one
            assert client.take(1) == (b"," if k < self.count - 1 else b"]")


@pytest.mark.parametrize(
    ("megabytes", "exact"),
    [(4, False), (16, True), pytest.param(256, True, marks=[pytest.mark.full])],
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
@pytest.mark.timeout(900)
def test_it_arrives_whole_within_bounded_memory(model_folder, megabytes, exact, stream):
    """Beside it in the frame a row of another stream, behind it a frame of that one alone."""
    giant = Giant(megabytes << 20, exact)
    assert len(giant.column) == megabytes << 20 >= FRAME_RING_BYTES
    options = {"plan": placed(["1"])}
    with by_hand(model_folder, options, enable_return_hidden_states=True) as run:
        other, other_rid = run.open("other", sampling_params={"max_new_tokens": 9})
        client, rid = run.open("giant", stream, return_hidden_states=True)
        client.sock.settimeout(600)
        run.push((other_rid, "a", None))
        assert other.head()[0] == 200 and next_event(other)["text"] == "a"
        header = [
            [rid, other_rid], [DONE, None], [3, 3], [1, 1], [0, 0], [0, 0], *[[]] * 10,
            [giant.count, 0], [WIDTH] * giant.count,
        ]  # fmt: skip
        ids = array("q", [97, 98]).tobytes()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        before = status_bytes("VmRSS")
        pushed: list[bool] = []

        def push():
            pushed.append(run.server.push_batch(msgpack.packb(header), [ids, giant.column]))
            pushed.append(run.push((other_rid, "c", DONE)))

        pushing = threading.Thread(target=push)
        pushing.start()
        assert client.head()[0] == 200
        giant.read(client)
        assert next_event(other)["text"] == "ab"
        last = next_event(other)
        assert last["text"] == "abc" and last["meta_info"]["finish_reason"] == DONE
        pushing.join(600)
        assert pushed == [True, True]
        grown = status_bytes("VmHWM") - before
        # The frame in pieces and joined; its text, and that in an answer that waits for its reader.
        bound = 2 * len(giant.column) + 4 * giant.text_bytes + (32 << 20)
        assert grown < bound, f"{grown >> 20} MiB of {bound >> 20}"
        fresh, rid = run.open("next", stream=False)
        run.push((rid, "ok", DONE))
        assert fresh.answer().json()["text"] == "ok"
