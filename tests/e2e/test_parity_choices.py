"""Choices of docs/COMPATIBILITY.md that no recorded answer shows, each by an answer of ours."""

from __future__ import annotations

import json

import msgpack
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests import tiny_tokenizer
from tests.e2e.parity_scheduler import by_hand, next_event
from tests.http_client import Client, call
from tpc_server.text.stops import count_stop_tokens

DONE = {"type": "length", "length": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tiny_tokenizer.write(tmp_path_factory.mktemp("model"))
    secret = {"api_key": "K1", "admin_api_key": "K2", "model_path": "m", "hf_token": "K3"}
    with by_hand(folder, launch_server_info=json.dumps(secret)) as made:
        yield made


def test_key_order(run):
    for stream in (False, True):
        client, rid = run.open("one", stream=stream, return_prompt_token_ids=True)
        run.push((rid, "abc", DONE))
        body = client.answer().body.removeprefix(b"data: ").split(b"\n\n")[0]
        answer = json.loads(body)
        assert [*answer] == ["text", "output_ids", "meta_info", "prompt_token_ids"]
        assert [*answer["meta_info"]][-1] == "completion_tokens"


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_stop_id_stays_in_output_ids(run, stream):
    client, rid = run.open("one", stream=stream, sampling_params={"stop_token_ids": [99]})
    run.push((rid, "abc", {"type": "stop", "matched": 99}))
    answer = client.answer()
    body = answer.events()[-2] if stream else answer.json()
    assert (body["text"], body["output_ids"]) == ("ab", [97, 98, 99])
    assert body["meta_info"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_cut_character_is_shown(run, stream):
    client, rid = run.open("one", stream=stream)
    run.push((rid, " a", None))
    run.push((rid, "🎉".encode()[:3], DONE))
    answer = client.answer()
    body = answer.events()[-2] if stream else answer.json()
    assert body["text"] == " a\ufffd"


def test_special_tokens_are_shown_on_request(run):
    for skip, text in ((True, "ab"), (False, "a<eos>b")):
        client, rid = run.open("one", False, sampling_params={"skip_special_tokens": skip})
        run.push((rid, [97, tiny_tokenizer.EOS, 98], DONE))
        assert client.answer().json()["text"] == text


def test_stop_window_counts_no_special_tokens():
    tokenizer = Tokenizer.from_str(json.dumps(tiny_tokenizer.tokenizer_json()))
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tiny_tokenizer.BOS)]
    )
    assert len(tokenizer.encode("END").ids) == 4
    assert count_stop_tokens(tokenizer, ["END", "x"]) == 3


@pytest.mark.parametrize("status", [400, 503])
def test_an_abort_with_a_status(run, status):
    reason = {"type": "abort", "message": "too much", "status_code": status, "err_type": "E"}
    unary, unary_rid = run.open("unary", stream=False)
    stream, stream_rid = run.open("stream")
    run.push((stream_rid, "a", None))
    run.push((unary_rid, "", reason), (stream_rid, "", reason))
    answer = unary.answer()
    told = answer.json()
    assert (answer.status, told.pop("error")) == (status, {"message": "too much", "code": status})
    theirs = {"object": "error", "message": "too much", "type": str(status), "param": None}
    assert told == ({} if status == 400 else {**theirs, "code": status})
    answer = stream.answer()
    assert answer.status == 200
    last, done = answer.events()[-2:]
    assert done == "[DONE]" and last["text"] == "a"
    assert last["meta_info"]["finish_reason"] == reason


