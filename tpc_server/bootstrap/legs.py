"""`./tpc test`: the checks, then pytest; one failed leg fails the whole. Owner: one process.

pytest is the last leg and nothing is printed after it, so that its summary line is the last line
of the output. Legs that failed before are named in its summary (tests/conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .clients import (
    CLIENTS,
    SGLANG,
    client_environment,
    client_interpreter,
    sglang_interpreter,
)
from .interpreter import ordinary
from .probe import Interpreter
from .progress import BootstrapError, say
from .venv import add, environment

PYTEST_ONLY = "--pytest-only"
SGLANG_TOO = "--sglang"


def run_legs(
    root: Path, interpreter: Interpreter, env: Mapping[str, str], argv: Sequence[str]
) -> int:
    """Runs all legs in the checkout `root`; 0 when all passed. Raises BootstrapError."""
    if not (root / "tests" / "conftest.py").is_file():
        raise BootstrapError("tests are in the checkout, not in the installed package")
    pytest_args = [arg for arg in argv if arg != PYTEST_ONLY]
    python = environment(interpreter)
    add(python, "test")
    failed: list[str] = []
    if PYTEST_ONLY not in argv:
        # mypy is compiled for ordinary builds only, and ten times slower on the others.
        tools = environment(ordinary() or interpreter, "lint")
        for name, command in checks(tools, python).items():
            if _leg(name, command, root, env):
                failed.append(name)
    if _runs_all(pytest_args):
        failed += prepare_clients()
    if SGLANG_TOO in pytest_args:
        failed += prepare_sglang()
    say(f"leg pytest on {interpreter}")
    pytest = [str(python), "-m", "pytest", *pytest_args]
    status = _call(pytest, root, {**env, "TPC_FAILED_LEGS": ", ".join(failed)})
    return status or int(bool(failed))


def _runs_all(argv: Sequence[str]) -> bool:
    """Whether these arguments of pytest leave in the tests that need a client's environment."""
    narrow = ("-k", "-m", "--collect-only", "--offline")
    return all(arg.startswith("-") and not arg.startswith(narrow) for arg in argv)


def prepare_clients() -> list[str]:
    """Makes the tests' other environments here, where progress shows; names those that failed."""
    interpreter = client_interpreter()
    failed = []
    for name in CLIENTS if interpreter is not None else ():
        assert interpreter is not None
        try:
            client_environment(name, interpreter)
        except BootstrapError as error:
            say(str(error))
            failed.append(f"environment {name}")
    return failed


def prepare_sglang() -> list[str]:
    """The same for the real SGLang, unless one that was set up apart is named."""
    if os.environ.get("TPC_SGLANG_PYTHON"):
        return []
    try:
        interpreter = sglang_interpreter()
        if interpreter is None:
            raise BootstrapError("SGLang wants python3.11 or python3.12 with a GIL: none found")
        client_environment(SGLANG, interpreter)
    except BootstrapError as error:
        say(str(error))
        return [f"environment {SGLANG}"]
    return []


def checks(tools: Path, python: Path) -> dict[str, list[str]]:
    """Name -> command of the legs before pytest; mypy looks at the packages of `python`."""
    run = [str(tools), "-m"]
    return {
        "ruff check": [*run, "ruff", "check", "."],
        "ruff format": [*run, "ruff", "format", "--check", "."],
        "mypy": [*run, "mypy", "--python-executable", str(python)],
    }


def _leg(name: str, command: Sequence[str], root: Path, env: Mapping[str, str]) -> int:
    say(f"leg {name}")
    began = time.monotonic()
    status = _call(command, root, env)
    end = f"failed with status {status}" if status else "passed"
    say(f"leg {name} {end} after {time.monotonic() - began:.1f} s")
    return status


def _call(command: Sequence[str], root: Path, env: Mapping[str, str]) -> int:
    """Runs in the foreground; an interrupt goes to both of us, and the child is waited for."""
    # Ours is buffered when it goes to a file, the child's would overtake it.
    child = subprocess.Popen(list(command), cwd=root, env=dict(env), stdin=subprocess.DEVNULL)
    try:
        return abs(child.wait())
    except BaseException:
        child.terminate()
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def root_of(package: Path) -> Path | None:
    """The checkout that a package folder lies in, or None when it is an installed one."""
    root = package.parent
    return (
        root if (root / "pyproject.toml").is_file() and os.access(root / "tpc", os.R_OK) else None
    )
