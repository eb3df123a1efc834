"""Programs of SGLang's own that are run against a port. Owner: the test that calls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.sglang.prepare import Prepared
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


def kits_folder(prepared: Prepared) -> Path:
    """Where the package has its kits."""
    code = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
    done = subprocess.run(
        [str(prepared.python), "-c", code], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip()) / "test" / "kits"


def kits(sglang: SGLang, folder: Path, *names: str) -> dict[str, str]:
    """Test of a kit -> "passed", or how it failed."""
    results = folder / "kits.json"
    model = str(sglang.prepared.model)
    said = run(sglang, str(HERE / "kit_runner.py"), sglang.url, model, str(results), *names)
    print(*[line for line in said.splitlines() if line.startswith("kit: ")], sep="\n")
    found: dict[str, str] = json.loads(results.read_text(encoding="utf-8"))
    return found


def answers_of_sampler(sglang: SGLang) -> list[str]:
    """What `GenerateSampler` got for its 50 questions."""
    said = run(sglang, str(HERE / "questions.py"), sglang.url)
    found: list[str] = json.loads(said.splitlines()[-1])
    return found


def cache_hits(sglang: SGLang) -> list[list[int]]:
    """(tokens of the prompts, of them cached) of each round of SGLang's multi-turn run, which
    checks them itself."""
    said = run(sglang, str(HERE / "cache_hits.py"), sglang.url, str(sglang.prepared.model))
    found: list[list[int]] = json.loads(said.splitlines()[-1])
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
