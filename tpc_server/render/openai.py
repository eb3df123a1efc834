"""What the two kinds of OpenAI answers share. Owner: the detok core; one shape per request.

Text is always streamed as deltas. A chunk of a plain row is what is the same in all chunks of a
choice, the text, and an end that is the same for all: the step loop joins the three.

Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..contract.errors import openai_error_body
from . import native
from .openai_logprobs import OpenAILogprobs

# A plain row's mode (`stages.stream`): the step loop may write it, or not.
SLOW: Final = 0
DELTA: Final = 4


class Spec(NamedTuple):
    """Facts of an OpenAI request that its answer repeats or depends on. Crosses cores as a tuple.

    id, model         as the answer says them
    created           seconds since the epoch
    n                 samples of each prompt
    include_usage     one chunk with the usage at the end of a stream
    continuous_usage  and the usage in every chunk
    cache_report      the usage says how many prompt tokens were cached
    top_logprobs      alternatives a token, -1 without logprobs
    hidden            "", "last" (rows as the scheduler gives them) or "all" (the last token's)
    token_ids         the answer carries the ids of prompt and output
    meta_info         choices carry the native meta_info
    echo              completions: None, or the prompts' texts; empty where ids were given
    parser            chat: None, or (reasoning parser, tool parser, its options)
    """

    id: str
    model: str
    created: int
    n: int = 1
    include_usage: bool = False
    continuous_usage: bool = False
    cache_report: bool = False
    top_logprobs: int = -1
    hidden: str = ""
    token_ids: bool = False
    meta_info: bool = False
    echo: list[str] | None = None
    parser: tuple[Any, ...] | None = None


class OpenAIShape:
    """Base of the shapes of chat and text completions."""

    object_name = b""
    chunk_name = b""
    terminator = native.DONE  # what ends a stream, empty for nothing

    def __init__(
        self, spec: Spec, weight_version: bytes, decode: Callable[[list[int]], str]
    ) -> None:
        self.spec = spec
        self.decode = decode  # ids to text, special tokens hidden
        self.shows_ids = spec.token_ids  # as in the native shape
        self._hidden: dict[int, bytearray] = {}
        self.weight_version = weight_version
        self.incremental = True
        plain = not spec.continuous_usage and spec.top_logprobs < 0 and not spec.token_ids
        self.mode = DELTA if plain else SLOW
        self._id, self._model = native.json_string(spec.id), native.json_string(spec.model)
        self._open = b""  # of a chunk

    # -- for rows.py -------------------------------------------------------------------

    def logprobs(self, with_text: bool, texts: Any) -> Any:
        """Where a stream's logprobs go."""
        return OpenAILogprobs(texts)

    def prepare(self, stream: Any) -> None:
        """A stream has been opened."""

    def frame(self, stream: Any, latency_s: float | None) -> bytes:
        """The events that show all that is new; empty when nothing is."""
        raise NotImplementedError

    def middle(self, stream: Any) -> tuple[bytes, bytes]:
        """What stands before and after the text in a plain row's chunk."""
        raise NotImplementedError

    def choice(self, stream: Any) -> bytes:
        """The members of an unary choice after its index, up to its logprobs."""
        raise NotImplementedError

    # -- shared ------------------------------------------------------------------------

    def chunk(self, choice: bytes, usage: bytes = b"") -> bytes:
        """One event; `choice` is a whole choice object, `usage` a member after the choices."""
        return b"%b%b]%b}\n\n" % (self.opening(), choice, usage)

    def opening(self) -> bytes:
        """How each event begins, up to its choices."""
        if not self._open:
            self._open = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
                self._id, self.chunk_name, self.spec.created, self._model
            )  # fmt: skip
        return self._open

    def result(self, stream: Any, latency_s: float) -> bytes:
        """One choice of an answer that is not streamed."""
        parts = [
            b'{"index":%d,' % stream.index, self.choice(stream),
            b',"finish_reason":%b,"matched_stop":%b' % self.ended(stream),
        ]  # fmt: skip
        spec = self.spec
        if spec.hidden:
            parts.append(b',"hidden_states":%b' % self.hidden_states(stream))
        parts.append(self.id_members(stream))
        if spec.meta_info:
            parts.append(
                b',"meta_info":%b' % native.meta_info(stream, self.weight_version, latency_s)
            )
        parts.append(b"}")
        return b"".join(parts)

    def id_members(self, stream: Any) -> bytes:
        """Token ids of an unary choice, each member after a comma."""
        return b""

    @property
    def plain(self) -> bool:
        """Whether nothing is asked for beside a choice's text (`stages.unary`)."""
        spec = self.spec
        return spec.parser is None and not (spec.hidden or spec.meta_info or spec.token_ids)

    def body(self, group: Any) -> bytes:
        """The whole answer, once every choice has ended."""
        spec = self.spec
        first = group.streams[0]
        versions = b""
        if first.versions is not None:
            versions = b',"weight_versions":%b' % native.to_json(first.versions)
        return (
            b'{"id":%b,"object":"%b","created":%d,"model":%b,"choices":[%b],"usage":%b,'
            b'"metadata":{"weight_version":%b%b}}'
            % (
                self._id, self.object_name, spec.created, self._model, b",".join(group.results),
                self.usage(group.streams), self.weight_version, versions,
            )
        )  # fmt: skip

    def ending(self, group: Any) -> bytes:
        """The chunk with the usage, where it was asked for."""
        if not self.spec.include_usage:
            return b""
        return self.chunk(b"", b',"usage":%b' % self.usage(group.streams))

    def usage(self, streams: list[Any]) -> bytes:
        """Usage over choices: a prompt counts once, however many samples it has."""
        n = self.spec.n
        if len(streams) == 1:
            only = streams[0]
            return self.usage_object(
                only.prompt_tokens, only.completion, only.reasoning, only.cached
            )
        cached = sum([s.cached for s in streams if s.index % n == 0])
        reasoning = sum([s.reasoning for s in streams])
        prompt = sum([s.prompt_tokens for s in streams if s.index % n == 0])
        completion = sum([s.completion for s in streams])
        return self.usage_object(prompt, completion, reasoning, cached)

    def usage_object(self, prompt: int, completion: int, reasoning: int, cached: int) -> bytes:
        """A usage object out of its counts."""
        return (
            b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
            b'"prompt_tokens_details":%b,"reasoning_tokens":%d,"completion_tokens_details":%b}'
            % (
                prompt,
                prompt + completion,
                completion,
                b'{"cached_tokens":%d}' % cached if self.spec.cache_report else b"null",
                reasoning,
                b'{"reasoning_tokens":%d}' % reasoning if reasoning else b"null",
            )
        )

    def running_usage(self, stream: Any) -> bytes:
        """The usage member of a choice's chunk, where it is wanted in every one."""
        if not self.spec.continuous_usage:
            return b""
        return b',"usage":%b' % self.usage_object(
            stream.prompt_tokens, stream.completion, stream.reasoning, stream.cached
        )

    def ended(self, stream: Any) -> tuple[bytes, bytes]:
        """Why a choice ended, and the stop string or id that ended it (or null), as JSON."""
        finish = stream.finish
        value = finish.get("matched")
        stop = b"null"  # a list has no place here
        if type(value) is str:
            stop = native.json_string(value)
        elif type(value) is int:
            stop = b"%d" % value
        return native.json_string(str(finish.get("type"))), stop

    def keep_hidden(self, stream: Any) -> None:
        """A streamed choice shows its hidden states at its end: keep what this step brought."""
        if stream.hidden:
            kept = self._hidden.setdefault(stream.index, bytearray())
            kept += b",%b" % stream.hidden if kept else stream.hidden
            if self.spec.hidden == "all":  # the last row is shown, where it is not the only one
                last = kept.rfind(b"],[")
                if last > 0:
                    kept[:last] = b"["
            if stream.finish is not None:
                stream.hidden[:] = self._hidden.pop(stream.index)

    def hidden_states(self, stream: Any) -> bytes:
        """The hidden states a choice shows, as JSON: of its last token."""
        if self.spec.hidden == "last":
            return b"[%b]" % stream.hidden
        rows = stream.hidden.rfind(b"],[")
        if rows < 0:
            return b"[]"
        return bytes(stream.hidden[rows + 2 :])

    def error_frame(self, message: str, status: int, index: int | None) -> bytes:
        """An event that reports an error."""
        return b'data: {"error":%b}\n\n' % openai_error_body(message, status)

    def error_body(self, message: str, status: int) -> bytes:
        """The body of an error answer."""
        return openai_error_body(message, status)
