"""Full rings, both ways: what waits, what is refused, that nothing is lost; wake-ups."""

from __future__ import annotations

import json
import select
import threading
import time
from array import array

import msgpack
import pytest

from tests.e2e.parity_scheduler import by_hand, next_event
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import Client
from tpc_server.mesh import FRAME_RING_BYTES

DONE = {"type": "length", "length": 2}
STALLS_S = (2.5, 5, 10)  # of a stopped core; what is tried meanwhile takes milliseconds


class Pusher(threading.Thread):
    """The scheduler's pushes on a thread of their own; `done` counts the calls that returned."""

    def __init__(self, calls):
        super().__init__(daemon=True)
        self.calls = calls
        self.returned = []
        self.start()

    def run(self):
        for call in self.calls:
            self.returned.append(call())

    @property
    def done(self):
        return len(self.returned)

    def finish(self):
        """Wait for the end: what each call returned."""
        self.join(30)
        assert not self.is_alive()
        return self.returned


def hidden_frame(rid, floats, positions, finish):
    """One row with an id and `positions` rows of hidden states."""
    per = len(floats) // positions
    header = [[rid], [finish], [3], [1], [0], [0], *[[]] * 10, [positions], [per] * positions]
    return msgpack.packb(header), [array("q", [120]).tobytes(), *[b""] * 12, floats.tobytes()]


@pytest.mark.parametrize("cores", [["1"], ["2"]], ids="".join)
def test_a_frame_larger_than_the_ring_passes_whole(model_folder, cores):
    floats = array("f", range(256)) * (64 << 10)  # 64 MB
    assert len(floats) * 4 == 16 * FRAME_RING_BYTES
    with by_hand(model_folder, {"plan": placed(cores)}) as run:
        client, rid = run.open("big")
        other, other_rid = run.open("other", stream=False)
        header, data = hidden_frame(rid, floats, 4, None)
        pushes = Pusher(
            [
                lambda: run.push((rid, "a", None)),
                lambda: run.server.push_batch(header, data),
                lambda: run.push((rid, "b", DONE), (other_rid, "ok", DONE)),
            ]
        )
        # The frame is accepted only if every one of its bytes is there; this request did not
        # ask for the states, so its row is an ordinary one.
        assert client.answer().events()[-2]["text"] == "axb"
        assert other.answer().json()["text"] == "ok"
        assert pushes.finish() == [True] * 3
        # A core without a request is left out.
        until(run, lambda: {c["frames"] for c in run.server.counters() if c["requests"]} == {3})
        assert run.total("malformed") == 0


def test_the_values_of_such_a_frame_arrive_unchanged(model_folder):
    floats = array("f", [k % 97 for k in range(1_080_000)])
    assert len(floats) * 4 > FRAME_RING_BYTES
    with by_hand(model_folder, enable_return_hidden_states=True) as run:
        client, rid = run.open("one", stream=False, return_hidden_states=True)
        pusher = Pusher([lambda: run.server.push_batch(*hidden_frame(rid, floats, 3, DONE))])
        body = client.answer().json()
        assert pusher.finish() == [True]
        rows = body["meta_info"]["hidden_states"]
        assert [len(row) for row in rows] == [360_000] * 3
        assert [value for row in rows for value in row] == floats.tolist()


def core_of(wire_rid):
    """The I/O core that a request is on."""
    return int(wire_rid.partition("#")[2][:2], 16)


def one_on_each(run):
    """Two streams, the first on core 0 and the second on core 1: [(connection, wire rid)]."""
    found = {}
    for k in range(60):
        client, rid = run.open(f"s{k}")
        if core_of(rid) in found:
            client.reset()
            run.clients.remove(client)
            assert run.take()[0][:2] == ["AbortReq", rid]
        else:
            found[core_of(rid)] = client, rid
        if len(found) == 2:
            return found[0], found[1]
    raise AssertionError("all connections came to one core")


def heartbeat(run, core):
    return run.server.counters()[core]["heartbeat_ns"]


def stop_core(run, core, seconds):
    """Stop a core; returns once it stands, with its last heartbeat."""
    run.server.command(b"stall", str(seconds).encode(), only=core)
    seen, same = heartbeat(run, core), 0
    for _ in range(400):
        run.server.command(b"nothing", only=core)  # rung and awake, it would beat
        run.server.wait_event(3)
        now = heartbeat(run, core)
        same = same + 1 if now == seen else 0
        seen = now
        if same == 10:
            return seen
    raise AssertionError("the core does not stop")


def test_a_stopped_core_delays_pushes_only_once_its_own_ring_is_full(model_folder):
    # A machine that is busy with other things may need a second try, and a longer stop.
    assert any(pushes_beside_a_stopped_core(model_folder, seconds) for seconds in STALLS_S)


