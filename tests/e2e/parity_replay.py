"""Traffic recorded at a real scheduler, played to a running server. Owner: tests (one thread).

`tests/data/parity/frames.jsonl` holds what crossed the boundary, in order: messages to the
scheduler (`ingress`), its output frames (`egress`), control answers and one health ack.
`answers.jsonl` holds what the two frontends of SGLang 0.5.23 answered to the same requests.

A `Playback` is the scheduler: it goes through the recording line by line, expects our message
where a message was recorded, and pushes what was pushed, with our wire rids in the place of the
recorded ones. Requests are sent when the first of their messages is due.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from tests.http_client import Answer, Client

DATA = Path(__file__).parents[1] / "data" / "parity"
AUTO = re.compile(r"(HEALTH_CHECK_|cmpl-)?[0-9a-f]{32}(-\d+)?")
CONTEXT_LEN = 32768
VOCAB = 129283
SERVED = "tiny-model"
GENERATE = "TokenizedGenerateReqInput"
RID, TEXT = 1, 3  # positions in a message


def recording() -> list[dict[str, Any]]:
    """Every recorded line."""
    return [json.loads(line) for line in (DATA / "frames.jsonl").read_text().splitlines()]


def answers() -> dict[str, dict[str, Any]]:
    """By request name: path, request, and `rust` and `python` with status and body."""
    rows = [json.loads(line) for line in (DATA / "answers.jsonl").read_text().splitlines()]
    return {row["name"]: row for row in rows}


def stem(wire_rid: str) -> str:
    """The wire rid without its suffix."""
    return wire_rid.partition("#")[0]


# -- what the recorded clients sent ------------------------------------------------------

_LONG = {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}
# The template of the model that was recorded.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)

NATIVE = (
    "plain", "logprobs", "top", "tokids", "stream_top", "hidden", "batch", "input_ids", "zero",
    "stopstr", "stopstr_notrim", "stopid", "regex", "long120",
)  # fmt: skip

OPENAI = ("chat", "chat_stream", "chat_lp", "comp", "comp_n", "comp_stream", "badmodel")

# Their messages were recorded, their answers not.
FLUSHES = ("/flush_cache", "/flush_cache?timeout=1")

# Requests whose answers were recorded without the request itself.
ABORTED: dict[str, dict[str, Any]] = {
    f"aborted_{rid}": {"text": "Hello world", "rid": rid, "sampling_params": _LONG}
    for rid in ("run0", "run1", "run2", "run3", "queued0", "queued1")
}


@dataclass
class Exchange:
    """One HTTP request, the recorded messages it causes, and its answer once it is in."""

    name: str
    method: str = "POST"
    path: str = "/generate"
    body: Any = None
    messages: int = 1
    client: Client | None = None
    answer: Answer | None = None

    @property
    def events(self) -> list[Any]:
        """The answer as a list of JSON values; a stream without its terminator."""
        assert self.answer is not None
        if self.answer.headers.get("content-type", "").startswith("text/event-stream"):
            found = self.answer.events()
            assert found[-1] == "[DONE]" and found.count("[DONE]") == 1
            return found[:-1]
        return [self.answer.json()] if self.answer.body else []


def body_of(row: dict[str, Any]) -> Any:
    """A recorded request; long id lists were recorded as the expression that made them."""
    body = dict(row["request"])
    ids = body.get("input_ids")
    if isinstance(ids, str):
        token, count = re.fullmatch(r"\[(\d+)\] \* (\d+)", ids).groups()  # type: ignore[union-attr]
        body["input_ids"] = [int(token)] * int(count)
    return body


def exchanges() -> list[Exchange]:
    """The requests that reached the scheduler, in the order of the recording."""
    rows = answers()
    made = [Exchange(n, body=body_of(rows[n])) for n in NATIVE]
    made += [Exchange(n, path=rows[n]["path"], body=body_of(rows[n])) for n in OPENAI]
    made += [Exchange(n, body=body) for n, body in ABORTED.items()]
    for name in ("abort_queued", "abort_run"):
        made.append(Exchange(name, path="/abort_request", body=rows[name]["request"]))
    made.append(
        Exchange("abort_all", path="/abort_request", body=rows["abort_all"]["request"], messages=4)
    )
    made.append(Exchange("/health", "GET", "/health"))
    made.append(Exchange("/server_info", "GET", "/server_info"))
    made += [Exchange(path, path=path) for path in FLUSHES]
    made.append(Exchange("/weights_checker", "GET", "/weights_checker"))
    for exchange in made:
        if exchange.name in ("batch", "comp", "comp_n"):
            exchange.messages = 2
    return made


# -- the scheduler -----------------------------------------------------------------------


@dataclass
class Message:
    """One message our server sent to the scheduler."""

    raw: bytes
    values: list[Any]
    buffers: list[tuple[str, str, bytes]]


@dataclass
class Playback:
    """Plays the recording to `server`. `seen` pairs each recorded message with ours."""

    server: Any
    address: Any
    wire: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[dict[str, Any], Message]] = field(default_factory=list)
    pushed: int = 0
    _inbox: list[Message] = field(default_factory=list)

    def send(self, exchange: Exchange) -> None:
        """Send a request without waiting for its answer."""
        exchange.client = Client(self.address)
        exchange.client.request(exchange.method, exchange.path, exchange.body)

    def expect(self, recorded: dict[str, Any]) -> None:
        """Wait for the message that pairs with a recorded one."""
        for _ in range(300):
            for message in self._inbox:
                if self._pairs(recorded["decoded"], message.values):
                    self._inbox.remove(message)
                    self.seen.append((recorded, message))
                    self.wire[recorded["decoded"][RID]] = message.values[RID]
                    return
            self.server.wait_request(100)
            for request in self.server.recv_requests():
                self._inbox.append(read_message(request))
        raise AssertionError(f"{recorded['decoded'][:4]} never came; {self._inbox}")

    def _pairs(self, recorded: list[Any], ours: list[Any]) -> bool:
        if recorded[0] != ours[0]:
            return False
        if recorded[RID] in self.wire:  # an abort
            return bool(self.wire[recorded[RID]] == ours[RID])
        theirs, own = stem(recorded[RID]), stem(ours[RID])
        if AUTO.fullmatch(theirs):
            same_kind = theirs.startswith("HEALTH") == own.startswith("HEALTH")
            return bool(
                AUTO.fullmatch(own) and same_kind
                and (recorded[0] != GENERATE or recorded[TEXT] == ours[TEXT])
            )  # fmt: skip
        return theirs == own

    def push(self, recorded: dict[str, Any]) -> None:
        """Push a recorded frame, control answer or ack."""
        if recorded["kind"] == "health_ack":
            assert self.server.push_health_ack() is True
        elif recorded["kind"] == "control":
            payload = bytes.fromhex(recorded["hex"])
            assert self.server.push_control_result(self.wire[recorded["rid"]], payload) is True
        else:
            columns = list(recorded["decoded"])
            assert msgpack.packb(columns) == bytes.fromhex(recorded["hex"])
            columns[0] = [self.wire[rid] for rid in columns[0]]
            data = [bytes.fromhex(column) for column in recorded["cols"]]
            assert self.server.push_decode_result_batch(msgpack.packb(columns), data) is True
        self.pushed += 1

    def unexpected(self) -> list[Message]:
        """What our server sent and no recorded message asked for."""
        self._inbox += [read_message(r) for r in self.server.recv_requests()]
        return self._inbox


def read_message(request: Any) -> Message:
    """An `IngressRequest` as plain data."""
    buffers = [(name, str(a.dtype), a.tobytes()) for name, a in request.buffers]
    return Message(request.header, msgpack.unpackb(request.header, strict_map_key=False), buffers)


def play(server: Any, address: Any, frames: list[dict[str, Any]]) -> tuple[
    Playback, dict[str, Exchange]
]:  # fmt: skip
    """Play everything; the exchanges by name, answered. The first recorded message is the
    server's own warm-up request: nothing is sent for it."""
    playback = Playback(server, address)
    todo = iter(exchanges())
    done: dict[str, Exchange] = {}
    open_messages = 1  # the warm-up's
    for recorded in frames:
        if recorded["kind"] != "ingress":
            playback.push(recorded)
            continue
        closes_probe = (
            recorded["decoded"][RID].startswith("HEALTH") and recorded["decoded"][0] == "AbortReq"
        )
        if not open_messages and not closes_probe:
            exchange = next(todo)
            playback.send(exchange)
            done[exchange.name] = exchange
            open_messages = exchange.messages
        playback.expect(recorded)
        open_messages -= not closes_probe
        if recorded["decoded"][0] == "GetInternalStateReq":
            # No answer to it was recorded.
            payload = msgpack.packb({"internal_state": {"max_total_num_tokens": 8192}})
            assert server.push_control_result(playback.wire[recorded["decoded"][RID]], payload)
    assert next(todo, None) is None, "a request was never sent"
    for exchange in done.values():
        assert exchange.client is not None
        exchange.answer = exchange.client.answer()
        exchange.client.close()
    return playback, done