def test_put(run):
    with Client(run.address) as client:
        client.request("PUT", "/generate", {"text": "abc", "rid": "put"})
        rid = run.take()[0][1]
        run.push((rid, "xyz", DONE))
        assert client.answer().json()["text"] == "xyz"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": "a", "input_ids": [1]}, "text and input_ids cannot both be given"),
        ({"text": ""}, "cannot be empty"),
        ({"text": "a", "rid": "r" * 129}, "rid is 129 bytes, over the 128-byte limit"),
        ({"input_ids": [258]}, "out-of-vocabulary token id 258; valid range is [0, 258)"),
        ({"text": "a", "sampling_params": {"stop": ""}}, "stop"),
        ({"text": "a", "sampling_params": {"stop": ["x", ""]}}, "stop"),
    ],
)
def test_refused_as_rust_does(run, body, words):
    answer = call(run.address, "POST", "/generate", body)
    assert answer.status == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"stop": ["x" * 2000] * 3}, "at `sampling_params.stop`"),
        ({"stop_regex": ".*a.*b"}, "too many choices"),
        ({"stop_regex": ["foo.*bar"] * 5}, "choices together"),
        ({"stop_token_ids": list(range(259))}, "over the vocabulary of 258"),
    ],
)
def test_refused_though_others_take_it(run, sampling, words):
    body = {"text": "a", "sampling_params": sampling}
    answer = call(run.address, "POST", "/generate", body)
    assert answer.status == 400
    assert words in answer.json()["error"]["message"]
    assert run.server.recv_requests() == []


def test_one_rid_twice(run):
    first, first_rid = run.open("dup", stream=False)
    second, second_rid = run.open("dup")
    assert first_rid != second_rid
    run.push((first_rid, "one", DONE), (second_rid, "a", None))
    body = first.answer().json()
    assert (body["text"], body["meta_info"]["id"]) == ("one", "dup")
    third, third_rid = run.open("dup", stream=False)
    assert call(run.address, "POST", "/abort_request", {"rid": "dup"}).status == 200
    aborts = run.take(2)
    assert {tuple(m[:2]) for m in aborts} == {("AbortReq", second_rid), ("AbortReq", third_rid)}
    reason = {"type": "abort", "message": "Aborted"}
    run.push((second_rid, "b", reason), (third_rid, "", reason))
    assert second.answer().events()[-2]["text"] == "ab"
    assert third.answer().json()["meta_info"]["finish_reason"] == reason


def test_one_element_of_a_batch_fails(run):
    client = run.send(["ab", "cd", "ef"], rid="bat", stream=False)
    wire = [m[1] for m in run.take(3)]
    reason = {"type": "abort", "message": "no room", "status_code": 503, "err_type": None}
    run.push((wire[0], "x", DONE), (wire[1], "", reason), (wire[2], "y", None))
    answer = client.answer()
    assert (answer.status, answer.json()["error"]["message"]) == (503, "no room")
    assert run.take()[0][:2] == ["AbortReq", wire[2]]


def test_server_info_shows_no_key(run):
    for path in ("/server_info", "/get_server_info"):
        with Client(run.address) as client:
            client.request("GET", path)
            message = run.take()[0]
            assert message[0] == "GetInternalStateReq"
            state = {"internal_state": {"api_key": "K4", "token_usage": 0.5}}
            run.server.push_result(message[1], msgpack.packb(state))
            answer = client.answer()
        assert answer.status == 200
        assert answer.json()["internal_states"] == [{"token_usage": 0.5}]
        assert not any(key in answer.body for key in (b"K1", b"K2", b"K3", b"K4", b"api_key"))


def test_a_wire_rid_is_never_the_start_of_another(run):
    """Schedulers abort by prefix: `job1` must not end `job10`."""
    one, one_rid = run.open("job1")
    ten, ten_rid = run.open("job10")
    assert not ten_rid.startswith(one_rid)
    call(run.address, "POST", "/abort_request", {"rid": "job1"})
    assert run.take()[0][1] == one_rid
    run.push((one_rid, "", {"type": "abort", "message": "Aborted"}), (ten_rid, "abc", None))
    run.push((ten_rid, "d", DONE))
    ten.head()
    assert next_event(ten)["text"] == "abc"
    assert one.answer().events()[-1] == "[DONE]"
