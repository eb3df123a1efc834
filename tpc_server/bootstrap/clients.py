"""Environments with a GIL beside ours: clients and references that the tests run against us.

Owner: one process a lock. Each is made of its lock file, of wheels only.
"""

from __future__ import annotations

import os
from pathlib import Path

from .interpreter import ordinary
from .locks import builds
from .probe import Interpreter, probe
from .venv import environment

CLIENTS = ("openai-client", "transformers", "schemathesis", "json-parsers", "scheduler")
# The real SGLang on CPU (tests/sglang): 5 GB, so made only when it is asked for.
SGLANG = "sglang-cpu"
# Those that every package here has wheels for, the most usual first.
COMMANDS = ("python3.12", "python3.13", "python3.11", "python3.14", "python3")


def client_interpreter() -> Interpreter | None:
    """The GIL interpreter they run on: TPC_GIL_PYTHON, else what is here; None when none is."""
    named = os.environ.get("TPC_GIL_PYTHON")
    if named:
        found = probe(os.path.abspath(named))
        if isinstance(found, Interpreter) and not (found.free_threaded or found.fault(builds())):
            return found
    return ordinary(COMMANDS)


def client_environment(name: str, interpreter: Interpreter) -> Path:
    """The Python of the environment of `requirements/NAME.txt`, made if missing.

    Raises BootstrapError.
    """
    return environment(interpreter, name)


def sglang_interpreter() -> Interpreter | None:
    """A Python that the pinned SGLang runs on; None when none is here."""
    found = ordinary(("python3.12", "python3.11"))
    return found if found is not None and found.version[:2] in ((3, 11), (3, 12)) else None
