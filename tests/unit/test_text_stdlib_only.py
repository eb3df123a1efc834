"""What must run where no third-party package imports: checked in an interpreter that has none."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = [
    "pieces",
    "detok",
    "escape",
    "windowed",
    "gguf_meta",
    "gguf_vocab",
    "stops",
    "load",
    "stop_patterns",
]


@pytest.mark.parametrize("module", MODULES)
def test_imports_the_standard_library_and_itself_only(module):
    code = (
        "import sys; before = set(sys.modules); sys.path.insert(0, '.');"
        f"import tpc_server.text.{module};"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'tpc_server'}))"
    )
    # -I and -S: no site-packages at all, so a hidden import would fail by itself.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=str(__import__("pathlib").Path(__file__).parents[2]),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
