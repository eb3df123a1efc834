"""Starts that are refused, by the real SGLang's own launch code. Owner: a process of its Python.

usage: python refuser.py RESULTS <CASES

CASES is JSON: name -> `argv` of `python -m sglang.launch_server`, or keywords of `sglang.Engine`
(`engine`); `env` is added to the environment, `moved` takes a method away from SGLang first. Each
is run in a fork of a process that has imported SGLang once. RESULTS becomes name -> [status, what
was said, whether a process is left].
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from typing import Any

LIMIT_S = 60
IMPORTED = (
    "sglang",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.configs.model_config",
)


def main(path: str) -> int:
    cases: dict[str, Any] = json.load(sys.stdin)
    for name in IMPORTED:
        importlib.import_module(name)
    results = {name: _run(given) for name, given in cases.items()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(results, file)
    sys.stdout.flush()
    os._exit(0)


def _run(given: dict[str, Any]) -> list[Any]:
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if not pid:
            os.setsid()
            signal.alarm(LIMIT_S)
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            os.environ.update({"SGLANG_FRONTEND": "tpc", **given.get("env", {})})
            os._exit(_start(given))
        _, status = os.waitpid(pid, 0)
        left = _left(pid)
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    return [os.waitstatus_to_exitcode(status), text, left]


def _start(given: dict[str, Any]) -> int:
    """As the interpreter would: the status that an exception means."""
    try:
        if given.get("moved"):
            del importlib.import_module("sglang.srt.rust_server.server").RustServer.wait_request
        if "engine" in given:
            importlib.import_module("sglang").Engine(**given["engine"])
        else:
            sys.argv[1:] = given["argv"]
            runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _left(session: int) -> bool:
    """Whether anything that it started still runs; it does not after this."""
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
