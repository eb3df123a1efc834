"""The synthetic engine behind the real server: written text cases, and each of its faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_tokenizer
from tests.http_client import Client, call
from tpc_server import ModelConfig, Server, ServerArgs
from tpc_server.engines.synthetic import SyntheticEngine, SyntheticSettings
from tpc_server.engines.synthetic_script import Fault, Script

FFFD = "\ufffd"
PIECES = [bytes([value]) for value in range(256)] + [b"<eos>", b"<bos>"]

# rid -> (frames of bytes, sampling parameters, whole text, finish reason)
CASES: dict[str, tuple[list[bytes], dict[str, Any], str, dict[str, Any]]] = {
    "emoji": ([b"\xf0", b"\x9f", b"\x8e", b"\x89", b" ok"], {}, "🎉 ok",
              {"type": "stop", "matched": None}),
    "split-words": ([b"A ", "世".encode() + b"\xe7", b"\x95\x8c", b"."], {}, "A 世界.",
                    {"type": "stop", "matched": None}),
    "cjk-once": ([b"A", "世".encode() + b"\xf0", b"q\xf0", b"b", b"c"], {},
                 f"A世{FFFD}q{FFFD}bc", {"type": "stop", "matched": None}),
    "cut-short": ([b" a", b"\xf0\x9f\x8e"], {"max_new_tokens": 5}, f" a{FFFD}",
                  {"type": "length", "length": 5}),
    "stop": ([b"foo", b" ST", b"OP tail"], {"stop": ["STOP"]}, "foo ",
             {"type": "stop", "matched": "STOP"}),
    "stop-kept": ([b"foo", b" ST", b"OP tail"], {"stop": ["STOP"], "no_stop_trim": True},
                  "foo STOP", {"type": "stop", "matched": "STOP"}),
    "no-stop": ([b"foo", b" ST", b"AR"], {"stop": ["STOP"]}, "foo STAR",
                {"type": "stop", "matched": None}),
    "half-stop": ([b"foo", b" ST"], {"stop": ["STOP"], "max_new_tokens": 6}, "foo ST",
                  {"type": "length", "length": 6}),
    "newline": ([b"a", b"\n", b"b"], {"stop": ["\n\n"]}, "a\nb",
                {"type": "stop", "matched": None}),
    "cjk-stop": (["你好".encode(), "世界".encode(), "。".encode()], {"stop": ["。\n", "界x"]},
                 "你好世界。", {"type": "stop", "matched": None}),
    "regex": ([b"12", b"3", b";x"], {"stop_regex": "[0-9]+;"}, "123;x",
              {"type": "stop", "matched": "[0-9]+;"}),
}  # fmt: skip

SCRIPTS = [Script(rid=f"{rid}#", frames=case[0]) for rid, case in CASES.items()] + [
    Script(rid="malformed", frames=[b"a", b"b", b"c"], faults=[Fault("malformed", at=1)]),
    Script(rid="cut", frames=[b"a", b"b"], faults=[Fault("cut", at=1)]),
    Script(rid="oov", frames=[b"a", b"b", b"c"], faults=[Fault("out_of_vocabulary")]),
    Script(rid="strangers", frames=[b"a", b"b"], faults=[Fault("unknown_rids", size=50)]),
    Script(rid="giant", frames=[b"a"], faults=[Fault("giant_hidden", size=1_000_000)]),
    Script(rid="abort", frames=[b"a", b"b"], faults=[Fault("abort", text="no", status=503)]),
    Script(rid="error", frames=[b"a", b"b"], faults=[Fault("error", text="unreadable")]),
    Script(rid="late", frames=[b"a", b"b"], faults=[Fault("late", ms=50)]),
    Script(rid="silent", frames=[b"a", b"b"], faults=[Fault("silence", at=1)]),
]


class Running:
    def __init__(self, server: Server, engine: SyntheticEngine) -> None:
        self.server = server
        self.engine = engine
        self.address = ("127.0.0.1", server.http_port)

    def generate(self, rid: str, stream: bool = False, halves: bool = False, **given: Any) -> Any:
        body = {"text": "x", "rid": rid, "stream": stream, **given}
        return call(self.address, "POST", "/generate", body, halves)

    def until_idle(self) -> None:
        """The engine has no request left: what clients dropped was aborted."""
        pause = threading.Event()
        for _ in range(2000):
            if not self.engine.running and not self.engine.waiting:
                return
            pause.wait(0.01)
        raise AssertionError(f"requests left in the engine: {list(self.engine.running)}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tiny_tokenizer.write(tmp_path_factory.mktemp("model"))
    args = ServerArgs(
        model_path=str(folder), port=0, log_level="error", skip_server_warmup=True,
        enable_return_hidden_states=True, incremental_streaming_output=True,
        model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
    )  # fmt: skip
    settings = SyntheticSettings(
        256, 4096, tick_ms=1, eos_ids=[tiny_tokenizer.EOS], token_bytes=PIECES, scripts=SCRIPTS
    )
    engine = SyntheticEngine(settings)
    stopping = threading.Event()
    with Server(args) as server:
        thread = threading.Thread(target=engine.run, args=(server, stopping), daemon=True)
        thread.start()
        running = Running(server, engine)
        yield running
        running.until_idle()
        stopping.set()
        thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("rid", CASES)
def test_text_cases(run: Running, rid: str) -> None:
    _, params, text, finish = CASES[rid]
    answer = run.generate(rid, sampling_params=params).json()
    assert answer["text"] == text
    assert answer["meta_info"]["finish_reason"] == finish
    halves = "\ufffd" in text
    events = run.generate(rid, stream=True, halves=halves, sampling_params=params).events()
    assert events.pop() == "[DONE]"
    assert "".join([event["text"] for event in events]) == text
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (
        len(events) - 1
    )
    assert events[-1]["meta_info"]["finish_reason"] == finish
    if rid == "stop":  # nothing of the stop was shown before it was known
        assert all("S" not in event["text"] for event in events)


@pytest.mark.parametrize("rid", ["malformed", "cut"])
def test_a_spoilt_frame_fails_its_request_alone(run: Running, rid: str) -> None:
    with Client(run.address) as other:
        other.request(
            "POST", "/generate",
            {"text": "y", "rid": f"by-{rid}", "stream": True,
             "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}},
        )  # fmt: skip
        assert other.head()[0] == 200
        other.chunk()
        events = run.generate(rid, stream=True).events()
        assert events[0]["text"] == "a" and events[-1] == "[DONE]"
        assert events[-2]["error"]["code"] == 500
        last = b""
        while (chunk := other.chunk()) and b"[DONE]" not in chunk:
            last = chunk
        assert b'"type":"length","length":100' in last


def test_faults_that_cost_nobody_an_answer(run: Running) -> None:
    assert run.generate("strangers").json()["text"] == "ab"
    assert run.generate("late").json()["text"] == "ab"
    giant = run.generate("giant", return_hidden_states=True)
    assert giant.status == 200 and len(giant.json()["meta_info"]["hidden_states"][0]) == 1_000_000
    assert run.generate("giant").json()["text"] == "a"
    assert run.generate("oov").json()["meta_info"]["completion_tokens"] == 3
    assert run.generate("plain", sampling_params={"max_new_tokens": 5}).status == 200


def test_faults_that_are_an_answer(run: Running) -> None:
    answer = run.generate("abort")
    assert answer.status == 503 and answer.json()["error"]["message"] == "no"
    answer = run.generate("error")
    assert answer.status == 400 and "unreadable" in answer.json()["error"]["message"]
    for params in ({"json_schema": "{}"}, {"regex": "a"}):
        answer = run.generate("grammar", sampling_params=params)
        assert answer.status == 400 and "not supported" in answer.json()["error"]["message"]


def test_a_silent_request_ends_with_its_client(run: Running) -> None:
    with Client(run.address) as client:
        client.request("POST", "/generate", {"text": "x", "rid": "silent", "stream": True})
        assert client.head()[0] == 200
        client.chunk()
    assert run.generate("after", sampling_params={"max_new_tokens": 3}).status == 200
    run.until_idle()


def test_health_while_busy(run: Running) -> None:
    with Client(run.address) as client:
        client.request(
            "POST", "/generate",
            {"text": "y", "stream": True, "sampling_params": {"max_new_tokens": 2000}},
        )  # fmt: skip
        assert client.head()[0] == 200
        client.chunk()
        assert call(run.address, "GET", "/health_generate").status == 200


def test_flush_cache(run: Running) -> None:
    run.until_idle()
    answer = call(run.address, "POST", "/flush_cache")
    assert (answer.status, answer.body) == (200, b"Cache flushed.\n")
    with Client(run.address) as busy:
        busy.request("POST", "/generate", {"text": "x", "rid": "silent", "stream": True})
        while not run.engine.running:
            pass
        assert call(run.address, "GET", "/flush_cache").status == 400
        answer = call(run.address, "GET", "/flush_cache?timeout=0.05")
        assert answer.status == 400 and b"imed out" in answer.body
        call(run.address, "POST", "/abort_request", {"rid": "silent"})
        assert call(run.address, "GET", "/flush_cache?timeout=20").status == 200
        assert busy.answer().status == 200
