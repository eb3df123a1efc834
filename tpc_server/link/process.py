"""The process of a frontend: how it is started, how it ended. Owner: stateless.

Standard library only, and none of ours but what finds the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

_NO_END: Final = "it hung up and did not end: killed"


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


class Ending:
    """A process that was let go of, until it is known how it ended."""

    def __init__(self, process: Any, line: str = "", patience_s: float = 0.0) -> None:
        """`line`: what is said then, with how it ended. It is killed in the end, if it has not
        ended by itself within `patience_s`."""
        self.process = process
        self._line = line
        self._kill_at = time.monotonic() + patience_s
        self._impatient = False  # it had time to end by itself
        if not patience_s:
            kill(process)

    def over(self, log: Callable[[str], None]) -> bool:
        """Whether it has ended; never waits."""
        if self.process.poll() is not None:
            if self._line:
                log(self._line.format(_NO_END if self._impatient else epitaph(self.process)))
            return True
        if time.monotonic() > self._kill_at:
            self._impatient = True
            kill(self.process)
        return False


@contextlib.contextmanager
def hangups_wait() -> Iterator[None]:
    """A process that is started meanwhile gets SIGHUP once it says what it does then
    (`frontend.serve`): before, one would end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
