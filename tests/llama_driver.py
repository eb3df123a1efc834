"""Runs the embedded engine to its rest on the test's own thread, step by step. Owner: tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.fake_server import FakeServer
from tests.llama_models import TinyModel
from tpc_server.engines.llama.engine import LlamaEngine
from tpc_server.engines.llama.model import Piece
from tpc_server.engines.llama.settings import LlamaSettings
from tpc_server.engines.llama.weights import load_weights


class Driver(FakeServer):
    """A frontend and a stop signal in one: `run` ends once the engine waits with nothing to come.

    `at[n]` runs at the engine's n-th look for messages (0 is the first; one look a step).
    """

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, Callable[[], Any]] = {}
        self.looks = 0
        self.done = False

    def recv_requests(self, max: int = 256) -> Any:
        action = self.at.pop(self.looks, None)
        self.looks += 1
        if action is not None:
            action()
        return super().recv_requests(max)

    def wait_request(self, timeout_ms: int = 1000) -> bool:
        self.done = not self.inbox and not self.at
        return not self.done

    def is_set(self) -> bool:
        return self.done

    def run(self, engine: LlamaEngine) -> Driver:
        self.done = False
        engine.run(self, self)
        assert self.malformed == []
        return self


def text_of(ids: Sequence[int]) -> str:
    """The decoder of tests: ids 3 to 28 are a to z, 29 is a newline, others `<id>`."""
    return "".join(
        chr(94 + i) if 3 <= i <= 28 else "\n" if i == 29 else f"<{i}>" for i in ids
    )  # fmt: skip


def ids_of(text: str) -> list[int]:
    return [29 if c == "\n" else ord(c) - 94 for c in text]


def load_tiny(
    tiny: TinyModel, folder: Path, decode: Callable[[list[int]], str] | None = text_of,
    **settings: Any,
) -> LlamaEngine:  # fmt: skip
    """An engine over `tiny`, whose file is written and read once."""
    if tiny.loaded is None:
        path = tiny.write(folder / "tiny.gguf")
        tiny.loaded = load_weights(path, folder / "cache", lambda text, done: None)
    log: list[str] = []
    made = LlamaEngine(tiny.loaded, LlamaSettings(**settings), decode, log.append)
    made.log_lines = log  # type: ignore[attr-defined]
    return made


class ScriptModel:
    """In place of the real computation: `next_id(all ids so far)` is the likeliest token."""

    def __init__(
        self, real: Any, next_id: Callable[[list[int]], int | Exception], vocab: int
    ) -> None:
        self.config = real.config
        self.next_id = next_id
        self.vocab = vocab
        self.peak = 12.0

    def forward(self, pieces: Sequence[Piece]) -> Any:
        states = []
        for piece in pieces:
            for k in range(len(piece.ids)):
                known = piece.slot.tokens[: piece.start] + list(piece.ids[: k + 1])
                token = self.next_id(known)
                if isinstance(token, Exception):
                    raise token
                states.append([token, 0.0])
        return np.array(states, np.float32)

    def logits(self, states: Any) -> Any:
        rows = np.zeros((len(states), self.vocab), np.float32)
        for row, state in zip(rows, states, strict=True):
            if np.isnan(state[0]):
                row[3] = np.nan
            else:
                row[int(state[0])] = self.peak
        return rows


_SCRIPTED = TinyModel(0, n_layers=1, context=4096)


def scripted(
    folder: Path, scripts: dict[int, Sequence[Any]], vocab: int = 80, **settings: Any
) -> LlamaEngine:
    """An engine that answers a one-id prompt `[key]` with the ids of its script, then with 77."""

    def next_id(known: list[int]) -> Any:
        script = scripts.get(known[0], ())
        return script[len(known) - 1] if len(known) <= len(script) else 77

    made = load_tiny(_SCRIPTED, folder, **settings)
    made._scheduler.model = ScriptModel(made._scheduler.model, next_id, vocab)  # type: ignore[assignment]
    made._limits.vocab_size = vocab
    return made
