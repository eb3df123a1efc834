"""/generate over real sockets: unary, streams, batches, errors."""

from __future__ import annotations

from tests.http_client import Client, call


def test_unary(start):
    run = start()
    answer = call(
        run.address, "POST", "/generate",
        {"text": "abc", "rid": "r1", "sampling_params": {"max_new_tokens": 5}},
    )  # fmt: skip
    assert answer.status == 200
    body = answer.json()
    latency = body["meta_info"].pop("e2e_latency")
    assert 0 < latency < 60
    assert body == {
        "text": "abcab",
        "output_ids": [97, 98, 99, 97, 98],
        "meta_info": {
            "id": "r1", "finish_reason": {"type": "length", "length": 5}, "prompt_tokens": 3,
            "completion_tokens": 5, "cached_tokens": 0, "reasoning_tokens": 0,
            "weight_version": "default",
        },
    }  # fmt: skip


def test_stream_cumulative(start):
    run = start()
    answer = call(
        run.address, "POST", "/generate",
        {"text": "xyz", "stream": True, "sampling_params": {"max_new_tokens": 4}},
    )  # fmt: skip
    events = answer.events()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "[DONE]" and len(events) == 5
    assert [e["text"] for e in events[:-1]] == ["x", "xy", "xyz", "xyzx"]
    assert [e["output_ids"] for e in events[:-1]] == [
        [120], [120, 121], [120, 121, 122], [120, 121, 122, 120]
    ]  # fmt: skip
    assert [e["meta_info"]["completion_tokens"] for e in events[:-1]] == [1, 2, 3, 4]
    assert [e["meta_info"]["finish_reason"] for e in events[:-1]] == [
        None, None, None, {"type": "length", "length": 4}
    ]  # fmt: skip


def test_stream_incremental(start):
    run = start(incremental_streaming_output=True)
    events = call(
        run.address, "POST", "/generate",
        {"text": "xyz", "stream": True, "sampling_params": {"max_new_tokens": 4}},
    ).events()  # fmt: skip
    assert [e["text"] for e in events[:-1]] == ["x", "y", "z", "x"]
    assert [e["output_ids"] for e in events[:-1]] == [[120], [121], [122], [120]]
    assert [e["meta_info"]["completion_tokens"] for e in events[:-1]] == [1, 2, 3, 4]


def test_batch_and_n(start):
    run = start()
    body = {"text": ["ab", "cd"], "sampling_params": {"max_new_tokens": 2, "n": 2}}
    answers = call(run.address, "POST", "/generate", body).json()
    assert [a["text"] for a in answers] == ["ab", "ab", "cd", "cd"]
    assert len({a["meta_info"]["id"] for a in answers}) == 4
    events = call(run.address, "POST", "/generate", {**body, "stream": True}).events()
    assert events[-1] == "[DONE]"
    last = {e["index"]: e["text"] for e in events[:-1]}
    assert last == {0: "ab", 1: "ab", 2: "cd", 3: "cd"}


def test_bad_bodies(start):
    run = start()
    for body, word in [
        (b"{", "JSON"),
        (b"[1]", ""),
        ({"text": ""}, "text cannot be empty"),
        ({"text": "a", "sampling_params": {"top_p": 2}}, "top_p"),
        ({"text": "a", "sampling_params": {"foo": 1}}, "unknown field `foo`"),
        ({"input_ids": [9999]}, "out-of-vocabulary"),
        ({"text": "a" * 5000}, "longer than the model's context length"),
    ]:
        answer = call(run.address, "POST", "/generate", body)
        assert answer.status == 400, (body, answer.body)
        assert word in answer.json()["error"]["message"]
    assert call(run.address, "POST", "/generate", {"text": "ok"}).status == 200


def test_pipelined_answers_keep_their_order(start):
    run = start()
    with Client(run.address) as client:
        for text in ("a", "bb", "ccc"):
            client.request(
                "POST", "/generate", {"text": text, "sampling_params": {"max_new_tokens": 3}}
            )
        client.request("GET", "/v1/models")
        texts = [client.answer().json()["text"] for _ in range(3)]
        assert texts == ["aaa", "bbb", "ccc"]
        assert client.answer().json()["data"][0]["id"] == "tiny"


def test_reset_aborts_in_the_scheduler(start):
    run = start(manual=True)
    client = Client(run.address)
    client.request(
        "POST", "/generate",
        {"text": "abc", "rid": "gone", "stream": True, "sampling_params": {"max_new_tokens": 9}},
    )  # fmt: skip
    run.scheduler.wait_for(lambda s: s.live)
    run.scheduler.step()
    client.head()
    assert client.chunk().startswith(b"data: ")
    client.reset()
    run.scheduler.wait_for(lambda s: s.aborted)
    assert run.scheduler.aborted[0].startswith("gone#")


def test_abort_request(start):
    run = start(manual=True)
    with Client(run.address) as client:
        client.request("POST", "/generate", {"text": "abc", "rid": "job1"})
        run.scheduler.wait_for(lambda s: s.live)
        assert call(run.address, "POST", "/abort_request", {"rid": "job"}).status == 200
        assert call(run.address, "POST", "/abort_request", {"rid": ""}).status == 200
        assert call(run.address, "POST", "/abort_request", {"rid": "job1"}).status == 200
        body = client.answer().json()
    assert body["meta_info"]["finish_reason"] == {
        "type": "abort", "message": "Abort in waiting queue"
    }  # fmt: skip
    assert len(run.scheduler.aborted) == 1


def test_abort_of_a_batch_rid_ends_its_children_only(start):
    run = start(manual=True)
    with Client(run.address) as a, Client(run.address) as b:
        a.request("POST", "/generate", {"text": ["x", "y"], "rid": "bat"})
        b.request(
            "POST", "/generate",
            {"text": ["x", "y"], "rid": ["r", "s"], "sampling_params": {"n": 2}},
        )  # fmt: skip
        run.scheduler.wait_for(lambda s: len(s.live) == 6)
        assert call(run.address, "POST", "/abort_request", {"rid": "bat"}).status == 200
        ended = a.answer().json()
        assert [e["meta_info"]["id"] for e in ended] == ["bat_0", "bat_1"]
        assert call(run.address, "POST", "/abort_request", {"rid": "s"}).status == 200
        run.scheduler.wait_for(lambda s: len(s.live) == 2)
        assert call(run.address, "POST", "/abort_request", {"rid": ["r", "nobody"]}).status == 200
        assert len(b.answer().json()) == 4
