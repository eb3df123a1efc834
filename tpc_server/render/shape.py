"""How the answer to one HTTP request looks, whatever generates it. Owner: the detok core.

A shape turns what a stream's buffers hold into bytes. The step loop and `rows.py` know when there
is something to show; a shape knows what it looks like. `NativeShape` is one per core, the shapes of
OpenAI answers are one per request.

Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import native
from .logprobs import LogprobBuffers

# How a plain row may be written: the modes of `stages.stream`.
_INCREMENTAL: Final = 1
_CUMULATIVE: Final = 2

#: What a group is about whose answer is this member of an object: /vertex_generate.
PREDICTIONS: Final = "predictions"


class NativeShape:
    """`/generate`: a frame is the newest state, or with `incremental` what is new."""

    terminator = native.DONE
    shows_ids = True  # an answer that is not streamed has the ids

    def __init__(self, weight_version: bytes, incremental: bool, has_text: bool) -> None:
        self.weight_version = weight_version  # a JSON string
        self.incremental = incremental  # what was shown is cut from the buffers
        self.mode = _INCREMENTAL if incremental else _CUMULATIVE
        self._has_text = has_text

    def logprobs(self, with_text: bool, texts: Any) -> Any:
        """Where a stream's logprobs go; `texts` knows the texts of tokens."""
        return LogprobBuffers(texts.text_of if with_text else None, texts.setup.beat)

    def frame(self, stream: Any, latency_s: float | None) -> bytes | native.Parts:
        """The event that shows all that is new, perhaps in parts; `latency_s` on the last one."""
        meta = native.meta_parts(stream, self.weight_version, latency_s)
        parts = native.result_parts(stream, self._has_text, meta, stream.group.is_batch)
        return [b"data: ", *parts, b"\n\n"]

    def middle(self, stream: Any) -> Any:
        """What the step loop puts between the ids and the counter of a plain row."""
        return b'%b%b,"completion_tokens":' % (
            native.META_OPEN,
            native.meta_middle(
                stream.rid_json, b"null", stream.prompt_tokens, self.weight_version,
                stream.cached, stream.reasoning,
            ),
        )  # fmt: skip

    def result(self, stream: Any, latency_s: float) -> bytes:
        """The answer object of one item that is not streamed."""
        meta = native.meta_parts(stream, self.weight_version, latency_s)
        return b"".join(native.result_parts(stream, self._has_text, meta, False))

    def body(self, group: Any) -> bytes:
        """The whole answer, once every item has its result."""
        body = b",".join(group.results)
        if not group.is_batch:
            return body
        return b'{"%b":[%b]}' % (group.about.encode(), body) if group.about else b"[%b]" % body

    def ending(self, group: Any) -> bytes:
        """Events between the last one of the streams and the terminator."""
        return b""

    def error_frame(self, message: str, status: int, index: int | None) -> bytes:
        """An event that reports an error."""
        return native.error_frame(message, status, index)

    def error_body(self, message: str, status: int) -> bytes:
        """The body of an error answer."""
        return native.ended_body(message, status)


class TellsErrors(NativeShape):
    """Answers that somebody else makes: only an error is told here, in the shape of their route."""

    def __init__(self, error_body: Callable[[str, int], bytes]) -> None:
        super().__init__(b"", False, False)
        self._error_body = error_body

    def error_body(self, message: str, status: int) -> bytes:
        """The body of an error answer."""
        return self._error_body(message, status)
