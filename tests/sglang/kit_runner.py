"""Runs SGLang's own test kits against a port. Owner: a process of SGLang's Python.

usage: python kit_runner.py URL MODEL_FOLDER RESULTS [KIT.TEST…]

All tests of all kits, or those named. RESULTS becomes JSON: test -> "passed", "skipped" or how it
failed; so has one that takes too long.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pkgutil
import signal
import subprocess
import sys
import types
import unittest
import urllib.request

LIMIT_S = 20
# They want other models, other machines, or data from the network.
LEFT_OUT = (
    "attention_unittest",
    "dsa_metadata_kit",
    "eval_accuracy_kit",
    "fwd_occupancy_kit",
    "lm_eval_kit",
    "mmmu_vlm_kit",
    "pd_parity_kit",
    "perf_bench_kit",
    "spec_decoding_kit",
    "spec_server_kits",
    "streaming_session_kit",
    "unified_radix_cache",
    "unified_radix_cache_kit",
    "vlm_perf_kit",
)


# Imported by kits for tests that this model does not have.
ABSENT = ("anthropic", "datasets")


# Stands for the server, to whom kits send signals.
_SERVER = subprocess.Popen(["sleep", "1000000"])


class TooLong(BaseException):
    """A test is still going after its time; no kit may take it for a failed try."""


def main(argv: list[str]) -> int:
    url, model, file, *names = argv
    for name in ABSENT:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = Absent(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    kits = importlib.import_module("sglang.test.kits")
    found = [m.name for m in pkgutil.iter_modules(kits.__path__) if m.name not in LEFT_OUT]
    signal.signal(signal.SIGALRM, _over)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    results = {}
    for name in found:
        try:
            module = importlib.import_module(f"sglang.test.kits.{name}")
        except Exception as error:
            results[name] = f"not imported: {error}"
            continue
        for kit in _kits(module):
            results.update(_run(kit, url, model, tokenizer, names))
    with open(file, "w", encoding="utf-8") as out:
        json.dump(results, out, indent=1)
    _SERVER.kill()
    os._exit(0)  # threads of tests that hang


class Absent(types.ModuleType):
    """Has any name; none is of use."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _flush(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST")).close()


def _kits(module: types.ModuleType) -> list[type]:
    return [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and kind.__module__ == module.__name__
        and any(name.startswith("test_") for name in vars(kind))
    ]


def _run(
    kit: type, url: str, model: str, tokenizer: object, names: list[str]
) -> dict[str, str]:  # fmt: skip
    import openai

    given = {
        "base_url": url,
        "model": model,
        "process": types.SimpleNamespace(poll=lambda: None, pid=_SERVER.pid),
        "api_key": "none",
        "flush_cache": classmethod(lambda cls: _flush(url)),
        "cache_chunk_size": 64,
        "kl_div_thres": 0.01,
        "kl_div_max_samples": 2,
        "kl_div_prefill_max_new_tokens": 16,
        "kl_div_decode_max_new_tokens": 16,
        "tokenizer": tokenizer,
        "client": openai.Client(api_key="none", base_url=f"{url}/v1"),
    }
    bases = (kit,) if issubclass(kit, unittest.TestCase) else (kit, unittest.TestCase)
    case = type(kit.__name__, bases, given)
    results = {}
    for name in unittest.defaultTestLoader.getTestCaseNames(case):
        if names and f"{kit.__name__}.{name}" not in names:
            continue
        outcome = unittest.TestResult()
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S, 1)
        try:
            unittest.TestSuite([case(name)]).run(outcome)
        except TooLong:
            outcome.errors.append((case(name), "TooLong"))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        bad = outcome.errors + outcome.failures
        if bad:
            text = bad[0][1].strip().splitlines()[-1][:300]
        else:
            text = "skipped" if outcome.skipped else "passed"
        results[f"{kit.__name__}.{name}"] = text
        print(f"{kit.__name__}.{name}: {text}", file=sys.stderr, flush=True)
    return results


def _over(number: int, frame: types.FrameType | None) -> None:
    raise TooLong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
