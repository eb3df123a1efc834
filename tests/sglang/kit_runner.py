"""Runs SGLang's own test kits against a port. Owner: a process of SGLang's Python.

usage: python kit_runner.py URL MODEL_FOLDER RESULTS TEST…

A TEST is "Class.test"; `tests/sglang/kits.py` says what each class is given. RESULTS becomes JSON:
test -> "passed", "skipped" or how it failed; so has one that takes too long.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import random
import re
import signal
import subprocess
import sys
import time
import types
import unittest
import urllib.request
from typing import Any

from tests.sglang.absent import stand_in
from tests.sglang.kits import GIVEN

LIMIT_S = 240
# Stands for the server, to whom kits send signals.
_SERVER = subprocess.Popen(["sleep", "1000000"])


class TooLong(BaseException):
    """A test is still going after its time; no kit may take it for a failed try."""


def main(argv: list[str]) -> int:
    url, model, file, *names = argv
    stand_in()
    signal.signal(signal.SIGALRM, _over)
    kits, results = _kits(names)
    for kit in kits:
        results.update(_run(kit, url, model, names))
    with open(file, "w", encoding="utf-8") as out:
        json.dump(results, out, indent=1)
    _SERVER.kill()
    os._exit(0)  # threads of tests that hang


def _kits(names: list[str]) -> tuple[list[type], dict[str, str]]:
    """The classes of these tests, of all kits; and why those have none whose kit has no import."""
    wanted = {name.partition(".")[0] for name in names}
    found, failed = [], {}
    package = importlib.import_module("sglang.test.kits")
    for info in pkgutil.iter_modules(package.__path__):
        spec = importlib.util.find_spec(f"sglang.test.kits.{info.name}")
        assert spec is not None and spec.origin is not None
        with open(spec.origin, encoding="utf-8") as source:
            here = wanted & set(re.findall(r"^class (\w+)", source.read(), re.M))
        if not here:
            continue
        try:
            module = importlib.import_module(spec.name)
        except Exception as error:
            why = f"not imported: {error}"
            failed.update({name: why for name in names if name.partition(".")[0] in here})
            continue
        found += [vars(module)[name] for name in sorted(here)]
    return found, failed


def _given(kit: str, url: str, model: str) -> dict[str, Any]:
    """What its test case has."""
    import openai

    tokenizer = _tokenizer(model)
    given = {
        "base_url": url,
        "model": model,
        "process": types.SimpleNamespace(poll=lambda: None, pid=_SERVER.pid),
        "api_key": "none",
        "flush_cache": classmethod(lambda cls: _flush(url)),
        "tokenizer": tokenizer,
        "client": openai.Client(api_key="none", base_url=f"{url}/v1"),
        **GIVEN.get(kit, {}),
    }
    if kit.startswith("Spec"):
        from sglang.test.server_fixtures.spec_eagle_fixture import SpecEagleServerBase as base

        for name in ("send_request", "send_requests_abort", "run_decode"):
            given[name] = vars(base)[name]
    if kit == "AbortLeakReproKitMixin":  # more than this server's cache holds
        from sglang.test.server_fixtures import streaming_session_fixture

        streaming_session_fixture.ABORT_REPRO_ABORT_TOKENS = 9000
    if kit == "KLDivergenceMixin":
        from sglang.test import kl_test_utils

        key = f"{model}_{kl_test_utils.DEFAULT_PROMPT_TOKENS}_{kl_test_utils.DEFAULT_NUM_SAMPLES}"
        kl_test_utils._cached_input_ids[key] = _prompts(48, 300)
    if kit == "UnifiedRadixTreeTestMixin":
        given["input_ids"] = _prompts(4, 160)
    if kit == "ReasoningTokenUsageMixin":
        given["think_end_token_id"] = tokenizer.convert_tokens_to_ids("</think>")
    return given


@functools.cache
def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def _prompts(count: int, length: int) -> list[list[int]]:
    """In the place of texts from the network."""
    rng = random.Random(7)
    return [[rng.randrange(1, 30_000) for _ in range(length)] for _ in range(count)]


def _flush(url: str) -> None:
    """What tests before have left running ends first."""
    abort = urllib.request.Request(
        f"{url}/abort_request", b'{"abort_all": true}', {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(abort).close()
    flush = urllib.request.Request(f"{url}/flush_cache?timeout=30", method="POST")
    urllib.request.urlopen(flush).close()


def _run(kit: type, url: str, model: str, names: list[str]) -> dict[str, str]:
    bases = (kit,) if issubclass(kit, unittest.TestCase) else (kit, unittest.TestCase)
    case = type(kit.__name__, bases, _given(kit.__name__, url, model))
    results = {}
    for test in unittest.defaultTestLoader.getTestCaseNames(case):
        name = f"{kit.__name__}.{test}"
        if name not in names:
            continue
        _flush(url)
        began = time.monotonic()
        results[name] = text = _outcome(case(test))
        seconds = time.monotonic() - began
        print(f"\nkit: {name}: {seconds:.1f} s: {text}", flush=True)
    return results


def _outcome(case: unittest.TestCase) -> str:
    outcome = unittest.TestResult()
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, 1)
    try:
        unittest.TestSuite([case]).run(outcome)
    except TooLong:
        return "TooLong"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    bad = outcome.errors + outcome.failures
    if bad:
        return str(bad[0][1].strip().splitlines()[-1][:300])
    return "skipped" if outcome.skipped else "passed"


def _over(number: int, frame: types.FrameType | None) -> None:
    raise TooLong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
