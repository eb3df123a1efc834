"""Malformed frames: none of it is delivered, its requests end with 500, nobody else notices."""

from __future__ import annotations

from array import array

import msgpack
import pytest

from tests.e2e.parity_scheduler import by_hand, frame, next_event
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import Client, call

TEXT = "internal error: malformed scheduler output frame"
DONE = {"type": "length", "length": 6}
NAN = float("nan")


def columns(rids):
    """A good frame's columns: two ids a row."""
    n = len(rids)
    return [rids, [None] * n, [3] * n, [2] * n, [0] * n, [0] * n]


def ids(rids, count=2):
    return array("q", [120] * count * len(rids)).tobytes()


def replaced(at, value):
    """The good frame with column `at` made from the number of rows."""

    def make(rids):
        made = columns(rids)
        made += [[]] * (at + 1 - len(made))
        made[at] = value(len(rids))
        return msgpack.packb(made), [ids(rids)]

    return make


BAD = {
    "header cut": lambda rids: (msgpack.packb(columns(rids))[:-1], [ids(rids)]),
    "header with a tail": lambda rids: (msgpack.packb(columns(rids)) + b"\0", [ids(rids)]),
    "five columns": lambda rids: (msgpack.packb(columns(rids)[:5]), [ids(rids)]),
    "25 columns": lambda rids: (msgpack.packb(columns(rids) + [[]] * 19), [ids(rids)]),
    "data short": lambda rids: (msgpack.packb(columns(rids)), [ids(rids)[:-8]]),
    "data long": lambda rids: (msgpack.packb(columns(rids)), [ids(rids), b"\0" * 8]),
    "half an id": lambda rids: (msgpack.packb(columns(rids)), [ids(rids)[:-3]]),
    "no data": lambda rids: (msgpack.packb(columns(rids)), []),
    "short column": replaced(4, lambda n: [0] * (n - 1)),
    "negative length": replaced(3, lambda n: [2] * (n - 1) + [-2]),
    "length is no number": replaced(3, lambda n: ["2"] * n),
    "finish is no object": replaced(1, lambda n: ["stop"] * n),
    "finish holds no JSON number": replaced(1, lambda n: [{"type": "length", "length": NAN}] * n),
    "finish holds bytes": replaced(1, lambda n: [None] * (n - 1) + [{"type": b"length"}]),
    "finish has a key that is no string": replaced(1, lambda n: [{b"type": "stop"}] * n),
    "logprobs without data": replaced(6, lambda n: [1] * n),
    "extras of another batch": replaced(7, lambda n: [0] * (n + 1)),
    "positions that do not add up": replaced(9, lambda n: [1]),
    "a latency column too short": replaced(22, lambda n: [0.5] * (n - 1)),
}


