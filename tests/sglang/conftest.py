"""One SGLang for the tests that leave it running. Owner: pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.prepare import Prepared, prepare
from tests.sglang.serving import SGLang


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    """SGLang's environment (`./tpc test --sglang` has made it before, showing progress)."""
    return prepare()


@pytest.fixture(scope="session")
def serve(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`serve(frontend, *flags, **env)`: an SGLang that starts; ended with the session."""
    running: list[SGLang] = []

    def begin(frontend: str = "tpc", *flags: str, model: Path | None = None, **env: str) -> SGLang:
        log: Path = tmp_path_factory.mktemp("sglang") / "log"
        one = SGLang(prepared._replace(model=model or prepared.model), log, frontend, flags, env)
        running.append(one)
        return one

    yield begin
    for one in running:
        one.end()


@pytest.fixture(scope="session")
def sglang(serve: Callable[..., SGLang]) -> SGLang:
    """The one that most tests share. Served by us."""
    return serve("tpc").wait()
