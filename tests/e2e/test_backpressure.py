"""Slow readers: bounded buffers, coalescing, only the slow request ends."""

from __future__ import annotations

from itertools import pairwise

from tests.http_client import Client, call

SMALL = {"socket_buffer_bytes": 16384}
# More bytes than these buffers take in.
N = 300
WORD = b"0123456789abcdefghijklmnopqrstuvwxyz...." * 10


def long_script(header, ids):
    """N steps of 400 bytes each."""
    word = list(WORD)
    frames = [(word, None) for _ in range(N - 1)]
    return [*frames, (word, {"type": "length", "length": 400 * N})]


def request(client, rid):
    client.request(
        "POST", "/generate",
        {"text": "x", "rid": rid, "stream": True, "sampling_params": {"max_new_tokens": 4000}},
    )  # fmt: skip


def test_incremental_reader_that_stops_is_aborted_alone(start):
    run = start(
        script=long_script, manual=True, incremental_streaming_output=True,
        options={"stream_buffer_bytes": 100_000, **SMALL},
    )  # fmt: skip
    slow = Client(run.address, rcvbuf=4096)
    request(slow, "slow")
    fast = Client(run.address)
    request(fast, "fast")
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    body = b""
    # In turns, so that this reader is never far behind, however busy the machine is.
    for turn in range(N // 10):
        run.scheduler.step(10)
        if not turn:
            fast.head()
        while body.count(b"data: ") < 10 * (turn + 1):
            body += fast.chunk()
    while piece := fast.chunk():
        body += piece
    assert body.endswith(b"data: [DONE]\n\n") and b'"length"' in body
    run.scheduler.wait_for(lambda s: any(r.startswith("slow#") for r in s.aborted))
    assert not any(r.startswith("fast#") for r in run.scheduler.aborted)
    # What the slow reader finds when it wakes up: whole frames, an error, the terminator.
    answer = slow.answer()
    frames = answer.events()
    assert frames[-1] == "[DONE]"
    assert "too slowly" in frames[-2]["error"]["message"]
    assert all(f["meta_info"]["finish_reason"] is None for f in frames[:-2])
    slow.close()
    fast.close()


def test_cumulative_reader_that_stops_gets_the_newest_only(start):
    run = start(script=long_script, options=SMALL)
    slow = Client(run.address, rcvbuf=4096)
    request(slow, "slow")
    run.scheduler.wait_for(lambda s: s.received and not s.live)
    frames = slow.answer().events()
    assert frames[-1] == "[DONE]"
    last = frames[-2]
    assert last["meta_info"]["finish_reason"]["type"] == "length"
    assert len(last["text"]) == 400 * N == last["meta_info"]["completion_tokens"]
    texts = [f["text"] for f in frames[:-1]]
    assert all(b.startswith(a) for a, b in pairwise(texts))
    assert len(frames) < N  # many were left out
    slow.close()


def test_incremental_reader_that_lags_loses_nothing(start):
    run = start(
        script=long_script, incremental_streaming_output=True,
        options={"stream_buffer_bytes": 100 << 20, **SMALL},
    )  # fmt: skip
    slow = Client(run.address, rcvbuf=4096)
    request(slow, "slow")
    run.scheduler.wait_for(lambda s: s.received and not s.live)
    frames = slow.answer().events()
    whole = "".join(f["text"] for f in frames[:-1])
    assert whole == WORD.decode() * N
    assert sum(len(f["output_ids"]) for f in frames[:-1]) == 400 * N
    assert len(frames) < N + 1
    slow.close()


def test_a_reader_that_takes_nothing_is_given_up(start):
    run = start(
        script=long_script, manual=True, options={"write_timeout_s": 0.5, **SMALL}
    )  # fmt: skip
    slow = Client(run.address, rcvbuf=4096)
    request(slow, "slow")
    run.scheduler.wait_for(lambda s: s.live)
    run.scheduler.step(N - 100)
    run.scheduler.wait_for(lambda s: s.aborted)
    assert call(run.address, "GET", "/v1/models").status == 200
    slow.close()
