"""A megabyte of prompt: its tokenizing is nobody else's delay. Counted in steps, not in time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import tiny_tokenizer
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import Client, call
from tpc_server import ModelConfig
from tpc_server.text.encode import HUGE_TEXT_CHARS, LONG_TEXT_CHARS, Encoder

ROOT = Path(__file__).parents[2]
TEXT = "lorem ipsum " * 90_000  # over a megabyte, and one token a byte
WIDE = ModelConfig(context_len=4_000_000, vocab_size=tiny_tokenizer.VOCAB)
STREAM = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 400}}
SHORT = {"text": "ab", "sampling_params": {"max_new_tokens": 2}}
STEPS = 40


class HeldUp:
    """Encoding of long texts: notes the thread, waits until it may go on."""

    def __init__(self, monkeypatch):
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.threads: list[tuple[int, str]] = []
        real = Encoder.encode

        def encode(encoder, text, add_special_tokens=True):
            if len(text) > LONG_TEXT_CHARS:
                self.threads.append((len(text), threading.current_thread().name))
                self.begun.release()
                assert self.go_on.wait(60)
            return real(encoder, text, add_special_tokens)

        monkeypatch.setattr(Encoder, "encode", encode)


@pytest.fixture
def held_up(monkeypatch):
    one = HeldUp(monkeypatch)
    yield one
    one.go_on.set()


ROUTES = {
    "/generate": {"text": TEXT, "sampling_params": {"max_new_tokens": 1}},
    "/v1/completions": {"model": "tiny", "prompt": TEXT, "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1},
    "/tokenize": {"prompt": TEXT},
}
ONE = ["1"]
TWO = ["ingress=0", "tokenize=1", "detok=0", "egress=0"]


@pytest.mark.parametrize(
    ("path", "values"), [("/generate", TWO), *[(path, ONE) for path in ROUTES]]
)
def test_streams_and_short_prompts_go_on_beside_it(start, tmp_path, held_up, path, values):
    folder = tiny_tokenizer.write(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    core_plan = placed(values)
    run = start(model_path=str(folder), model_config=WIDE, manual=True, options={"plan": core_plan})
    with Client(run.address) as streaming, Client(run.address, timeout=120) as long:
        streaming.request("POST", "/generate", STREAM)
        run.scheduler.wait_for(lambda s: s.live)
        run.scheduler.step()
        assert streaming.head()[0] == 200 and streaming.chunk()
        long.request("POST", path, ROUTES[path])
        assert held_up.begun.acquire(timeout=60)
        # It is being encoded and does not end. Every step of the others reaches its client.
        turns = run.total("loops")
        for _ in range(STEPS):
            run.scheduler.step()
            assert streaming.chunk().startswith(b"data: {")
        until(run, lambda: run.total("loops") >= turns + STEPS)
        # A prompt of usual length does not wait behind it, nor does one that is only long.
        with Client(run.address) as short:
            short.request("POST", "/generate", SHORT)
            run.scheduler.wait_for(lambda s: len(s.prompts) == 2)
            run.scheduler.step(2)
            assert short.answer().json()["text"] == "ab"
        with Client(run.address) as middle:
            held_up.threads.clear()
            middle.request("POST", "/generate", {**SHORT, "text": "y" * (2 * LONG_TEXT_CHARS)})
            assert held_up.begun.acquire(timeout=60)  # by another thread than the huge one's
            assert [size for size, _ in held_up.threads] == [2 * LONG_TEXT_CHARS]
            held_up.go_on.set()
            run.scheduler.wait_for(lambda s: any(len(p) == 2 * LONG_TEXT_CHARS for p in s.prompts))
            if path != "/tokenize":
                run.scheduler.wait_for(lambda s: any(len(p) >= len(TEXT) for p in s.prompts))
            run.scheduler.step(2)
            assert middle.answer().json()["text"] == "yy"
        answer = long.answer()
    assert answer.status == 200, answer.body[:300]
    # No core's thread was asked, whichever stage lives there.
    names = {name for _, name in held_up.threads}
    assert names and not any(name.startswith("tpc-core") for name in names), names


def test_the_text_is_huge_and_has_the_helper_for_huge_ones(start, held_up):
    """So that the other long prompts of its core do not wait behind it."""
    assert len(TEXT) > HUGE_TEXT_CHARS
    run = start(model_config=WIDE)
    held_up.go_on.set()
    for text in (TEXT, "x" * (LONG_TEXT_CHARS + 1), "x" * LONG_TEXT_CHARS):
        body = {"text": text, "sampling_params": {"max_new_tokens": 1}}
        assert call(run.address, "POST", "/generate", body).status == 200
    # The shortest one was the core's own.
    assert held_up.threads == [
        (len(TEXT), "tpc-encode-huge"), (LONG_TEXT_CHARS + 1, "tpc-encode"),
    ]  # fmt: skip


@pytest.mark.parametrize(("gate", "status"), [("1e6", 0), ("-1e6", 1)])
def test_the_benchmark_measures_it_and_its_gate_closes(model_folder, gate, status):
    """perf/long_prompt.py: a prompt that is really tokenized, and an exit status."""
    done = subprocess.run(
        [
            sys.executable, "perf/long_prompt.py", "--megabytes", "0.2", "--streams", "2",
            "--seconds", "0.3", f"--gate={gate}", "--model-path", str(model_folder),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert done.stdout.count("beside 200000 tokens of prompt") == 3
    assert "worst gap alone" in done.stdout and "beside 0.2 MB" in done.stdout
    assert ("above --gate" in done.stderr) == bool(status)
