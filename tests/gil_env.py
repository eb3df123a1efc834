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


def gil_env(name: str) -> Path:
    """The Python of the environment `name`, made if missing; skips where no GIL Python is."""
    assert name in CLIENTS, f"{name} is none of {', '.join(CLIENTS)}"
    interpreter = client_interpreter()
    if interpreter is None:
        pytest.skip("no GIL Python of 3.11 or later found; name one in TPC_GIL_PYTHON")
    return client_environment(name, interpreter)


def clean_env() -> dict[str, str]:
    """An environment for its programs: ours must not be on their path, nor a proxy between us."""
    drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in drop and name.lower() not in proxies
    }
