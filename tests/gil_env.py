"""Other people's software in environments with a GIL, for tests. Owner: the test that calls.

`gil_env("openai-client")` is the Python of an environment made of `requirements/openai-client.txt`:
exact versions, checked by hash, wheels only, made once in the user's cache and whole or not there.
Mark what calls it `network`. `./tpc test` makes all of CLIENTS before pytest, with progress.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpc_server.bootstrap.clients import CLIENTS, client_environment, client_interpreter
from tpc_server.bootstrap.interpreter import ordinary
from tpc_server.bootstrap.probe import Interpreter

NONE_FOUND = "no GIL Python of 3.11 or later found; name one in TPC_GIL_PYTHON"


def gil_env(name: str, command: str = "") -> Path:
    """The Python of the environment `name`, made if missing; skips where no GIL Python is.

    `command`: that one only, as `python3.11`.
    """
    assert name in CLIENTS, f"{name} is none of {', '.join(CLIENTS)}"
    interpreter = version_of(command) if command else client_interpreter()
    if interpreter is None:
        pytest.skip(f"no {command} found" if command else NONE_FOUND)
    return client_environment(name, interpreter)


def version_of(command: str) -> Interpreter | None:
    """The ordinary `pythonX.Y` of this machine, wherever the bootstrap finds one."""
    found = ordinary((command,))
    wanted = tuple(int(n) for n in command.removeprefix("python").split("."))
    return found if found is not None and found.version[:2] == wanted else None


def clean_env() -> dict[str, str]:
    """An environment for its programs: ours must not be on their path, nor a proxy between us."""
    drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in drop and name.lower() not in proxies
    }
