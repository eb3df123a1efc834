"""The loop over one step's rows, and what a row that is not plain needs. Owner: the detok core.

Plain rows (one token, nothing pending, nothing special asked for, room in the socket) are
rendered from tables and sent in one pass: five look-ups, one join, one send. Everything else
takes `_slow_row`, which leaves the stream ready for the plain path again where it can be.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from .. import frame, request
from ..boundary import wire
from ..boundary.batch_header import Batch, MalformedFrame, decode_batch
from ..render import http, native, plan
from ..render.logprobs import INPUT, OUTPUT, LogprobBuffers
from ..text.detok import Detok, decode_all
from ..text.escape import EscapedTable, json_escape
from ..text.windowed import WindowedDetok
from .stream import CUMULATIVE, INCREMENTAL, NATIVE, SLOW, UNARY, Group, Stream

if TYPE_CHECKING:
    from ..counters import Counters

_HEADS: Final = 2048  # chunk heads made ahead, by length
_TAILS: Final = 4096  # counters made ahead
_FRAME_BYTES: Final = len(native.TEXT_OPEN)
MALFORMED: Final = "internal error: malformed scheduler output frame"
OVERFLOW: Final = "the client reads too slowly: its stream was aborted"


class StepLoop:
    """Tables of one core and the step loop over them."""

    def __init__(self, setup: Any, counters: Counters) -> None:
        self.setup = setup
        self.counters = counters
        self.streams: dict[str, Stream] = {}  # by wire rid
        self.now_ns = time.monotonic_ns()
        self.weight_version = native.json_string(setup.weight_version)
        table = setup.pieces
        self._table = table
        self._shown = EscapedTable(table, True, setup.vocab_size) if table else None
        self._all = EscapedTable(table, False, setup.vocab_size) if table else None
        # None: not made yet; False: takes the slow path.
        self._inc_shown: list[Any] = [None] * len(self._shown.frag) if self._shown else []
        self._inc_all: list[Any] = [None] * len(self._all.frag) if self._all else []
        self._limit = len(self._inc_all) - 1
        opened = native.TEXT_OPEN
        self._heads = [b"%x\r\n%b" % (n, opened) for n in range(_HEADS)]
        self._tails = [b"%d}}\n\n\r\n" % n for n in range(_TAILS)]

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

    def on_control(self, wire_rid: str, payload: bytes) -> None:
        """A control answer."""
        raise NotImplementedError

    def on_error(self, wire_rid: str, message: str) -> None:
        """A request the scheduler could not read."""
        raise NotImplementedError

    def on_activity(self) -> None:
        """Any sign of life of the scheduler."""
        raise NotImplementedError

    # -- records ---------------------------------------------------------------------

    def on_record(self, kind: int, key: bytes, payload: bytes) -> None:
        """One record of the scheduler's ring."""
        self.now_ns = time.monotonic_ns()
        if kind == wire.BATCH:
            self.counters.frames += 1
            header, columns = wire.split_frame(payload)
            try:
                batch = decode_batch(header, columns)
            except MalformedFrame as error:
                self._malformed(error.rids)
                return
            if batch.finish_reasons.count(None) != batch.n:
                for reason in batch.finish_reasons:
                    if reason is not None and not native.renders(reason):
                        self._malformed(batch.rids)
                        return
            self.on_batch(batch)
        elif kind == wire.CONTROL_RESULT:
            self.on_control(key.decode(), payload)
        elif kind == wire.ERROR:
            self.on_error(key.decode(), payload.decode("utf-8", "replace"))
        self.on_activity()

    def _malformed(self, rids: list[str]) -> None:
        self.counters.malformed += 1
        for rid in rids:
            stream = self.streams.get(rid)
            if stream is not None:
                stream.tok_port.send((_T_ABORT, rid))
                self.fail_group(stream.group, 500, MALFORMED, stream)

    # -- the loop --------------------------------------------------------------------

    def on_batch(self, batch: Batch) -> None:
        """All rows of one step; rows of streams on other cores are passed over."""
        find = self.streams.get
        ids = batch.ids.tolist()
        heads = self._heads
        tails = self._tails
        join = b"".join
        at = sends = sent_bytes = stale = 0
        # An id outside the vocabulary would index the tables wrongly: the whole step is slow.
        tables_hold = bool(ids) and min(ids) >= 0 and max(ids) < self._limit
        row = -1
        for rid, finish, count, cached in zip(
            batch.rids, batch.finish_reasons, batch.tok_lens, batch.cached_tokens, strict=True
        ):
            row += 1
            stream = find(rid)
            if stream is None:
                at += count
                stale += 1
                continue
            mode = stream.fast
            if not mode or finish is not None or count != 1 or not tables_hold:
                self._slow_row(stream, batch, row, ids[at : at + count])
                at += count
                continue
            token = ids[at]
            at += 1
            if mode == UNARY:
                stream.out_ids.append(token)
                stream.completion += 1
                continue
            writer = stream.writer
            fragment = stream.frags[token]
            if not fragment:
                fragment = self._make_fragment(stream, token)
            if not fragment or writer.blocked or cached != stream.cached:
                self._slow_row(stream, batch, row, [token])
                continue
            done = stream.completion = stream.completion + 1
            tail = tails[done] if done < _TAILS else b"%d}}\n\n\r\n" % done
            middle = stream.middle
            if mode == INCREMENTAL:
                size = len(fragment) + len(middle) + len(tail) + (_FRAME_BYTES - 2)
                data = join(
                    (
                        heads[size] if size < _HEADS else b"%x\r\n%b" % (size, native.TEXT_OPEN),
                        fragment,
                        middle,
                        tail,
                    )
                )
                size = len(data)
                try:
                    sent = writer.send(data)
                except (BlockingIOError, InterruptedError):
                    writer.partial(data, 0)
                    continue
                except OSError:
                    writer.fail()
                    continue
            else:
                text = stream.text
                shown = stream.ids
                text += fragment
                shown += b",%d" % token
                size = (
                    len(text) + len(shown) + len(middle) + len(tail)
                    + (_FRAME_BYTES - 2 + _IDS_BYTES)
                )  # fmt: skip
                head = heads[size] if size < _HEADS else b"%x\r\n%b" % (size, native.TEXT_OPEN)
                buffers = (head, text, native.IDS_OPEN, shown, middle, tail)
                size += len(head) - _FRAME_BYTES + 2
                try:
                    sent = writer.sendmsg(buffers)
                except (BlockingIOError, InterruptedError):
                    writer.partial(join(buffers), 0)
                    continue
                except OSError:
                    writer.fail()
                    continue
                if sent != size:
                    data = join(buffers)
            sends += 1
            sent_bytes += sent
            stream.group.last_ns = self.now_ns
            if sent != size:
                writer.partial(data, sent)
        counters = self.counters
        counters.rows += batch.n - stale
        counters.rows_stale += stale
        counters.sends += sends
        counters.bytes_out += sent_bytes

    def _make_fragment(self, stream: Stream, token: int) -> Any:
        """Fill the tables for a token; False where it has to go the slow way."""
        skip = stream.plan[plan.SKIP_SPECIAL]
        escaped = self._shown if skip else self._all
        assert escaped is not None
        text = escaped.fill(token)
        if stream.mode == CUMULATIVE:
            # frag lists are shared with the escaped table; an empty text is a plain row too.
            return text if text is not None else False
        made: Any = False if text is None else text + b'","output_ids":[%d' % token
        (self._inc_shown if skip else self._inc_all)[token] = made
        return made

    # -- one stream ------------------------------------------------------------------

    def prepare(self, stream: Stream) -> None:
        """Build what a new stream needs."""
        wanted = stream.plan
        stream.rid_json = native.json_string(stream.user_rid)
        if wanted[plan.LOGPROB]:
            stream.logprobs = LogprobBuffers(self.text_of if wanted[plan.LOGPROB_TEXT] else None)
        if stream.group.api != NATIVE:
            return
        group = stream.group
        special = bool(stream.logprobs is not None or wanted[plan.HIDDEN])
        if not group.is_stream:
            stream.mode = SLOW if special else UNARY
            stream.fast = stream.mode
        elif self._table is not None and not special and not group.is_batch and group.chunked:
            stream.mode = INCREMENTAL if self.setup.incremental else CUMULATIVE
            if stream.mode == CUMULATIVE:
                escaped = self._shown if wanted[plan.SKIP_SPECIAL] else self._all
                assert escaped is not None
                stream.frags = escaped.frag
            elif wanted[plan.SKIP_SPECIAL]:
                stream.frags = self._inc_shown
            else:
                stream.frags = self._inc_all
            if wanted[plan.PROMPT_IDS]:
                stream.mode = SLOW
        if group.is_stream and not self.setup.skip_tokenizer:
            stream.detok = self.make_detok(wanted)

    def make_detok(self, wanted: tuple[Any, ...]) -> Any:
        """Incremental detokenizer of one stream."""
        if self._table is not None:
            return Detok(
                self._table, wanted[plan.SKIP_SPECIAL], wanted[plan.SPACES_BETWEEN], True,
                wanted[plan.STOPS],
            )  # fmt: skip
        return WindowedDetok(
            self.setup.decode(), wanted[plan.SKIP_SPECIAL], (),
            wanted[plan.STOPS],
        )  # fmt: skip

    def text_of(self, token: int) -> str:
        """Text of one id alone, special tokens shown; half characters are U+FFFD."""
        table = self._table
        if table is None:
            return str(self.setup.decode()([token], False))
        return decode_all(table, (token,), skip_special=False)

    def _slow_row(self, stream: Stream, batch: Batch, row: int, ids: list[int]) -> None:
        stream.state = self.step(stream.state, request.CHUNK)
        stream.prompt_tokens = batch.prompt_tokens[row]
        stream.cached = batch.cached_tokens[row]
        stream.reasoning = batch.reasoning_tokens[row]
        extras = batch.extras
        if extras is not None:
            if stream.logprobs is not None:
                self._add_logprobs(stream, extras, row)
            if stream.plan[plan.HIDDEN]:
                self._add_hidden(stream, extras, row)
        finish = batch.finish_reasons[row]
        versions = batch.weight_versions
        self.end_row(stream, finish, ids, versions[row] if versions is not None else None)

    def end_row(self, stream: Stream, finish: Any, ids: list[int], versions: Any) -> None:
        """Take a row's tokens; show them, or end the stream when `finish` is set."""
        stream.completion += len(ids)
        if finish is not None:
            stream.finish = finish
            if versions is not None:
                stream.versions = [{"version": v[0], "start": v[1], "end": v[2]} for v in versions]
            self.streams.pop(stream.wire_rid, None)
            aborted = finish.get("type") == "abort"
            stream.state = self.step(stream.state, request.ABORT if aborted else request.FINISH)
            self.counters.live_requests = len(self.streams)
            status = finish.get("status_code") if aborted else None
            if type(status) is int and 400 <= status < 600 and not stream.group.is_stream:
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
                text = detok.finish(ids, finish.get("matched"), stream.plan[plan.NO_STOP_TRIM])
            if text:
                stream.text += json_escape(text)
        stream.unshown += 1
        if stream.writer.blocked:
            self._pile_up(stream)
        else:
            self.show(stream)

    def _pile_up(self, stream: Stream) -> None:
        """The reader is behind: keep what there is to show, within the bound."""
        self.wait_for_room(stream)
        held = len(stream.text) + len(stream.ids)
        if self.setup.incremental and held > self.setup.stream_buffer_bytes:
            stream.fast = SLOW
            group = stream.group
            group.close = True
            if stream.wire_rid in self.streams:
                stream.tok_port.send((_T_ABORT, stream.wire_rid))
            self.fail_group(group, 503, OVERFLOW, stream)

    def wait_for_room(self, stream: Stream) -> None:
        """List a stream with its writer, once."""
        stream.fast = SLOW
        if not stream.waiting:
            stream.waiting = True
            stream.writer.waiting.append(stream)

    def show(self, stream: Stream) -> None:
        """Write one frame with all that is new, and end the stream if it has finished."""
        group = stream.group
        finish = stream.finish
        latency = None if finish is None else (self.now_ns - group.created_ns) / 1e9
        meta = native.meta_info(stream, self.weight_version, latency)
        data = b"data: %b\n\n" % native.result(
            stream, stream.detok is not None, meta, group.is_batch
        )
        if self.setup.incremental:
            stream.text.clear()
            stream.ids.clear()
            if stream.logprobs is not None:
                stream.logprobs.shown()
            stream.hidden.clear()
        stream.unshown = 0
        self.write_stream(group, data, self.now_ns)
        if finish is not None:
            self.finished(stream)
            return
        detok = stream.detok
        if stream.mode and detok is not None and detok.clean and not stream.writer.blocked:
            opened = native.META_OPEN
            stream.middle = b'%b%b,"completion_tokens":' % (
                opened,
                native.meta_middle(
                    stream.rid_json, b"null", stream.prompt_tokens, self.weight_version,
                    stream.cached, stream.reasoning,
                ),
            )  # fmt: skip
            stream.fast = stream.mode
        else:
            stream.fast = SLOW

    def write_stream(self, group: Group, data: bytes, now_ns: int) -> None:
        """One chunk of a streamed answer, its head before the first."""
        framed = http.chunk(data, group.chunked)
        if not group.head_sent:
            framed = self.head_of(group) + framed
        group.last_ns = now_ns
        group.writer.write(framed)

    def head_of(self, group: Group) -> bytes:
        """The response head; marks it as sent."""
        group.head_sent = True
        return http.stream_head(group.chunked, group.close, group.extra)

    def _store_result(self, stream: Stream) -> None:
        """A unary item has ended: its answer object, from all ids at once."""
        group = stream.group
        wanted = stream.plan
        matched = stream.finish.get("matched")
        if not self.setup.skip_tokenizer:
            if self._table is not None:
                text = decode_all(
                    self._table, stream.out_ids, wanted[plan.SKIP_SPECIAL],
                    wanted[plan.SPACES_BETWEEN], True, matched, wanted[plan.NO_STOP_TRIM],
                )  # fmt: skip
            else:
                text = self.make_detok(wanted).finish(
                    stream.out_ids, matched, wanted[plan.NO_STOP_TRIM]
                )
            stream.text += json_escape(text)
        stream.ids += ",".join(map(str, stream.out_ids)).encode()
        latency = (self.now_ns - group.created_ns) / 1e9
        meta = native.meta_info(stream, self.weight_version, latency)
        group.results[stream.index] = native.result(
            stream, not self.setup.skip_tokenizer, meta, False
        )
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

    def _add_hidden(self, stream: Stream, extras: Any, row: int) -> None:
        rows = extras.hidden(row)
        if rows:
            if stream.hidden:
                stream.hidden += b","
            stream.hidden += native.to_json(rows)[1:-1]


_IDS_BYTES: Final = len(native.IDS_OPEN)
_T_ABORT: Final = frame.T_ABORT
