"""Programs of SGLang's own that are run against a port. Owner: the test that calls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.sglang.serving import SGLang, environ

HERE = Path(__file__).parent


def run(sglang: SGLang, *argv: str, seconds: float = 900) -> str:
    """What a program of SGLang's Python says; its failure is ours."""
    done = subprocess.run(
        [str(sglang.prepared.python), *argv], env=environ(sglang.prepared, ""),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def kits(sglang: SGLang, folder: Path, *names: str) -> dict[str, str]:
    """Test of a kit -> "passed", or how it failed; all of them, or those named."""
    results = folder / "kits.json"
    model = str(sglang.prepared.model)
    run(sglang, str(HERE / "kit_runner.py"), sglang.url, model, str(results), *names)
    found: dict[str, str] = json.loads(results.read_text(encoding="utf-8"))
    return found


def answers_of_sampler(sglang: SGLang) -> list[str]:
    """What `GenerateSampler` got for its 50 questions."""
    said = run(sglang, str(HERE / "questions.py"), sglang.url)
    found: list[str] = json.loads(said.splitlines()[-1])
    return found


def bench_serving(sglang: SGLang, folder: Path, backend: str, count: int = 24) -> dict[str, Any]:
    """The figures of `python -m sglang.bench_serving`."""
    results = folder / f"bench-{backend}.jsonl"
    model = str(sglang.prepared.model)
    argv = [str(HERE / "bench_runner.py"), "--backend", backend, "--base-url", sglang.url]
    argv += ["--model", model, "--served-model-name", "tiny-model", "--tokenizer", model]
    argv += ["--dataset-name", "random-ids", "--random-input-len", "32"]
    argv += ["--random-output-len", "8", "--random-range-ratio", "1.0"]
    argv += ["--num-prompts", str(count), "--output-file", str(results), "--seed", "1"]
    run(sglang, *argv)
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8").splitlines()[-1])
    return found
