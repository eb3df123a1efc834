"""A server with the synthetic engine behind it, in this process. Owner: tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import tiny_tokenizer
from tests.http_client import Answer, call
from tpc_server import ModelConfig, Options, Server, ServerArgs
from tpc_server.engines.synthetic import SyntheticEngine, SyntheticSettings

PIECES = [bytes([b]) for b in range(256)] + [b"<eos>", b"<bos>"]


class Running:
    """A server and its engine."""

    def __init__(self, server: Server, engine: SyntheticEngine) -> None:
        self.server = server
        self.engine = engine
        self.address = ("127.0.0.1", server.http_port)

    def call(self, method: str, path: str, body: Any = None, halves: bool = False) -> Answer:
        """One request; `halves`: see `Client`."""
        return call(self.address, method, path, body, halves)

    def wait_for(self, running: int, seconds: float = 20.0) -> None:
        """The engine has so many requests, and none that waits."""
        engine = self.engine
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while len(engine.running) != running or engine.waiting:
            assert time.monotonic() < deadline, list(engine.running)
            pause.wait(0.01)

    def until_idle(self, seconds: float = 20.0) -> None:
        """The engine has no request left."""
        self.wait_for(0, seconds)


@contextmanager
def serving(
    folder: Path, options: dict[str, Any] | None = None, args: dict[str, Any] | None = None,
    context_len: int = 100_000, **settings: Any,
) -> Iterator[Running]:  # fmt: skip
    """The byte tokenizer's vocabulary; `settings` are the engine's."""
    server = Server(
        ServerArgs(
            **{
                "model_path": str(folder), "served_model_name": "tiny", "port": 0,
                "log_level": "error", "skip_server_warmup": True,
                "model_config": ModelConfig(
                    context_len=context_len, vocab_size=tiny_tokenizer.VOCAB
                ),
                **(args or {}),
            }
        ),
        options=Options(**(options or {})),
    )  # fmt: skip
    engine = SyntheticEngine(
        SyntheticSettings(
            **{
                "vocab_size": tiny_tokenizer.VOCAB, "token_bytes": PIECES, "tick_ms": 1,
                "eos_ids": (tiny_tokenizer.EOS,), **settings,
            }
        )
    )  # fmt: skip
    stopping = threading.Event()
    thread = threading.Thread(target=engine.run, args=(server, stopping), daemon=True)
    thread.start()
    try:
        yield Running(server, engine)
    finally:
        stopping.set()
        thread.join(10)
        server.shutdown()
