"""A server whose scheduler is the test's own thread: nothing moves unless the test says so.

Owner: tests. `FakeScheduler` answers by itself; here every message is taken and every frame
pushed by hand, which is what tests of full rings and bad frames need.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgpack

from tests import tiny_tokenizer
from tests.http_client import Client


class ByHand:
    """A running server and what its scheduler has received."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.address = ("127.0.0.1", server.http_port)
        self.received: list[list[Any]] = []
        self.clients: list[Client] = []

    def total(self, name: str) -> int:
        """A counter summed over the cores, as published last."""
        return sum(core[name] for core in self.server.counters())

    def send(self, text: Any = "abc", rid: str | None = None, stream: bool = True, **more: Any):
        """Send one /generate request; its connection."""
        client = Client(self.address)
        self.clients.append(client)
        body = {"text": text, "stream": stream, **more}
        if rid is not None:
            body["rid"] = rid
        client.request("POST", "/generate", body)
        return client

    def take(self, count: int = 1) -> list[list[Any]]:
        """Wait for `count` more messages; they are in `received` too."""
        fresh: list[list[Any]] = []
        for _ in range(200):
            for request in self.server.recv_requests(count - len(fresh)):
                fresh.append(msgpack.unpackb(request.header, strict_map_key=False))
            if len(fresh) >= count:
                break
            self.server.wait_request(100)
        self.received += fresh
        assert len(fresh) == count, fresh
        return fresh

    def open(self, rid: str, stream: bool = True, **more: Any) -> tuple[Client, str]:
        """Send one request and take its message: (connection, wire rid)."""
        client = self.send(rid=rid, stream=stream, **more)
        message = self.take()[0]
        assert message[0] == "TokenizedGenerateReqInput" and message[1].startswith(rid)
        return client, message[1]

    def push(self, *rows: tuple[str, Any, Any]) -> bool:
        """One plain frame of (wire rid, text, bytes or ids, finish reason) rows."""
        return bool(self.server.push_batch(*frame(rows)))


def frame(rows: Sequence[tuple[str, Any, Any]]) -> tuple[bytes, list[Any]]:
    """Header and data of a plain frame over the byte tokenizer, whose ids are bytes."""
    ids = [row[1].encode() if isinstance(row[1], str) else row[1] for row in rows]
    header = [
        [row[0] for row in rows], [row[2] for row in rows], [3] * len(rows),
        [len(i) for i in ids], [0] * len(rows), [0] * len(rows),
    ]  # fmt: skip
    return msgpack.packb(header), [array("q", chain.from_iterable(ids)).tobytes()]


def next_event(client: Client) -> Any:
    """The next event of a stream whose head has been read."""
    data = client.chunk()
    assert data.startswith(b"data: ") and data.endswith(b"\n\n"), data
    return "[DONE]" if data == b"data: [DONE]\n\n" else json.loads(data[6:])


@contextmanager
def by_hand(model_folder: Any, options: dict[str, Any] | None = None, **more: Any) -> Iterator[
    ByHand
]:  # fmt: skip
    """A server over the byte tokenizer; `more` goes to `ServerArgs` or to `Server`."""
    from tpc_server import ModelConfig, Options, Server, ServerArgs

    caps = {k: more.pop(k) for k in [*more] if k.endswith("_cap")}
    args = {
        "model_path": str(model_folder), "served_model_name": "tiny", "port": 0,
        "log_level": "error", "skip_server_warmup": True,
        "model_config": ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
        **more,
    }  # fmt: skip
    server = Server(ServerArgs(**args), options=Options(**(options or {})), **caps)
    run = ByHand(server)
    try:
        yield run
    finally:
        for client in run.clients:
            client.close()
        server.shutdown()
