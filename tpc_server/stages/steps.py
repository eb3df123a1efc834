"""The loop over one step's rows. Owner: the detok core.

Plain rows (one token, nothing pending, nothing special asked for, room in the socket) are
rendered from tables and sent in one pass: five look-ups, one join, one send. Everything else
takes `slow_row` (`rows.py`).
"""

from __future__ import annotations

import time
import traceback
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from .. import frame
from ..boundary import wire
from ..boundary.batch_header import (
    Batch,
    MalformedFrame,
    build_batch,
    decode_batch,
)
from ..render import native, plan
from .stream import DELTA, DONE, INCREMENTAL, MODE, SLOW, UNARY, Group, Stream
from .unary import UnaryRows
from .writers import Handed

if TYPE_CHECKING:
    from ..counters import Counters

_HEADS: Final = 2048  # chunk heads made ahead, by length of what follows
_TAILS: Final = 4096  # counters made ahead
_IDS_BYTES: Final = len(native.IDS_OPEN)
MALFORMED: Final = "internal error: malformed scheduler output frame"
UNRENDERED: Final = "internal error: this answer could not be rendered"


class StepLoop(UnaryRows):
    """Records of the scheduler's ring, and the plain path of their rows."""

    groups: dict[int, Group]  # by connection key; the stage's

    def __init__(self, setup: Any, counters: Counters) -> None:
        super().__init__(setup, counters)
        self.handed = Handed()
        self._tell_ns = 0  # before that no malformed frame is logged again
        self._limit = len(self._inc_all) - 1
        self._heads = [self._head(n) for n in range(_HEADS)]
        self._sizes = [b"%x\r\n" % n for n in range(_HEADS)]
        self._tails = [b"%d}}\n\n\r\n" % n for n in range(_TAILS)]

    # -- hooks of the stage ----------------------------------------------------------

    def on_control(self, wire_rid: str, payload: bytes) -> None:
        """A control answer."""
        raise NotImplementedError

    def on_error(self, wire_rid: str, message: str) -> None:
        """A request the scheduler could not read."""
        raise NotImplementedError

    def on_abort(self, payload: bytes) -> None:
        """An abort that a client sent to another frontend."""
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
                batch, rows = self._decode(header, columns)
            except MalformedFrame as error:
                self._malformed(error.rids, error.reason)
                return
            if batch.finish_reasons.count(None) != batch.n:
                self.column.ends(batch.rids, batch.finish_reasons)
                for reason in batch.finish_reasons:
                    if reason is not None and not native.renders(reason):
                        self._malformed(batch.rids, f"a finish reason like {reason!r:.200}")
                        return
            if self.recorder is not None:
                self.recorder.step(batch, rows, self.now_ns)
            self.on_batch(batch, rows)
        elif kind == wire.CONTROL_RESULT:
            self.on_control(key.decode(), payload)
        elif kind == wire.ERROR:
            self.on_error(key.decode(), payload.decode("utf-8", "replace"))
        elif kind == wire.FOREIGN_ABORT:
            self.on_abort(payload)
            return
        self.on_activity()

    def _decode(self, header: bytes, columns: list[memoryview]) -> tuple[Batch, list[Any]]:
        """A frame, and the hot list of each row's stream (None: not of this core)."""
        column = self.column
        found = column.find(header)
        if found is not None:
            try:
                return build_batch(found, columns), column.rows
            except MalformedFrame:
                column.forget()
                raise
        batch = decode_batch(header, columns)
        return batch, column.learn(header, batch.rids, batch.finish_reasons)

    def _malformed(self, rids: list[str], reason: str) -> None:
        self.counters.malformed += 1
        if self.now_ns >= self._tell_ns:  # a line a second at most
            self._tell_ns = self.now_ns + 1_000_000_000
            self.setup.log(
                "error", "malformed frame of the scheduler", reason=reason[:400], rids=len(rids),
                total=self.counters.malformed,
            )  # fmt: skip
        for rid in rids:
            stream = self.streams.get(rid)
            if stream is not None:
                stream.tok_port.send((frame.T_ABORT, rid))
                self.fail_group(stream.group, 500, MALFORMED, stream)

    def _unrendered(self, stream: Stream | None) -> None:
        """In an `except`: a row that cannot be rendered ends its own request, and nobody else's.

        Raises it again where there is no answer left to end.
        """
        group = stream.group if stream is not None else None
        if stream is None or group is None or self.groups.get(group.key) is not group:
            raise
        if self.now_ns >= self._tell_ns:
            self._tell_ns = self.now_ns + 1_000_000_000
            self.setup.log(
                "error", "an answer could not be rendered", rid=stream.user_rid,
                stack=traceback.format_exc(),
            )  # fmt: skip
        stream.tok_port.send((frame.T_ABORT, stream.wire_rid))
        self.fail_group(group, 500, UNRENDERED, stream)

    # -- the loop --------------------------------------------------------------------

    def on_batch(self, batch: Batch, rows: list[Any]) -> None:
        """All rows of one step; `rows` are the hot lists, None for streams of other cores."""
        ids = batch.ids.tolist()
        n = batch.n
        one_each = batch.tok_lens.count(1) == n
        tokens = self._plain_tokens(batch, ids, one_each)
        heads = self._heads
        sizes = self._sizes
        tails = self._tails
        n_heads, n_tails = len(heads), len(tails)
        join = b"".join
        between = native.IDS_OPEN
        # Locals: a global costs a look-up in a dict, a builtin two.
        incremental, unary, delta, done_at, length = INCREMENTAL, UNARY, DELTA, DONE, len
        data: Any
        unsent = sent_bytes = stale = 0
        # Each item that is unpacked costs as much as six bytecodes: a row's number is asked for
        # where it is needed, from how much is left.
        last = n - 1
        rest: Any = iter(batch.cached_tokens)
        for hot, token, cached in zip(rows, tokens, rest, strict=True):
            if hot is None:
                stale += 1
                continue
            mode, cached_before, fragments, done, middle, send, kept, stream = hot
            if token is None or not mode:
                unsent += 1
                row = last - rest.__length_hint__()
                row_ids = [ids[row]] if one_each else batch.row_ids(row)
                # Of the unary ones only the usual have pieces (see `unary.py`).
                try:
                    if not (mode == unary and fragments) or not self.end_unary(
                        hot, batch, row, row_ids
                    ):
                        self.slow_row(stream, batch, row, row_ids)
                except Exception:
                    self._unrendered(stream)
                continue
            if mode == unary:
                unsent += 1
                kept.append(token)
                hot[done_at] = done + 1
                continue
            fragment = fragments[token]
            if not fragment:
                fragment = self._make_fragment(stream, token)
            if not fragment or cached != cached_before:
                unsent += 1
                try:
                    self.slow_row(stream, batch, last - rest.__length_hint__(), [token])
                except Exception:
                    self._unrendered(stream)
                continue
            if kept is not None:
                kept.append(token)
            done += 1
            hot[done_at] = done
            if mode == incremental:
                data = join(
                    (fragment, middle, tails[done] if done < n_tails else b"%d}}\n\n\r\n" % done)
                )
                size = length(data)
                data = (heads[size] if size < n_heads else self._head(size)) + data
            elif mode == delta:
                before, after = middle
                data = join((before, fragment, after, b"\r\n"))
                size = length(data) - 2
                data = (sizes[size] if size < n_heads else b"%x\r\n" % size) + data
            else:
                text = stream.text
                shown = stream.ids
                text += fragment
                shown += b",%d" % token
                tail = tails[done] if done < n_tails else b"%d}}\n\n\r\n" % done
                size = length(text) + length(shown) + length(middle) + length(tail) + _IDS_BYTES
                head = heads[size] if size < n_heads else self._head(size)
                try:
                    sent = send((head, text, between, shown, middle, tail))
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError:
                    unsent += 1
                    stream.writer.fail()
                    continue
                sent_bytes += sent
                if sent != size + length(head):
                    hot[MODE] = SLOW
                    stream.writer.partial(join((head, text, between, shown, middle, tail)), sent)
                continue
            try:
                sent = send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                unsent += 1
                stream.writer.fail()
                continue
            sent_bytes += sent
            if sent != length(data):
                hot[MODE] = SLOW
                stream.writer.partial(data, sent)
        counters = self.counters
        counters.rows += batch.n - stale
        counters.rows_stale += stale
        counters.sends += n - stale - unsent
        counters.bytes_out += sent_bytes
        handed = self.handed
        if handed.sends:
            counters.sends -= handed.sends
            counters.bytes_out -= handed.bytes
            handed.sends = handed.bytes = 0

    def _plain_tokens(self, batch: Batch, ids: list[int], one_each: bool) -> list[Any]:
        """The token of each row that goes on with just one, None for the others."""
        # An id outside the vocabulary would index the tables wrongly: the whole step is slow.
        if not ids or min(ids) < 0 or max(ids) >= self._limit:
            return [None] * batch.n
        tokens: list[Any] = ids
        if not one_each:
            rest = iter(ids)
            tokens = [
                next(rest) if count == 1 else next(islice(rest, count, count), None)
                for count in batch.tok_lens
            ]
        finishes = batch.finish_reasons
        if finishes.count(None) != batch.n:
            pairs = zip(tokens, finishes, strict=True)
            tokens = [token if finish is None else None for token, finish in pairs]
        return tokens

    def _head(self, size: int) -> bytes:
        """Start of a chunk and of its frame, before `size` bytes: fragment to counter."""
        return b"%x\r\n%b" % (size + len(native.TEXT_OPEN) - 2, native.TEXT_OPEN)

    def _make_fragment(self, stream: Stream, token: int) -> Any:
        """Fill the tables for a token; False where it has to go the slow way."""
        if stream.plan[plan.SKIP_SPECIAL]:
            escaped, incremental = self._shown, self._inc_shown
        else:
            escaped, incremental = self._all, self._inc_all
        assert escaped is not None
        text = escaped.fill(token)
        if stream.mode != INCREMENTAL:
            # frag lists are shared with the escaped table.
            return text if text is not None else False
        made: Any = False if text is None else b'%b","output_ids":[%d' % (text, token)
        incremental[token] = made
        return made
