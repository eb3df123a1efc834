"""The rules of streams are rules: each wrong stream is seen, by every client of the tests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import pytest

from tests.http_client import Client
from tests.stream_rules import DONE, Watch, check, joined, parse_event, same_as_unary
from tests.stress.wire import Conn, Wrong

LENGTH = {"type": "length", "length": 3}


def event(text: str, finish: Any = None, ids: str = "", **more: Any) -> dict[str, Any]:
    """One of /generate's; its ids are the bytes of `ids`, or of its text."""
    shown = list((ids or text).encode())
    meta = {"finish_reason": finish, "completion_tokens": len(shown), **more}
    return {"text": text, "output_ids": shown, "meta_info": meta}


def chat(content: str | None = None, finish: Any = None, index: int = 0, **more: Any) -> Any:
    delta = {"content": content, **{k: v for k, v in more.items() if k == "role"}}
    return {"choices": [{
        "index": index, "delta": delta, "finish_reason": finish, "logprobs": None,
    }]}  # fmt: skip


def text(content: str, finish: Any = None, index: int = 0) -> Any:
    return {"choices": [{
        "index": index, "text": content, "finish_reason": finish, "logprobs": None,
    }]}  # fmt: skip


def message(*kinds: str) -> list[Any]:
    """One of Anthropic's; `0 text` starts a block, `0 .text` is a delta of it, `0` its end."""
    out: list[Any] = []
    for kind in kinds:
        index, _, block = kind.partition(" ")
        if not index.isdigit():
            out.append({"type": kind, "message": {"content": []}})
        elif block.startswith("."):
            delta = {"type": f"{block[1:]}_delta", block[1:]: "a"}
            out.append({"type": "content_block_delta", "index": int(index), "delta": delta})
        elif block:
            start = {"type": "content_block_start", "index": int(index)}
            out.append({**start, "content_block": {"type": block}})
        else:
            out.append({"type": "content_block_stop", "index": int(index)})
    return out


ENDS = ("message_delta", "message_stop")
ROLE = chat("", role="assistant")
USAGE = {"choices": [], "usage": {"total_tokens": 3}}
ERROR = {"error": {"message": "no", "code": 500}}