# -- comparing ---------------------------------------------------------------------------

MISSING = "(missing)"
Difference = tuple[str, Any, Any]  # path, ours, theirs


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    """Where two JSON values differ, leaf by leaf; a key only one side has is MISSING there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in [*ours, *(k for k in theirs if k not in ours)]:
            yield from differences(
                ours.get(key, MISSING), theirs.get(key, MISSING), f"{path}.{key}" if path else key
            )
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{path}[{k}]")
    elif type(ours) is not type(theirs) or ours != theirs:
        yield path, ours, theirs


def masked(value: Any, rids: Callable[[str], bool]) -> Any:
    """A copy with the end-to-end latency and the ids made by a server replaced."""
    if isinstance(value, list):
        return [masked(v, rids) for v in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, item in value.items():
        if key == "e2e_latency":
            assert isinstance(item, float) and 0 < item < 60
            item = "masked"
        elif key == "created":
            assert isinstance(item, int) and item > 1_700_000_000
            item = "masked"
        elif key == "id" and isinstance(item, str) and rids(item):
            item = "masked"
        out[key] = masked(item, rids)
    return out


def is_auto(rid: str) -> bool:
    """Whether a shown rid was made by a server."""
    return AUTO.fullmatch(rid) is not None


def parse_body(body: str) -> list[Any]:
    """A recorded body as `Exchange.events` shows ours. What was cut off at its end is left out."""
    if not body.startswith("data:"):
        return [json.loads(body)] if body else []
    parts = [p.removeprefix("data: ") for p in body.split("\n\n") if p.strip()]
    events = []
    for part in parts:
        if part == "[DONE]":
            break
        try:
            events.append(json.loads(part))
        except ValueError:
            assert part is parts[-1], "only the end of a recorded body was cut"
    return events
