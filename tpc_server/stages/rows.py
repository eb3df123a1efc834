"""One stream's rows: detokenize, render, write, end. Owner: the detok core.

This is what a row takes that is not plain (see `steps.py`): the first and the last, half
characters, logprobs, several tokens at once, a blocked socket. It leaves the stream ready for the
plain path again where it can be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from .. import frame, request
from ..boundary.batch_header import Batch
from ..render import hidden_states, http, native, plan
from ..render.logprobs import INPUT, OUTPUT
from ..render.shape import NativeShape
from ..text.detok import decode_all
from ..text.escape import json_escape
from .rid_column import RidColumn
from .stream import (
    CACHED,
    CHAT,
    COMPLETION,
    CUMULATIVE,
    DELTA,
    DONE,
    FRAGMENTS,
    INCREMENTAL,
    KEPT,
    MIDDLE,
    MODE,
    NATIVE,
    SEND,
    SLOW,
    STREAM,
    UNARY,
    Group,
    Stream,
)
from .token_texts import TokenTexts

if TYPE_CHECKING:
    from ..counters import Counters

_EVENT_BYTES: Final = 256  # a chunk each
OVERFLOW: Final = "the client reads too slowly: its stream was aborted"


class StreamRows(TokenTexts):
    """The live streams of one core."""

    def __init__(self, setup: Any, counters: Counters) -> None:
        super().__init__(setup)
        self.counters = counters
        self.streams: dict[str, Stream] = {}  # by wire rid
        self.hot: dict[str, list[Any]] = {}  # the same streams' hot lists, for the step loop
        self.column = RidColumn(self.hot.get)
        self.now_ns = time.monotonic_ns()
        self._second = int(time.time())
        self.ok = http.dated(self._second)  # how the usual answer begins
        self.native = NativeShape(
            native.json_string(setup.weight_version), setup.incremental, not setup.skip_tokenizer
        )
        self.recorder: Any = None  # of metrics, where they are wanted
        self.http_meter: Any = None
        self._hidden_texts = hidden_states.Texts()
        self._beat = setup.beat

    # -- hooks of the stage ----------------------------------------------------------

    def step(self, state: int, event: int) -> int:
        """Next state of a request."""
        raise NotImplementedError

    def finished(self, stream: Stream) -> None:
        """A stream has ended and shown everything."""
        raise NotImplementedError

    def fail_group(self, group: Group, status: int, message: str, stream: Stream | None) -> None:
        """End a group with an error."""
        raise NotImplementedError

    # -- one stream ------------------------------------------------------------------

    def enter(self, stream: Stream) -> None:
        """A stream is live: rows of its wire rid are its own."""
        self.column.entered(stream.wire_rid)
        self.streams[stream.wire_rid] = stream
        self.hot[stream.wire_rid] = stream.hot
        self.counters.live_requests = len(self.streams)

    def leave(self, stream: Stream) -> None:
        """Its rid is free: later rows of it are stale."""
        self.column.left()
        stream.hot[MODE] = SLOW  # a row of it may still follow in the step that is being handled
        self.streams.pop(stream.wire_rid, None)
        self.hot.pop(stream.wire_rid, None)
        if stream.meter is not None:
            self.recorder.forget(stream.wire_rid)
        stream.hot[STREAM] = None  # it holds the list: no cycles, no collector runs while serving
        self.counters.live_requests = len(self.streams)

    def prepare(self, stream: Stream) -> None:
        """Build what a new stream needs."""
        wanted = stream.plan
        group = stream.group
        shape = group.shape
        stream.rid_json = native.json_string(stream.user_rid)
        if (
            wanted == plan.USUAL
            and not group.is_stream
            and (group.api == NATIVE or (group.api == CHAT and shape.plain and not group.is_batch))
        ):
            stream.mode = UNARY
            hot = stream.hot
            hot[MODE] = UNARY
            hot[KEPT] = stream.out_ids
            if self._shown is not None and not group.is_batch:
                hot[FRAGMENTS] = self._shown.frag  # see `unary.py`
            return
        stream.text = bytearray()
        stream.ids = bytearray()
        stream.hidden = bytearray()
        if wanted[plan.LOGPROB]:
            stream.logprobs = shape.logprobs(wanted[plan.LOGPROB_TEXT], self)
        if group.api > COMPLETION:
            return
        if shape is not self.native:
            shape.prepare(stream)
        special = bool(stream.logprobs is not None or wanted[plan.HIDDEN])
        if not group.is_stream:
            stream.mode = SLOW if special else UNARY
            stream.hot[MODE] = stream.mode
            stream.hot[KEPT] = stream.out_ids
        elif self._table is not None and not special and not group.is_batch and group.chunked:
            stream.mode = shape.mode
            if stream.mode != INCREMENTAL and stream.mode != SLOW:
                escaped = self._shown if wanted[plan.SKIP_SPECIAL] else self._all
                assert escaped is not None
                stream.hot[FRAGMENTS] = escaped.frag
            elif wanted[plan.SKIP_SPECIAL]:
                stream.hot[FRAGMENTS] = self._inc_shown
            else:
                stream.hot[FRAGMENTS] = self._inc_all
            if wanted[plan.PROMPT_IDS] and stream.mode != DELTA:
                stream.mode = SLOW
        if group.is_stream and wanted[plan.STOPS]:  # to be cut from the whole text at the end
            stream.hot[KEPT] = stream.out_ids
        writer = group.writer
        stream.hot[SEND] = writer.sendmsg if stream.mode == CUMULATIVE else writer.send

    def encoded(self, stream: Stream, last_ids: list[int]) -> None:
        """The prompt is known: `last_ids` are its end where the decoder asks for context."""
        if self._needs_context:
            table = self._table
            skip = stream.plan[plan.SKIP_SPECIAL]
            stream.context = last_ids
            stream.has_context = table is None or table.gives_context(last_ids, skip)
        if stream.group.is_stream and not self.setup.skip_tokenizer:
            stream.detok = self.make_detok(stream)

    def slow_row(self, stream: Stream | None, batch: Batch, row: int, ids: list[int]) -> None:
        """One row of a frame, whatever is in it."""
        if stream is None:  # ended by an earlier row of this frame
            self.counters.rows_stale += 1
            return
        stream.state = self.step(stream.state, request.CHUNK)
        stream.prompt_tokens = batch.prompt_tokens[row]
        stream.hot[CACHED] = batch.cached_tokens[row]
        stream.reasoning = batch.reasoning_tokens[row]
        extras = batch.extras
        if extras is not None:
            if stream.logprobs is not None:
                self._add_logprobs(stream, extras, row)
            if stream.plan[plan.HIDDEN]:
                self._add_hidden(stream.hidden, extras.hidden(row))
        finish = batch.finish_reasons[row]
        if finish is not None and stream.meter is not None:
            self.recorder.ended(stream, batch, row, self.now_ns)
        versions = batch.weight_versions
        self.end_row(stream, finish, ids, versions[row] if versions is not None else None)

    def end_row(self, stream: Stream, finish: Any, ids: list[int], versions: Any) -> None:
        """Take a row's tokens; show them, or end the stream when `finish` is set."""
        stream.hot[DONE] += len(ids)
        if finish is not None:
            stream.finish = finish
            if versions is not None:
                stream.versions = [{"version": v[0], "start": v[1], "end": v[2]} for v in versions]
            self.leave(stream)
            aborted = finish.get("type") == "abort"
            stream.state = self.step(stream.state, request.ABORT if aborted else request.FINISH)
            status = finish.get("status_code") if aborted else None
            group = stream.group
            if (
                type(status) is int
                and 400 <= status < 600
                and not (group.is_stream and group.shape is self.native)
            ):
                self.fail_group(stream.group, status, str(finish.get("message")), stream)
                return
        if not stream.group.is_stream:
            stream.out_ids += ids
            if finish is not None:
                self._store_result(stream)
            return
        if ids:
            stream.ids += (b"," if stream.ids else b"") + ",".join(map(str, ids)).encode()
        detok = stream.detok
        if detok is not None:
            if finish is None:
                text = detok.step(ids)
            else:
                history = stream.hot[KEPT]
                text = detok.finish(
                    ids, finish.get("matched"), stream.plan[plan.NO_STOP_TRIM], history
                )
            if stream.transform is not None:  # reasoning, tool calls
                self._transform(stream, text)
            elif text:
                stream.text += json_escape(text)
        if stream.hot[KEPT] is not None:
            stream.out_ids += ids
        if stream.writer.blocked:
            self._pile_up(stream)
        else:
            self.show(stream)

    def _transform(self, stream: Stream, text: str) -> None:
        """Text through a stream's parser: what it makes of it waits in `events`."""
        if text:
            stream.events += stream.transform.feed(text)
        if stream.finish is not None:
            stream.events += stream.transform.end(str(stream.finish.get("type")))

    def _pile_up(self, stream: Stream) -> None:
        """The reader is behind: keep what there is to show, within the bound."""
        self.wait_for_room(stream)
        held = len(stream.text) + len(stream.ids) + len(stream.hidden)
        if stream.logprobs is not None:
            held += stream.logprobs.size()
        if stream.events is not None:
            held += _EVENT_BYTES * len(stream.events)
        if stream.group.shape.incremental and held > self.setup.stream_buffer_bytes:
            stream.hot[MODE] = SLOW
            group = stream.group
            group.close = True
            if stream.wire_rid in self.streams:
                stream.tok_port.send((frame.T_ABORT, stream.wire_rid))
            self.fail_group(group, 503, OVERFLOW, stream)

    def wait_for_room(self, stream: Stream) -> None:
        """List a stream with its writer, once."""
        stream.hot[MODE] = SLOW
        if not stream.waiting:
            stream.waiting = True
            stream.writer.waiting.append(stream)

    def show(self, stream: Stream) -> None:
        """Write one frame with all that is new, and end the stream if it has finished."""
        group = stream.group
        finish = stream.finish
        latency = None if finish is None else (self.now_ns - group.created_ns) / 1e9
        shape = group.shape
        data = shape.frame(stream, latency)
        if data:
            self.write_stream(group, data, self.now_ns)
        if shape.incremental:  # only now: the buffers are parts of what was written
            stream.text.clear()
            stream.ids.clear()
            if stream.logprobs is not None:
                stream.logprobs.shown()
            stream.hidden.clear()
        if finish is not None:
            self.finished(stream)
            return
        detok = stream.detok
        clean = stream.mode and detok is not None and detok.clean
        # Where nothing was shown yet (a special token came first) the head is still to be sent.
        if clean and group.head_sent and not stream.writer.blocked:
            stream.hot[MIDDLE] = shape.middle(stream)
            stream.hot[MODE] = stream.mode
        else:
            stream.hot[MODE] = SLOW

    def write_stream(self, group: Group, data: bytes | native.Parts, now_ns: int) -> None:
        """One chunk of a streamed answer, whole or in parts, its head before the first."""
        parts = http.chunk_parts([data] if isinstance(data, bytes) else data, group.chunked)
        if not group.head_sent:
            parts = [self.head_of(group), *parts]
        group.last_ns = now_ns
        writer = group.writer
        writer.write_parts(parts)
        if writer.blocked:
            for stream in group.streams:
                stream.hot[MODE] = SLOW

    def head_of(self, group: Group) -> bytes:
        """The response head; marks it as sent."""
        group.head_sent = True
        if self.http_meter is not None:
            self.http_meter.answering(group.route, 200)
        return http.stream_head(group.chunked, group.close, group.extra, self.ok)

    def _joined(self, stream: Stream, matched: Any) -> bytes | None:
        """A unary text from the pieces of the step loop: every token a whole piece, no string to
        cut, nothing special at the start; None where one of these does not hold."""
        escaped = self._shown if stream.plan[plan.SKIP_SPECIAL] else self._all
        if escaped is None or type(matched) is str or not stream.has_context:
            return None
        ids = stream.out_ids
        if type(matched) is int and ids and not stream.plan[plan.NO_STOP_TRIM]:
            ids = ids[:-1]
        fragments = escaped.frag
        pieces: list[bytes] = []
        for token in ids:
            if not 0 <= token < len(fragments) - 1:
                return None
            piece = fragments[token]
            if piece is None:
                piece = escaped.fill(token)
                if piece is None:
                    return None
            pieces.append(piece)
        return b"".join(pieces)

    def _store_result(self, stream: Stream) -> None:
        """A unary item has ended: its answer object, from all ids at once."""
        group = stream.group
        wanted = stream.plan
        matched = stream.finish.get("matched")
        joined = self._joined(stream, matched) if stream.transform is None else None
        if joined is not None:
            stream.text += joined
        elif not self.setup.skip_tokenizer:
            if self._table is not None:
                text = decode_all(
                    self._table, stream.out_ids, wanted[plan.SKIP_SPECIAL],
                    wanted[plan.SPACES_BETWEEN], stream.has_context, matched,
                    wanted[plan.NO_STOP_TRIM],
                )  # fmt: skip
            else:
                text = self.make_detok(stream).finish(
                    stream.out_ids, matched, wanted[plan.NO_STOP_TRIM]
                )
            if stream.transform is not None:
                self._transform(stream, text)
            else:
                stream.text += json_escape(text)
        if group.shape.shows_ids:
            stream.ids += ",".join(map(str, stream.out_ids)).encode()
        latency = (self.now_ns - group.created_ns) / 1e9
        if not group.results:
            group.results = [b""] * len(group.streams)
        group.results[stream.index] = group.shape.result(stream, latency)
        self.finished(stream)

    # -- columns ---------------------------------------------------------------------

    def _add_logprobs(self, stream: Stream, extras: Any, row: int) -> None:
        out, prompt, out_top, in_top, out_ids, in_ids = extras.row_logprobs(row)
        buffers = stream.logprobs
        wanted = stream.plan
        if stream.prompt_tokens and not buffers.opened:
            buffers.opened = True
            buffers.add_pairs(INPUT[0], *prompt)
            if wanted[plan.TOP_LOGPROBS]:
                buffers.add_positions(INPUT[1], in_top)
            if wanted[plan.TOKEN_IDS_LOGPROB]:
                buffers.add_positions(INPUT[2], in_ids)
        buffers.add_pairs(OUTPUT[0], *out)
        if wanted[plan.TOP_LOGPROBS]:
            buffers.add_positions(OUTPUT[1], out_top)
        if wanted[plan.TOKEN_IDS_LOGPROB]:
            buffers.add_positions(OUTPUT[2], out_ids)

    def _add_hidden(self, out: bytearray, positions: Sequence[memoryview]) -> None:
        hidden_states.add(out, positions, self._hidden_texts, self._beat)