RIGHT: dict[str, list[Any]] = {
    "grows": [event("a"), event("abc", LENGTH), DONE],
    "in pieces": [event("a"), event("bc", LENGTH, completion_tokens=3), DONE],
    "one event": [event("abc", LENGTH), DONE],
    "half a character": [event("", ids="\xf0"), event("a", LENGTH, "\xf0a"), DONE],
    "an error only": [ERROR, DONE],
    "an error behind a part": [event("a"), ERROR, DONE],
    "chat": [ROLE, chat("a"), chat(finish="stop"), USAGE, DONE],
    "completion": [text("a"), text("", "stop"), DONE],
    "two choices": [text("a"), text("a", "stop", 1), text("", "stop"), DONE],
    "message": message("message_start", "0 thinking", "0 .thinking", "0", "1 text", "1 .text",
                       "1", *ENDS),
    "message of a call": message("message_start", "0 tool_use", "0 .input_json", "0", *ENDS),
    "message with an error": message("message_start", "0 text", "0 .text", "error",
                                     "message_stop"),
    "half a character at the end": [text("a"), text("\ufffd", "length"), DONE],
}  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "I1 text shrinks": [event("ab"), event("a", completion_tokens=3), event("abc", LENGTH), DONE],
    "I1 text changes": [event("ax"), event("abc", LENGTH), DONE],
    "I1 ids change": [event("a", ids="x"), event("ab", LENGTH), DONE],
    "I1 ids neither grow nor add up": [
        event("a"), event("bc", LENGTH, completion_tokens=4), DONE,
    ],
    "I3 no end": [event("abc", LENGTH)],
    "I3 two ends": [event("abc", LENGTH), DONE, DONE],
    "I3 goes on after its end": [event("abc", LENGTH), DONE, event("a")],
    "I3 goes on after an error": [ERROR, event("a"), DONE],
    "I3 two errors": [ERROR, ERROR, DONE],
    "I3 no end after an error": [ERROR],
    "I3 nothing": [DONE],
    "I4 no finish": [event("abc"), DONE],
    "I4 two finishes": [event("a", LENGTH), event("ab", LENGTH), DONE],
    "I4 of one choice": [text("a", "stop"), text("a", None, 1), DONE],
    "I4 two of a choice": [text("a", "stop"), text("", "stop"), DONE],
    "I6 in a piece": [text("a\ufffd"), text("b", "stop"), DONE],
    "I6 in a native piece": [
        event("a"), event("\ufffd", completion_tokens=4), event("b", LENGTH, completion_tokens=5),
        DONE,
    ],
    "counts go back": [event("ab"), event("ab", LENGTH, completion_tokens=1), DONE],
    "native that says nothing": [event("a"), event("a"), event("abc", LENGTH), DONE],
    "chat that says nothing": [ROLE, chat(""), chat("a", "stop"), DONE],
    "completion that says nothing": [text(""), text("a", "stop"), DONE],
    "no role": [chat("a"), chat("b", "stop"), DONE],
    "two roles": [ROLE, chat("a", role="assistant"), chat("b", "stop"), DONE],
    "usage before the end": [text("a"), USAGE, text("", "stop"), DONE],
    "usage twice": [text("a", "stop"), USAGE, USAGE, DONE],
    "message without an end": message("message_start", "0 text", "0", "message_delta"),
    "message without a reason": message("message_start", "0 text", "0", "message_stop"),
    "message with two reasons": message("message_start", "message_delta", *ENDS),
    "message that goes on": message("message_start", *ENDS, "0 text"),
    "message without a start": message("0 text", "0", *ENDS),
    "block in a block": message("message_start", "0 text", "1 text", "0", *ENDS),
    "block that never ends": message("message_start", "0 text", *ENDS),
    "block of another kind": message("message_start", "0 text", "0 .thinking", "0", *ENDS),
    "block of another number": message("message_start", "1 text", "1", *ENDS),
    "delta without a block": message("message_start", "0 .text", *ENDS),
    "usage of nothing": [text("a", "stop"), {"choices": [], "usage": None}, DONE],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_streams(name: str) -> None:
    check(RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_wrong_streams_are_seen(name: str) -> None:
    with pytest.raises(AssertionError):
        check(WRONG[name])


def test_what_is_demanded_of_native_text() -> None:
    for name, cumulative in (("grows", False), ("in pieces", True)):
        with pytest.raises(AssertionError):
            check(RIGHT[name], cumulative)
        check(RIGHT[name], not cumulative)


def test_the_whole_text() -> None:
    for name in ("grows", "in pieces"):
        assert joined(RIGHT[name]) == "abc"
        same_as_unary(RIGHT[name], "abc")
    # Pieces that could be a text that grows, but for what was counted.
    alike = [event("a"), event("aa", completion_tokens=3), event("aa", LENGTH, completion_tokens=5)]
    assert joined([*alike, DONE]) == "aaaaa"
    same = [event("a"), event("a", LENGTH), event("b", LENGTH, completion_tokens=2)]
    same[1]["index"] = 1
    assert [joined([*same, DONE], k) for k in (0, 1)] == ["ab", "a"]
    for events, unary in (
        (RIGHT["grows"], "abcd"), (RIGHT["chat"], "b"), (WRONG["I6 in a piece"], "aéb"),
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            same_as_unary(events, unary)
    same_as_unary(WRONG["I6 in a piece"], "a\ufffdb")
    check(WRONG["I6 in a piece"], halves=True)


@pytest.mark.parametrize(
    "raw",
    [
        b"event: x\ndata: {}",
        b'event: x\ndata: {"type": "y"}',
        b"event: x",
        b"data: {",
        b'data: {"a":NaN}',
        b"event: x",
        b'{"a":1}',
        b"data: {}\ndata: {}",
        b"",
    ],
)
def test_events_are_strict_json(raw: bytes) -> None:
    with pytest.raises(AssertionError):
        parse_event(raw)


def test_bytes_in_any_pieces() -> None:
    raw = b": keep-alive\n\n" + encoded(RIGHT["chat"])
    for size in (1, 7, len(raw)):
        watch, found = Watch(), []
        for at in range(0, len(raw), size):
            found += watch.feed(raw[at : at + size])
        watch.end()
        assert found == RIGHT["chat"]
    watch.feed(b"d")
    with pytest.raises(AssertionError):
        watch.end()


def encoded(events: list[Any]) -> bytes:
    return b"".join(
        b"data: %b\n\n" % (b"[DONE]" if e == DONE else json.dumps(e).encode()) for e in events
    )


def answering(events: list[Any], chunked: bool) -> int:
    """A port where one request is answered with that stream."""
    body = encoded(events)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if chunked:
        head += b"Transfer-Encoding: chunked\r\n"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listening, listening.accept()[0] as one:
            one.recv(1 << 16)
            one.sendall(head + b"\r\n" + body)

    threading.Thread(target=answer, daemon=True).start()
    return int(listening.getsockname()[1])


@pytest.mark.parametrize("name", ["I1 text changes", "I3 goes on after its end", "I4 no finish"])
def test_no_client_reads_a_stream_without_them(name: str) -> None:
    """Neither whole, nor chunk by chunk, nor from HTTP/1.0, nor in the load generator."""
    for chunked in (True, False):
        with Client(("127.0.0.1", answering(WRONG[name], chunked))) as client:
            client.request("GET", "/")
            with pytest.raises(AssertionError):
                client.answer()
    with Client(("127.0.0.1", answering(WRONG[name], True))) as client:
        client.request("GET", "/")
        client.head()
        with pytest.raises(AssertionError):
            while client.chunk():
                pass

    async def load(port: int) -> None:
        conn = await Conn.open(("127.0.0.1", port))
        await conn.send(b"GET / HTTP/1.1\r\n\r\n")
        _, headers = await conn.head()
        async for _ in conn.events(headers):
            pass
        conn.close()

    with pytest.raises(Wrong, match="a rule of streams"):
        asyncio.run(load(answering(WRONG[name], True)))
    with Client(("127.0.0.1", answering(RIGHT["grows"], False))) as client:
        client.request("GET", "/")
        assert client.answer().events() == RIGHT["grows"]
    asyncio.run(load(answering(RIGHT["grows"], True)))
