"""Decoder of one step's output frame. Owner: the core that detokenizes it (stateless functions).

A frame is a msgpack array of columns (`header`) and one run of raw little-endian bytes (`data`).
The plain frame has the six core columns and nothing but token ids in its data; it is what nearly
every step sends, so its checks are a handful of C calls over whole columns. Whatever is wrong with
a frame rejects all of it: a receiver never sees some rows of a frame and not others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import codec
from .extras import Extras, build_extras

__all__ = ["Batch", "MalformedFrame", "build_batch", "decode_batch"]

N_CORE = 6
N_EXTRAS = 12
N_COLUMNS = 24
_WEIGHTS = N_CORE + N_EXTRAS  # columns 18 to 23: what finished rows carry
_ID_BYTES = 8


class MalformedFrame(Exception):
    """The frame breaks the boundary's contract; no row of it was delivered.

    `rids` names every request that could still be read from the header, in order; `reason` says
    what was wrong, for the log.
    """

    def __init__(self, rids: list[str], reason: str) -> None:
        super().__init__(f"malformed scheduler output frame: {reason}")
        self.rids = rids
        self.reason = reason


class Batch:
    """One decoded frame: columns of `n` rows.

    `ids` is a memoryview of int64 over the frame's data, row after row, `tok_lens[i]` of them for
    row `i`. It borrows the caller's buffer: copy out what has to outlive it. Columns that the frame
    did not carry are None. `extras` holds the logprob families and hidden states, or is None.
    """

    __slots__ = (
        "audio_tokens",
        "cached_tokens",
        "decode_latencies",
        "ended",
        "extras",
        "finish_reasons",
        "ids",
        "image_tokens",
        "n",
        "prompt_tokens",
        "reasoning_tokens",
        "rids",
        "tok_lens",
        "video_tokens",
        "weight_versions",
    )

    def __init__(
        self,
        n: int,
        columns: list[Any],
        ids: memoryview,
        extras: Extras | None,
    ) -> None:
        self.n = n
        self.rids: list[str] = columns[0]
        self.finish_reasons: list[dict[str, Any] | None] = columns[1]
        self.prompt_tokens: list[int] = columns[2]
        self.tok_lens: list[int] = columns[3]
        self.cached_tokens: list[int] = columns[4]
        self.reasoning_tokens: list[int] = columns[5]
        self.ids = ids
        self.extras = extras
        self.weight_versions: list[list[list[Any]] | None] | None = None
        self.image_tokens: list[int | None] | None = None
        self.audio_tokens: list[int | None] | None = None
        self.video_tokens: list[int | None] | None = None
        self.decode_latencies: list[float | None] | None = None
        self.ended: list[bool] | None = None

    def row_ids(self, i: int) -> list[int]:
        """Token ids of row `i`, copied. For tests and rare paths: it walks the rows before it."""
        start = sum(self.tok_lens[:i])
        return self.ids[start : start + self.tok_lens[i]].tolist()

    def row_decode_latency(self, i: int) -> float | None:
        """Seconds the scheduler spent decoding a finished unary row, or None."""
        return None if self.decode_latencies is None else self.decode_latencies[i]

    def row_ended_outside(self, i: int) -> bool:
        """The request ended outside the output stream (queue abort): record no metrics for it."""
        return self.ended is not None and self.ended[i]


def decode_batch(header: bytes | memoryview, cols: Sequence[Any]) -> Batch:
    """Decode and check one frame.

    `cols` are the data buffers in order: either each column's own or one that holds them all (or
    anything between; only their concatenation counts). Raises MalformedFrame, nothing else.
    """
    try:
        columns = codec.unpack(header)
    except Exception as error:  # each library has its own family of errors
        raise MalformedFrame(
            codec.unpack_leading_strings(header), f"header does not decode: {error}"
        ) from None
    return build_batch(columns, cols)


def build_batch(columns: Any, cols: Sequence[Any]) -> Batch:
    """The frame whose header is already unpacked. Standard library only.

    Raises MalformedFrame, nothing else.
    """
    try:
        return _build(columns, cols)
    except (_Reject, TypeError, ValueError, OverflowError, IndexError, BufferError) as error:
        rids: list[str] = []
        if type(columns) is list and columns and type(columns[0]) is list:
            rids = [rid for rid in columns[0] if type(rid) is str]
        raise MalformedFrame(rids, str(error)) from None


class _Reject(Exception):
    pass


def _build(columns: Any, cols: Sequence[Any]) -> Batch:
    if type(columns) is not list or not N_CORE <= len(columns) <= N_COLUMNS:
        raise _Reject(f"header is no array of {N_CORE} to {N_COLUMNS} columns")
    n = len(columns[0])
    for column in columns[:N_CORE]:
        if type(column) is not list or len(column) != n:
            raise _Reject("core columns differ in length")
    rids, finish_reasons, prompt_tokens, tok_lens, cached_tokens, reasoning_tokens = columns[
        :N_CORE
    ]
    "".join(rids)  # TypeError unless every rid is a string, in one C call
    if finish_reasons.count(None) != n:
        for reason in finish_reasons:
            if reason is not None and type(reason) is not dict:
                raise _Reject("a finish reason is neither object nor null")
    total = sum(tok_lens)
    # A sum is an int only if every entry is: that is the type check of the numeric columns.
    if type(total + sum(prompt_tokens) + sum(cached_tokens) + sum(reasoning_tokens)) is not int:
        raise _Reject("a count is not an integer")
    # One token a row is the usual step, and it spares the search for a negative length.
    if tok_lens.count(1) != n and n and min(tok_lens) < 0:
        raise _Reject("a row has a negative number of tokens")

    if len(cols) == 1:
        data = memoryview(cols[0])
        if data.format != "B" or data.ndim != 1:
            data = data.cast("B")
    else:
        data = memoryview(b"".join(cols))
    id_bytes = total * _ID_BYTES
    if len(columns) == N_CORE:
        if len(data) != id_bytes:
            raise _Reject(f"{total} token ids in {len(data)} bytes")
        return Batch(n, columns, data.cast("q"), None)

    extras, used = build_extras(columns, n, data, id_bytes)
    if used != len(data):
        raise _Reject(f"columns describe {used} bytes, data holds {len(data)}")
    batch = Batch(n, columns, data[:id_bytes].cast("q"), extras)
    if len(columns) > _WEIGHTS:
        _attach_trailing(batch, columns)
    return batch


def _attach_trailing(batch: Batch, columns: list[Any]) -> None:
    """Columns 18 to 23: weight versions, media token counts, latencies, ended outside."""
    padded = columns[_WEIGHTS:] + [[]] * (N_COLUMNS - len(columns))
    for column in padded:
        if type(column) is not list or len(column) not in (0, batch.n):
            raise _Reject("a trailing column has neither 0 nor one entry a row")
    weights, image, audio, video, latencies, ended = padded
    for spans in weights:
        if spans is not None:
            _check_spans(spans)
    for media in (image, audio, video):
        for count in media:
            if count is not None and type(count) is not int:
                raise _Reject("a media token count is not an integer")
    for latency in latencies:
        if latency is not None and type(latency) is not float and type(latency) is not int:
            raise _Reject("a decode latency is not a number")
    for flag in ended:
        if type(flag) is not bool:
            raise _Reject("the ended column holds something other than booleans")
    batch.weight_versions = weights or None
    batch.image_tokens = image or None
    batch.audio_tokens = audio or None
    batch.video_tokens = video or None
    batch.decode_latencies = latencies or None
    batch.ended = ended or None


def _check_spans(spans: Any) -> None:
    if type(spans) is not list:
        raise _Reject("weight versions of a row are no array")
    for span in spans:
        if (
            type(span) is not list
            or len(span) != 3
            or type(span[0]) is not str
            or type(span[1]) is not int
            or type(span[2]) is not int
        ):
            raise _Reject("a weight version is not [version, start, end]")
