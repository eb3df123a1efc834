"""Modules that will run in subinterpreters, or in a scheduler's process: standard library only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = (
    "frame", "fsm", "request", "connection", "ring", "ring_reader", "mailbox", "shm", "counters",
    "render.http", "render.native", "render.control", "render.logprobs", "render.plan",
    "render.shape", "render.openai",    "render.chat", "render.completion", "text.chat_prompt",
    "boundary.wire", "boundary.extras", "boundary.server_args", "stages.stream",
    "render.hidden_states", "mesh", "boundary.port", "parsers.base", "metrics.area", "metrics.http",
    "eventfd",
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_imports_nothing_else(module):
    code = (
        "import sys; before = set(sys.modules); sys.path.insert(0, '.');"
        f"import tpc_server.{module};"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'tpc_server'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60,
        check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