def pushes_beside_a_stopped_core(model_folder, seconds):
    """Whether the other core was served while the first one stood; nothing is lost in any case."""
    cap = 40
    with by_hand(model_folder, {"plan": placed(["2"])}, from_scheduler_cap=cap) as run:
        # The first core is the one a push comes to first.
        (stopped, stopped_rid), (live, live_rid) = one_on_each(run)
        stood = stop_core(run, 0, seconds)
        total = 3 * cap
        pusher = Pusher(
            [
                lambda: run.push((live_rid, "l", None), (stopped_rid, "s", None))
                for _ in range(total)
            ]
        )
        live.head()
        # One more than the stopped core's ring holds: the push that waits for it has filled the
        # other ring first.
        for k in range(1, cap + 2):
            assert next_event(live)["text"] == "l" * k
        done = pusher.done
        more = live.buffer or select.select([live.sock], [], [], 0)[0]
        stands = heartbeat(run, 0) == stood
        assert not stands or (done == cap and not more)
        assert pusher.finish() == [True] * total
        stopped.head()
        for client, letter, first in ((live, "l", cap + 2), (stopped, "s", 1)):
            for k in range(first, total + 1):
                assert next_event(client)["text"] == letter * k
        run.push((live_rid, "!", DONE), (stopped_rid, "!", DONE))
        for client, letter in ((live, "l"), (stopped, "s")):
            last = next_event(client)
            assert last["text"] == letter * total + "!"
            assert last["meta_info"]["completion_tokens"] == total + 1
            assert next_event(client) == "[DONE]"
        assert run.total("malformed") == run.total("resets") == 0
        return stands


def test_a_push_that_waits_ends_with_false_on_shutdown(model_folder):
    with by_hand(model_folder, {"plan": placed(["1"])}, from_scheduler_cap=4) as run:
        _, rid = run.open("one")
        run.server.command(b"stall", b"1.0", only=0)
        pusher = Pusher([lambda: run.push((rid, "a", None)) for _ in range(50)])
        run.server.shutdown()
        returned = pusher.finish()
        assert returned[-1] is False
        first = returned.index(False)
        assert returned == [True] * first + [False] * (50 - first)
        server = run.server
        assert server.push_decode_result_batch(b"", []) is False
        assert server.push_control_result("r", b"") is False
        assert server.push_error("r", "no") is False
        assert server.push_health_ack() is False
        assert server.wait_request(10_000) is False
        assert server.recv_requests() == []


def answered(client):
    """Whether bytes of an answer are there."""
    return bool(client.buffer or select.select([client.sock], [], [], 0)[0])


def test_a_full_ring_to_the_scheduler_is_503_at_once(model_folder):
    cap, more = 5, 4
    with by_hand(model_folder, {"plan": placed(["1"])}, to_scheduler_cap=cap) as run:
        kept = []
        for k in range(cap):
            kept.append(run.send("abc", rid=f"kept{k}", stream=k % 2 == 0))
            until(run, lambda k=k: run.total("encoded") == k + 1)
        # Nobody drains: no other message moves, and each of these is answered all the same.
        for k in range(more):
            answer = run.send("abc", rid=f"late{k}", stream=k % 2 == 0).answer()
            assert answer.status == 503
            assert answer.json()["error"]["code"] == 503
            assert "full" in answer.json()["error"]["message"]
        assert not any(answered(client) for client in kept)
        # An abort has a lane of its own, and comes after its request.
        kept.pop().reset()
        until(run, lambda: run.total("aborts") == 1)
        messages = run.take(cap + 1)
        assert [m[0] for m in messages] == ["TokenizedGenerateReqInput"] * cap + ["AbortReq"]
        assert [m[1].partition("#")[0] for m in messages[:cap]] == [f"kept{k}" for k in range(cap)]
        assert messages[cap][1] == messages[cap - 1][1]
        run.push(*[(m[1], f"{k}!", DONE) for k, m in enumerate(messages[: cap - 1])])
        for k, client in enumerate(kept):
            answer = client.answer()
            body = answer.events()[-2] if k % 2 == 0 else answer.json()
            assert answer.status == 200 and body["text"] == f"{k}!"
        # Room again: the next request is served.
        client, rid = run.open("next", stream=False)
        run.push((rid, "ok", DONE))
        assert client.answer().json()["text"] == "ok"


def test_every_push_wakes_a_waiting_scheduler(model_folder):
    """A lost wake-up would show as a wait of the whole time-out."""
    wait_ms, rounds = 30_000, 150
    with by_hand(model_folder) as run, Client(run.address) as client:
        server = run.server
        got: list[float] = []

        def schedule():
            while len(got) < rounds:
                begun = time.monotonic()
                server.wait_request(wait_ms)
                waited = time.monotonic() - begun
                for request in server.recv_requests():
                    rid = msgpack.unpackb(request.header)[1]
                    got.append(waited)
                    run.push((rid, "ok", DONE))

        scheduler = threading.Thread(target=schedule, daemon=True)
        scheduler.start()
        for k in range(rounds):
            client.request("POST", "/generate", {"text": "abc"})
            body = json.loads(client.answer().body)
            assert body["text"] == "ok", k
        scheduler.join(10)
        assert len(got) == rounds
        assert max(got) < wait_ms / 1000 / 3


def test_waiting_with_and_without_something_to_take(model_folder):
    with by_hand(model_folder) as run:
        server = run.server
        begun = time.monotonic()
        assert server.wait_request(60) is False
        assert time.monotonic() - begun >= 0.055
        assert server.recv_requests() == []
        run.send(rid="a")
        assert server.wait_request(20_000) is True
        # It is still there: the next wait need not sleep, and takes nothing away.
        begun = time.monotonic()
        assert server.wait_request(20_000) is True
        assert time.monotonic() - begun < 5
        assert [m[1].partition("#")[0] for m in run.take()] == ["a"]


def test_a_drain_takes_no_more_than_it_is_asked_to(model_folder):
    with by_hand(model_folder) as run:
        run.send(["x"] * 20, rid="many")
        until(run, lambda: run.total("encoded") == 20)
        taken = [len(run.server.recv_requests(k)) for k in (1, 3, 0, 256)]
        assert taken == [1, 3, 16, 0]