@pytest.fixture
def run(model_folder):
    with by_hand(model_folder, {"plan": placed(["2"])}) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server for all the bad frames: whatever one does to it, the next ones see."""
    from tests import tiny_tokenizer

    with by_hand(
        tiny_tokenizer.write(tmp_path_factory.mktemp("model")), {"plan": placed(["2"])}
    ) as made:
        yield made


@pytest.mark.parametrize("kind", BAD)
def test_the_whole_frame_is_rejected_and_nothing_else(shared, kind):
    run = shared
    before = run.total("malformed")
    good, good_rid = run.open("good")
    unary, unary_rid = run.open("unary", stream=False)
    begun, begun_rid = run.open("begun")
    fresh, fresh_rid = run.open("fresh")
    assert run.push((good_rid, "a", None), (begun_rid, "b", None))
    assert good.head()[0] == begun.head()[0] == 200
    assert next_event(good)["text"] == "a" and next_event(begun)["text"] == "b"

    header, data = BAD[kind]([unary_rid, "nobody", begun_rid, fresh_rid])
    assert run.server.push_decode_result_batch(header, data) is True

    answer = unary.answer()
    assert (answer.status, answer.json()["error"]) == (500, {"message": TEXT, "code": 500})
    answer = fresh.answer()  # its head was not sent yet: a real status
    assert (answer.status, answer.json()["error"]["message"]) == (500, TEXT)
    error = next_event(begun)["error"]
    assert (error["message"], error["code"]) == (TEXT, 500)
    assert next_event(begun) == "[DONE]" and begun.chunk() == b""
    # The scheduler is told of exactly these three.
    aborts = run.take(3)
    assert {m[0] for m in aborts} == {"AbortReq"}
    assert {m[1] for m in aborts} == {unary_rid, begun_rid, fresh_rid}

    # Late rows of the failed ones are nobody's; the other stream goes on and ends right.
    assert run.push((unary_rid, "zz", DONE), (good_rid, "bc", None), (begun_rid, "z", None))
    assert run.push((good_rid, "def", DONE))
    assert next_event(good)["text"] == "abc"
    last = next_event(good)
    assert (last["text"], last["meta_info"]["finish_reason"]) == ("abcdef", DONE)
    assert next_event(good) == "[DONE]" and good.chunk() == b""
    until(run, lambda: not run.total("live_requests") and not run.total("inflight"))
    # Every core that has live requests reads every frame whole.
    assert run.total("malformed") - before in (1, 2)
    assert run.server.recv_requests() == []


def test_a_stream_gets_an_error_frame_and_done(run):
    client, rid = run.open("one")
    run.push((rid, "x", None))
    client.head()
    assert next_event(client)["text"] == "x"
    run.server.push_batch(*BAD["data short"]([rid]))
    assert next_event(client) == {
        "error": {"message": TEXT, "type": "internal_error", "code": 500, "retryable": False}
    }
    assert next_event(client) == "[DONE]"
    assert client.chunk() == b""
    # The connection is kept: the error was within the answer.
    client.request("GET", "/v1/models")
    assert client.answer().status == 200


def test_one_child_ends_its_whole_batch(run):
    client = run.send(["ab", "cd", "ef"], rid="bat", stream=False)
    wire = [m[1] for m in run.take(3)]
    other, other_rid = run.open("other", stream=False)
    run.push((wire[0], "1", DONE), (wire[1], "2", None), (wire[2], "3", None))
    run.server.push_batch(*BAD["data long"]([wire[1]]))
    answer = client.answer()
    assert (answer.status, answer.json()["error"]["message"]) == (500, TEXT)
    assert {m[1] for m in run.take(2)} == {wire[1], wire[2]}  # the first had ended
    run.push((other_rid, "fine", DONE))
    assert other.answer().json()["text"] == "fine"


def test_nothing_readable_fails_nobody(run):
    client, rid = run.open("one", stream=False)
    for header in (b"", b"\xc1", b"\x93", b"\x01", msgpack.packb({"rids": [rid]})):
        assert run.server.push_batch(header, [b"12345678"]) is True
    run.push((rid, "ok", DONE))
    assert client.answer().json()["text"] == "ok"
    until(run, lambda: run.total("malformed") == 5)


def test_rids_before_the_damage_are_still_read(run):
    """A header that breaks off inside its first column names who it can."""
    first, first_rid = run.open("first", stream=False)
    second, second_rid = run.open("second", stream=False)
    packed = msgpack.packb(columns([first_rid, second_rid]))
    cut = packed.index(msgpack.packb(second_rid)) + 4
    assert run.server.push_batch(packed[:cut], [ids([1, 2])]) is True
    assert first.answer().status == 500
    run.push((second_rid, "fine", DONE))
    assert second.answer().json()["text"] == "fine"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xc1", id="no msgpack"),
        pytest.param(b"", id="empty"),
        pytest.param(msgpack.packb({"internal_state": {"token_usage": NAN}}), id="NaN"),
        pytest.param(
            msgpack.packb({"internal_state": {"memory_usage": {"weight": NAN}}}), id="deep NaN"
        ),
    ],
)
def test_a_malformed_control_answer_ends_only_its_request(run, payload):
    other, rid = run.open("one", stream=False)
    asks = Client(run.address)
    run.clients.append(asks)
    asks.request("GET", "/server_info")
    message = run.take()[0]
    assert message[0] == "GetInternalStateReq"
    assert run.server.push_control_result(message[1], payload) is True
    run.push((rid, "fine", DONE))
    assert asks.answer().status in (200, 500)
    assert other.answer().json()["text"] == "fine"
    assert run.total("resets") == 0


def test_a_request_the_scheduler_cannot_read_is_400(run):
    other, other_rid = run.open("other", stream=False)
    unary, rid = run.open("unary", stream=False)
    stream, stream_rid = run.open("stream")
    run.push((stream_rid, "x", None))
    stream.head()
    assert next_event(stream)["text"] == "x"
    reason = "invalid request: Expected `int`, got `str` - at `$.priority`"
    assert run.server.push_error(rid, reason) is True
    assert run.server.push_error(stream_rid, reason) is True
    assert run.server.push_error("nobody", reason) is True
    answer = unary.answer()
    assert (answer.status, answer.json()["error"]) == (400, {"message": reason, "code": 400})
    assert next_event(stream)["error"]["message"] == reason
    assert next_event(stream) == "[DONE]"
    run.push((other_rid, "fine", DONE))
    assert other.answer().json()["text"] == "fine"


def test_a_frame_of_nobody_is_no_frame(run):
    """No rows at all, and rows of rids that were never here."""
    client, rid = run.open("one", stream=False)
    assert run.server.push_batch(*frame([])) is True
    assert run.push(("ghost", "boo", DONE))
    run.push((rid, "ok", DONE))
    assert client.answer().json()["text"] == "ok"
    until(run, lambda: run.total("frames") == 3)  # the other core has nobody
    assert run.total("malformed") == 0


def test_an_id_outside_the_vocabulary_is_no_malformed_frame(run):
    """The scheduler's own affair: such an id shows as nothing, the step's others as they are."""
    client, rid = run.open("one", stream=False)
    run.push((rid, [97, 10**6, 98], DONE))
    body = client.answer().json()
    assert body["text"] == "ab" and body["output_ids"] == [97, 10**6, 98]
    assert call(run.address, "GET", "/v1/models").status == 200
