"""A free-threaded interpreter from uv, when uv is there. Owner: one process.

uv's own interpreters are profile-guided builds. A network that refuses costs seconds: no retries,
short time-outs, and a limit on silence.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from .cache import cache_root, locked, sub, write_atomically
from .locks import builds
from .probe import Interpreter, probe
from .progress import StepFailed, run

REQUEST = "3.13t"
FIND_LIMIT_S = 10
INSTALL_LIMIT_S = 300
# Set only where the user has not: theirs may be right for their network.
SHORT = {
    "UV_HTTP_TIMEOUT": "8",
    "UV_HTTP_CONNECT_TIMEOUT": "5",
    "UV_HTTP_RETRIES": "0",
    "UV_PYTHON_INSTALL_BIN": "0",  # nothing into the user's ~/.local/bin
}


def cached() -> list[str]:
    """The path of the interpreter that uv gave before, while it is there."""
    try:
        path = (cache_root() / "uv-python").read_text(encoding="utf-8")
    except OSError:
        return []
    return [path] if os.access(path, os.X_OK) else []


def install() -> Interpreter | str:
    """`uv python find`, else `uv python install`; the interpreter, or why there is none."""
    uv = shutil.which("uv")
    if uv is None:
        return "uv is not there"
    with locked("uv", "uv python install"):
        found = _find(uv)
        if isinstance(found, str):
            try:
                run(
                    [uv, "python", "install", "--no-progress", REQUEST],
                    f"uv python install {REQUEST}",
                    env={**SHORT, **os.environ},
                    limit_s=INSTALL_LIMIT_S,
                )
            except StepFailed as error:
                return f"uv python install {REQUEST}: {_reason(error)}"
            found = _find(uv, "--managed-python")
        if isinstance(found, Interpreter):
            write_atomically(sub() / "uv-python", found.executable.encode())
        return found


def _find(uv: str, *options: str) -> Interpreter | str:
    argv = [uv, "python", "find", "--no-python-downloads", "--system", "--no-project"]
    argv += [*options, REQUEST]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=FIND_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"uv python find: {error}"
    path = done.stdout.strip()
    if done.returncode or not path:
        return f"uv python find {REQUEST}: none"
    found = probe(path)
    if isinstance(found, str):
        return found
    fault = found.fault(builds())
    if not fault and not found.free_threaded:
        fault = f"{found}, which is not free-threaded"
    return fault or found


def _reason(error: StepFailed) -> str:
    lines = [line.strip() for line in error.tail.splitlines() if line.strip()]
    return lines[-1].removeprefix("cause: ") if lines else error.why
