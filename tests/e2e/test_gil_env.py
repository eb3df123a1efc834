"""Environments of other people's software are made and hold what their lock files say."""

from __future__ import annotations

import subprocess

import pytest

from tests.gil_env import clean_env, gil_env
from tpc_server.bootstrap.locks import pins

PACKAGES = [("openai-client", "openai"), ("transformers", "transformers")]


@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "package"), PACKAGES)
def test_an_environment_with_a_gil(name: str, package: str) -> None:
    code = f"import sys, importlib.metadata as m; print(m.version({package!r}), sys.abiflags)"
    done = subprocess.run(
        [gil_env(name), "-I", "-c", code],
        env=clean_env(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [pins(name)[package]]
    assert gil_env(name) == gil_env(name)
