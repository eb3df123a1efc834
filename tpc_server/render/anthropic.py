"""Answers of `/v1/messages`. Owner: the detok core; one shape per request.

Order of a stream: message_start; blocks one after the other, each with its start, deltas and stop;
message_delta with the reason and the count; message_stop. An error closes the block that is open
and comes before message_stop. Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ..contract.errors import anthropic_error_body
from . import native
from .chat import ChatShape, joined
from .openai import SLOW

_DELTA: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"%b_delta","%b":'
)
_OPEN: Final = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,'
    b'"content_block":%b}\n\n'
)
_CLOSE: Final = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_TEXT: Final = b'{"type":"text","text":""}'
_THINKING: Final = b'{"type":"thinking","thinking":""}'


class MessagesShape(ChatShape):
    """One message, of blocks of text, thinking and tool calls."""

    terminator = b""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        given = self.spec.id
        self._id = native.json_string(given if given.startswith("msg_") else f"msg_{given}")
        self._started = False
        self._block = b""  # the one that is open, as it began
        self._index = 0  # of it, or of the next one
        self._plain = SLOW  # how the step loop may write once a text is open

    # -- streams -----------------------------------------------------------------------

    def frame(self, stream: Any, latency_s: float | None) -> bytes:
        """The events that show all that is new."""
        parts: list[bytes] = []
        if not stream.opened:
            stream.opened = True
            parts.append(self._start(stream.prompt_tokens, stream.cached))
            self._plain, stream.mode = stream.mode, SLOW
        if stream.events is not None:
            self._events(stream, parts)
        elif stream.text:
            parts.append(self._enter(_TEXT))
            parts.append(b'%b"%b"}}\n\n' % (_DELTA % (self._index, b"text", b"text"), stream.text))
            stream.mode = self._plain
        if stream.finish is not None:
            parts.append(self._leave())
            parts.append(
                b'event: message_delta\ndata: {"type":"message_delta","delta":{%b},'
                b'"usage":{"output_tokens":%d}}\n\n' % (self._why(stream), stream.completion)
            )
            parts.append(_STOP)
        return b"".join(parts)

    def middle(self, stream: Any) -> tuple[bytes, bytes]:
        """What stands before and after the text in a plain row's event."""
        return _DELTA % (self._index, b"text", b"text") + b'"', b'"}}\n\n'

    def ending(self, group: Any) -> bytes:
        """Nothing: the last frame has the usage."""
        return b""

    def error_frame(self, message: str, status: int, index: int | None) -> bytes:
        """An error, and the end of all that was begun."""
        start = b"" if self._started else self._start(0, 0)
        body = anthropic_error_body(message, status)
        return b"%b%bevent: error\ndata: %b\n\n%b" % (start, self._leave(), body, _STOP)

    # -- whole answers -----------------------------------------------------------------

    def result(self, stream: Any, latency_s: float) -> bytes:
        """The blocks and the reason, as members."""
        if stream.events is None:
            blocks = b'{"type":"text","text":"%b"}' % stream.text
        else:
            blocks = native.to_json(_blocks(stream.events))[1:-1]
        model = native.json_string(self.spec.model)
        return b'"content":[%b],"model":%b,%b' % (blocks, model, self._why(stream))

    def body(self, group: Any) -> bytes:
        """The whole answer."""
        first = group.streams[0]
        return b'{"id":%b,"type":"message","role":"assistant",%b,"usage":%b}' % (
            self._id, group.results[0],
            self._usage(first.prompt_tokens, first.cached, first.completion),
        )  # fmt: skip

    def error_body(self, message: str, status: int) -> bytes:
        """The body of an error answer."""
        return anthropic_error_body(message, status)

    # -- inside ------------------------------------------------------------------------

    def _start(self, prompt: int, cached: int) -> bytes:
        self._started = True
        return (
            b'event: message_start\ndata: {"type":"message_start","message":{"id":%b,'
            b'"type":"message","role":"assistant","content":[],"model":%b,"usage":%b}}\n\n'
            % (self._id, native.json_string(self.spec.model), self._usage(prompt, cached, 0))
        )

    def _usage(self, prompt: int, cached: int, completion: int) -> bytes:
        if not self.spec.cache_report or not cached:
            return b'{"input_tokens":%d,"output_tokens":%d}' % (prompt, completion)
        return b'{"input_tokens":%d,"output_tokens":%d,"cache_read_input_tokens":%d}' % (
            prompt - cached, completion, cached,
        )  # fmt: skip

    def _enter(self, block: bytes) -> bytes:
        """The events after which deltas of this block may come."""
        if self._block == block:
            return b""
        data = self._leave()
        self._block = block
        return data + _OPEN % (self._index, block)

    def _leave(self) -> bytes:
        """The end of the block that is open."""
        if not self._block:
            return b""
        self._block = b""
        self._index += 1
        return _CLOSE % (self._index - 1)

    def _events(self, stream: Any, parts: list[bytes]) -> None:
        """What a parser made of the new text."""
        for event in stream.events:
            kind = event[0]
            if kind == "content" or kind == "reasoning":
                name = b"text" if kind == "content" else b"thinking"
                parts.append(self._enter(_TEXT if kind == "content" else _THINKING))
                parts.append(self._delta(name, name, event[1]))
                continue
            if kind == "call":
                parts.append(
                    self._enter(
                        b'{"type":"tool_use","id":%b,"name":%b,"input":{}}'
                        % (native.json_string(event[2]), native.json_string(event[3]))
                    )
                )
            if event[-1]:
                parts.append(self._delta(b"input_json", b"partial_json", event[-1]))
        stream.events.clear()

    def _delta(self, kind: bytes, member: bytes, text: str) -> bytes:
        return b"%b%b}}\n\n" % (_DELTA % (self._index, kind, member), native.json_string(text))

    def _why(self, stream: Any) -> bytes:
        """Why the message ended, as members."""
        kind, matched = stream.finish.get("type"), stream.finish.get("matched")
        if kind == "length":
            return b'"stop_reason":"max_tokens"'
        if kind == "stop" and stream.events is not None and stream.transform.called:
            return b'"stop_reason":"tool_use"'
        if type(matched) is str:
            text = native.json_string(matched)
            return b'"stop_reason":"stop_sequence","stop_sequence":%b' % text
        return b'"stop_reason":"end_turn"'


def _blocks(events: list[Any]) -> list[dict[str, Any]]:
    """Events of a whole text, as blocks: there is always one."""
    content, reasoning, calls = joined(events)
    blocks: list[dict[str, Any]] = []
    if reasoning:
        blocks.append({"type": "thinking", "thinking": reasoning})
    if content or not (reasoning or calls):
        blocks.append({"type": "text", "text": content})
    for call in calls:
        function = call["function"]
        given = _input(function["arguments"])
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        )
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """What a model wrote as a tool's arguments, empty where that is no JSON object: cut by the
    length, no number (NaN, 1e999), nested beyond all reason."""
    try:
        given = json.loads(arguments)
        native.to_json(given)
    except (ValueError, RecursionError):
        return {}
    return given if type(given) is dict else {}
