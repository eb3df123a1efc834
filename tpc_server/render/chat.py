"""Answers of `/v1/chat/completions`. Owner: the detok core; one shape per request.

Order of a stream: for every choice one chunk with the role, deltas, one with the finish reason;
then the usage where it was asked for. Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

from typing import Any, Final

from ..text.escape import json_escape
from . import native
from .openai import SLOW, OpenAIShape

_DELTA: Final = b'{"index":%d,"delta":{"reasoning_content":null,"content":"'
_END: Final = b'"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'
_ROLE: Final = (
    b'{"index":%d,"delta":{"reasoning_content":null,"role":"assistant","content":""},'
    b'"logprobs":null,"finish_reason":null,"matched_stop":null}'
)


class ChatShape(OpenAIShape):
    """Chat completions; text goes through the stream's parser where there is one."""

    object_name = b"chat.completion"
    chunk_name = b"chat.completion.chunk"

    def prepare(self, stream: Any) -> None:
        """A stream has been opened."""
        parser = self.spec.parser
        if parser is not None:
            from ..parsers.base import make_parser  # few requests need it

            stream.transform = make_parser(*parser)
            stream.events = []
            self.mode = SLOW

    def frame(self, stream: Any, latency_s: float | None) -> bytes:
        """The events that show all that is new; empty when nothing is."""
        finish = stream.finish
        usage = self.running_usage(stream)
        parts: list[bytes] = []
        if self.spec.hidden:
            self.keep_hidden(stream)
        if not stream.opened:
            stream.opened = True
            parts.append(self.chunk(_ROLE % stream.index, usage))
        logprobs = b"null" if stream.logprobs is None else stream.logprobs.chat()
        for delta in self._deltas(stream):
            parts.append(self._delta_chunk(stream, delta, logprobs, usage))
            logprobs = b"null"  # with the first chunk of the step, not with each
        if logprobs != b"null":
            parts.append(self._delta_chunk(stream, b"", logprobs, usage))
        if finish is not None:
            parts.append(
                self.chunk(
                    b'{"index":%d,"delta":{"reasoning_content":null},"logprobs":null,'
                    b'"finish_reason":%b,"matched_stop":%b}' % (stream.index, *self.ended(stream)),
                    usage,
                )
            )
            if self.spec.hidden and stream.hidden:
                hidden = b',"hidden_states":%b' % self.hidden_states(stream)
                parts.append(self._delta_chunk(stream, hidden, b"null", usage))
        return b"".join(parts)

    def middle(self, stream: Any) -> tuple[bytes, bytes]:
        """What stands before and after the text in a plain row's chunk."""
        return self.opening() + _DELTA % stream.index, _END

    def choice(self, stream: Any) -> bytes:
        """The members of an unary choice after its index, up to its logprobs."""
        logprobs = b"null" if stream.logprobs is None else stream.logprobs.chat()
        if stream.events is None:
            return (
                b'"message":{"role":"assistant","content":"%b","reasoning_content":null},'
                b'"logprobs":%b' % (stream.text, logprobs)
            )
        content, reasoning, calls = joined(stream.events)
        members = b""
        if calls:
            members = b',"tool_calls":%b' % native.to_json(calls)
        return (
            b'"message":{"role":"assistant","content":%b,"reasoning_content":%b%b},"logprobs":%b'
            % (
                native.json_string(content),
                native.json_string(reasoning) if reasoning else b"null",
                members,
                logprobs,
            )
        )

    def plain_body(
        self, stream: Any, text: bytes, prompt: int, completion: int, reasoning: int, cached: int
    ) -> bytes:
        """The whole answer of a plain choice: `text` is escaped, then usage by tokens."""
        return (
            b'{"id":%b,"object":"chat.completion","created":%d,"model":%b,"choices":['
            b'{"index":0,"message":{"role":"assistant","content":"%b","reasoning_content":null},'
            b'"logprobs":null,"finish_reason":%b,"matched_stop":%b}],"usage":%b,'
            b'"metadata":{"weight_version":%b}}'
        ) % (
            self._id, self.spec.created, self._model, text, *self.ended(stream),
            self.usage_object(prompt, completion, reasoning, cached), self.weight_version,
        )  # fmt: skip

    def id_members(self, stream: Any) -> bytes:
        """Token ids of an unary choice, each member after a comma."""
        if not self.spec.token_ids:
            return b""
        prompt = native.to_json(stream.prompt_ids or [])
        return b',"prompt_token_ids":%b,"response_token_ids":[%b]' % (prompt, stream.ids)

    def ended(self, stream: Any) -> tuple[bytes, bytes]:
        """Why a choice ended: `tool_calls` where the engine stopped by itself and made a call."""
        kind = stream.finish.get("type")
        if kind == "stop" and stream.events is not None and stream.transform.called:
            return b'"tool_calls"', b"null"
        return super().ended(stream)

    # -- inside ------------------------------------------------------------------------

    def _delta_chunk(self, stream: Any, delta: bytes, logprobs: bytes, usage: bytes) -> bytes:
        """One chunk of a choice; `delta` are members after a comma, reasoning_content first."""
        opened = b"" if delta.startswith(b',"reasoning_content"') else b',"reasoning_content":null'
        return self.chunk(
            b'{"index":%d,"delta":{%b%b},"logprobs":%b,"finish_reason":null,"matched_stop":null}'
            % (stream.index, opened[1:], delta if opened else delta[1:], logprobs),
            usage,
        )

    def _deltas(self, stream: Any) -> list[bytes]:
        """What is new, one delta a chunk."""
        if stream.events is None:
            return [b',"content":"%b"' % stream.text] if stream.text else []
        out: list[bytes] = []
        for event in stream.events:
            kind = event[0]
            if kind == "content":
                out.append(b',"content":%b' % native.json_string(event[1]))
            elif kind == "reasoning":
                out.append(b',"reasoning_content":%b' % native.json_string(event[1]))
            elif kind == "call":
                out.append(
                    b',"tool_calls":[{"index":%d,"id":%b,"type":"function",'
                    b'"function":{"name":%b,"arguments":"%b"}}]'
                    % (
                        event[1], native.json_string(event[2]), native.json_string(event[3]),
                        json_escape(event[4]),
                    )
                )  # fmt: skip
            else:
                out.append(
                    b',"tool_calls":[{"index":%d,"function":{"arguments":%b}}]'
                    % (event[1], native.json_string(event[2]))
                )
        stream.events.clear()
        return out


def joined(events: list[Any]) -> tuple[str, str, list[dict[str, Any]]]:
    """Events of a whole text: content, reasoning, tool calls."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    arguments: list[list[str]] = []  # by index; joined once, there may be a fragment a token
    for event in events:
        kind = event[0]
        if kind == "content":
            content.append(event[1])
        elif kind == "reasoning":
            reasoning.append(event[1])
        elif kind == "call":
            calls.append(
                {
                    "id": event[2], "index": event[1], "type": "function",
                    "function": {"name": event[3], "arguments": ""},
                }
            )  # fmt: skip
            arguments.append([event[4]])
        else:
            arguments[event[1]].append(event[2])
    for call, pieces in zip(calls, arguments, strict=True):
        call["function"]["arguments"] = "".join(pieces)
    return "".join(content), "".join(reasoning), calls
