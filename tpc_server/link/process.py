"""The process of a frontend: how it is started, how it ended. Owner: stateless.

Standard library only, and none of ours but what finds the interpreter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final


class StartError(Exception):
    """A frontend process could not start; the text says why."""


def kill(process: Any) -> None:
    """End it, if it has not ended."""
    if process.poll() is None:
        try:
            process.send_signal(signal.SIGKILL)
        except OSError:
            pass


def epitaph(process: Any, wait_s: float = 0) -> str:
    """How a process ended, as far as that is known."""
    try:
        status = process.wait(timeout=wait_s)
    except subprocess.TimeoutExpired:
        return "it closed its link"
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:  # a real-time signal
            return f"killed by signal {-status}"
    return f"exit status {status}"


def child_environment() -> dict[str, str]:
    """The environment of a child: our package is found where it is here, nothing else of ours."""
    drop = ("PYTHONPATH", "PYTHONHOME", "PYTHON_GIL", "PYTHONSTARTUP", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in drop}
    env["PYTHON_GIL"] = "0"
    return env


def child_command() -> list[str]:
    """The interpreter without a GIL, and what runs the frontend with the package of this process.

    Raises StartError with what to do when there is none.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        python = sys.executable
    else:
        from ..bootstrap.prepared import prepared_python

        found = prepared_python()
        if found is None:
            raise StartError(
                "no free-threaded interpreter is prepared: run `tpc-server setup` first"
            )
        python = str(found)
    # Not by the module path: beside an installed package lie others, for this process's Python.
    home = Path(__file__).resolve().parents[1]
    code = f"home = {str(home)!r}\n{_CHILD}"
    return [python, "-P", "-c", code]


_CHILD: Final = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "tpc_server", home + "/__init__.py", submodule_search_locations=[home]
)
sys.modules["tpc_server"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from tpc_server.link.frontend import main
sys.exit(main(sys.argv[1:]))
"""
