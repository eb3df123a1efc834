"""Answers of `/v1/completions`. Owner: the detok core; one shape per request.

Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..text.escape import json_escape
from . import native
from .openai import OpenAIShape, Spec

_END: Final = b'","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}\n\n'
_RUNNING: Final = b',"finish_reason":null,"matched_stop":null'


class CompletionShape(OpenAIShape):
    """Text completions: deltas of each choice, the last with its finish reason."""

    object_name = b"text_completion"
    chunk_name = b"text_completion"

    def __init__(
        self, spec: Spec, weight_version: bytes, decode: Callable[[list[int]], str]
    ) -> None:
        super().__init__(spec, weight_version, decode)
        self._with_prompt = spec.echo is not None and spec.top_logprobs > 0

    def prepare(self, stream: Any) -> None:
        """A stream has been opened: its prompt's text comes first where it is echoed."""
        stream.opened = self.spec.echo is None

    def frame(self, stream: Any, latency_s: float | None) -> bytes:
        """The events that show all that is new; empty when nothing is."""
        finish = stream.finish
        usage = self.running_usage(stream) or b',"usage":null'
        if not stream.opened:
            self._echo(stream)
        if self.spec.hidden:
            self.keep_hidden(stream)
        logprobs = b"null"
        if stream.logprobs is not None:
            logprobs = stream.logprobs.completion(stream, self._with_prompt)
        if finish is None and not stream.text and logprobs == b"null" and not self.spec.token_ids:
            return b""
        parts = [b'{"index":%d,"text":"' % stream.index, stream.text, b'","logprobs":', logprobs]
        if finish is None:
            parts.append(_RUNNING)
        else:
            parts.append(b',"finish_reason":%b,"matched_stop":%b' % self.ended(stream))
        if self.spec.token_ids:
            parts.append(b',"token_ids":[%b]' % stream.ids)
            if stream.prompt_ids is not None:
                parts.append(b',"prompt_token_ids":%b' % native.to_json(stream.prompt_ids))
                stream.prompt_ids = None
        parts.append(b"}")
        data = self.chunk(b"".join(parts), usage)
        if finish is not None and self.spec.hidden and stream.hidden:
            data += self.chunk(
                b'{"index":%d,"text":"","logprobs":null,"finish_reason":null,"matched_stop":null,'
                b'"hidden_states":%b}' % (stream.index, self.hidden_states(stream)),
                b',"usage":null',
            )
        return data

    def middle(self, stream: Any) -> tuple[bytes, bytes]:
        """What stands before and after the text in a plain row's chunk."""
        return b'%b{"index":%d,"text":"' % (self.opening(), stream.index), _END

    def choice(self, stream: Any) -> bytes:
        """The members of an unary choice after its index, up to its logprobs."""
        if not stream.opened:
            self._echo(stream)
        logprobs = b"null"
        if stream.logprobs is not None:
            logprobs = stream.logprobs.completion(stream, self._with_prompt)
        return b'"text":"%b","logprobs":%b' % (stream.text, logprobs)

    def id_members(self, stream: Any) -> bytes:
        """Token ids of an unary choice, each member after a comma."""
        if not self.spec.token_ids:
            return b""
        prompt = b""
        if stream.prompt_ids is not None:
            prompt = b',"prompt_token_ids":%b' % native.to_json(stream.prompt_ids)
        return b',"token_ids":[%b]%b' % (stream.ids, prompt)

    def ending(self, group: Any) -> bytes:
        """The chunk with the usage, without the members that say nothing."""
        data = super().ending(group)
        return data.replace(b'"prompt_tokens_details":null,', b"").replace(
            b',"completion_tokens_details":null', b""
        )

    def error_frame(self, message: str, status: int, index: int | None) -> bytes:
        """An event that reports an error."""
        return super().error_frame(_renamed(message), status, index)

    def error_body(self, message: str, status: int) -> bytes:
        """The body of an error answer."""
        return super().error_body(_renamed(message), status)

    def _echo(self, stream: Any) -> None:
        """The prompt in front of the text, once."""
        stream.opened = True
        echo = self.spec.echo
        assert echo is not None
        text = echo[stream.index // self.spec.n] if echo else self.decode(stream.prompt_ids or [])
        stream.text[:0] = json_escape(text)
        if stream.logprobs is not None:
            stream.logprobs.echo = text


def _renamed(message: str) -> str:
    """What was refused once the prompt's length was known, in the client's names."""
    return message.replace("top_logprobs_num", "logprobs")
