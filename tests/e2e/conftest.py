"""Servers for end-to-end tests: real sockets, a scheduler under control. Owner: tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_tokenizer
from tests.fake_scheduler import FakeScheduler, echo


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the byte tokenizer."""
    return tiny_tokenizer.write(tmp_path_factory.mktemp("model"))


class Running:
    """A server and its scheduler."""

    def __init__(self, server: Any, scheduler: FakeScheduler, address: Any) -> None:
        self.server = server
        self.scheduler = scheduler
        self.address = address

    def total(self, name: str) -> int:
        """A counter summed over the cores, as published last."""
        return sum(c[name] for c in self.server.counters())


@pytest.fixture
def start(model_folder: Path) -> Iterator[Callable[..., Running]]:
    """`start(script=…, manual=…, options=…, **server_args)`; everything is stopped afterwards."""
    from tpc_server import ModelConfig, Options, Server, ServerArgs

    running: list[Running] = []

    def begin(
        script: Any = echo, manual: bool = False, options: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None, **args: Any,
    ) -> Running:  # fmt: skip
        given = {
            "model_path": str(model_folder),
            "served_model_name": "tiny",
            "port": 0,
            "log_level": "error",
            "skip_server_warmup": True,
            "model_config": ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
            **args,
        }
        made = Server(ServerArgs(**given), options=Options(**(options or {})), **(server or {}))
        uds = (options or {}).get("uds")
        address = uds or (given.get("host", "127.0.0.1"), made.http_port)
        one = Running(made, FakeScheduler(made, script, manual), address)
        running.append(one)
        return one

    yield begin
    for one in running:
        one.scheduler.stop()
        one.server.shutdown()
