"""Records one core's requests and steps into its published words. Owner: the detok core.

What a step costs: as long as every step brings one token for each of the same requests, all their
inter-token latencies are equal, and one addition to one bucket counts them. Where requests came or
went in between, two set differences say which; only those are looked at. A step at which a request
brought several tokens, or none, is taken row by row.

SGLang's rules: the first row of a request observes the time to its first token, each later row its
interval divided by its new tokens, as often as there are; the last row everything else. A row
without tokens does not end an interval. Requests that the scheduler ended outside its output
stream (aborts in its queue) are not recorded, nor those with `log_metrics: false`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from ..stages.stream import DONE
from .layout import LABEL_BYTES, MASK, OTHER, Layout, read_label, write_label

# A recorded request's own list.
LAST: Final = 0  # nanoseconds at its last tokens; 0 before the first row; see `Recorder._members`
SERIES: Final = 1  # index of its series' first word
FIRST: Final = 2  # nanoseconds at its first token
# 3: whether its output follows a grammar
IS_STREAM: Final = 4
CREATED: Final = 5  # nanoseconds

_LONGEST_S: Final = 1e9  # a latency beyond is nonsense (as NaN is, which no comparison holds for)


class Recorder:
    """Words of one core, and the times of its requests."""

    def __init__(self, layout: Layout, words: Any, block_at: int, prefill: bool = False) -> None:
        self._layout = layout
        self._words = words
        self._block = block_at
        self._prefill = prefill  # a prefill worker has neither first token nor intervals
        self._series: dict[str, int] = {}
        count = int(words[block_at])
        for k in range(count):  # of the core before it was rebuilt
            at = self._series_at(k)
            self._series[read_label(words, at) if layout.dynamic else ""] = at
        if not layout.dynamic and not count:
            self._series[""] = self._series_at(0)
            words[block_at] = 1
        self._at_end = (
            layout.stream_words, layout.structured, layout.prompt_tokens,
            layout.generation_tokens, layout.prompt_histogram.place,
            layout.uncached_histogram.place, layout.generation_histogram.place,
            layout.e2e.place, layout.per_token.place,
        )  # fmt: skip
        self._itl_at = layout.inter_token.at
        self._itl_limits = layout.inter_token.limits
        self._itl_sum = self._itl_at + layout.inter_token.sum_at
        self._meters: dict[str, list[Any]] = {}  # by wire rid
        # The last step, if every recorded row of it brought tokens: its rids, of whatever core.
        # All had their last tokens at `_last`, which their lists are told when they pause.
        self._members: set[str] | None = None
        self._last = 0
        self._weights: dict[int, int] = {}  # recorded members by series
        self._rows: Any = None  # the list of its rows: the next step's, while its rids are equal
        self._ones: list[int] = []

    def _series_at(self, k: int) -> int:
        return self._block + self._layout.series_at + k * self._layout.series_words

    # -- streams ---------------------------------------------------------------------

    def open(
        self, wire_rid: str, label: str, is_stream: bool, created_ns: int, structured: bool
    ) -> list[Any]:
        """The list of a new request; `label` is what `Layout.label_text` made of it."""
        at = self._series.get(label)
        if at is None:
            at = self._add_series(label)
        meter = self._meters[wire_rid] = [0, at, 0, structured, is_stream, created_ns]
        return meter

    def forget(self, wire_rid: str) -> None:
        """A request has ended, however."""
        meter = self._meters.pop(wire_rid, None)
        if meter is not None and self._members is not None and wire_rid in self._members:
            self._members.discard(wire_rid)
            self._weigh_less(meter[SERIES])

    def aborted(self) -> None:
        """A client does not want a request any more."""
        self._words[self._block + self._layout.aborted] += 1

    def _weigh_less(self, series: int) -> None:
        # Never below 0, whatever rids a frame had: a word takes no negative number.
        self._weights[series] = max(0, self._weights.get(series, 0) - 1)

    def _add_series(self, label: str) -> int:
        layout, words = self._layout, self._words
        count = int(words[self._block])
        data = label.encode("utf-8", "replace")
        if count >= layout.max_series - 1 or len(data) > LABEL_BYTES:
            if OTHER in self._series:
                return self._series[OTHER]
            label, data = OTHER, OTHER.encode()
        at = self._series_at(count)
        write_label(words, at, data)
        words[self._block] = count + 1
        self._series[label] = at
        return at

    # -- steps -----------------------------------------------------------------------

    def step(self, batch: Any, rows: list[Any], now: int) -> None:
        """One step, before its rows are taken. `rows` is one list as long as the rids are equal."""
        even = batch.tok_lens == self._ones
        if rows is self._rows and even:
            self._regular(now)
        elif self._members is not None and (even or batch.tok_lens.count(1) == batch.n):
            self._changed(self._members, batch, now)
            self._rows = rows
            if not even:
                self._ones = [1] * batch.n
        else:
            self._by_row(batch, rows, now)

    def _regular(self, now: int) -> None:
        """Every member brought one token."""
        interval = now - self._last
        self._last = now
        words = self._words
        bucket = self._itl_at + bisect_left(self._itl_limits, interval)
        total = self._itl_sum
        for series, count in self._weights.items():
            words[series + bucket] += count
            words[series + total] = words[series + total] + interval * count & MASK

    def _changed(self, before: set[str], batch: Any, now: int) -> None:
        """One token a row, but the rows are not those of the last step."""
        last, meters, weights = self._last, self._meters, self._weights
        members = set(batch.rids)
        for rid in before - members:  # no row this time: its interval goes on
            meter = meters.get(rid)
            if meter is not None:
                meter[LAST] = last
                self._weigh_less(meter[SERIES])
        self._regular(now)
        self._members = members
        for rid in members - before:
            meter = meters.get(rid)
            if meter is None:  # another core's, or unrecorded
                continue
            if meter[LAST]:
                interval = now - meter[LAST]
                self._intervals(meter[SERIES], interval, interval, 1)
            elif not self._first_row(meter, batch, batch.rids.index(rid), now):
                members.discard(rid)  # looked at again when it has another row
                continue
            meter[LAST] = now
            weights[meter[SERIES]] = weights.get(meter[SERIES], 0) + 1

    def _by_row(self, batch: Any, rows: list[Any], now: int) -> None:
        """Any step."""
        meters = self._meters
        if self._members is not None:
            for rid in self._members:
                meter = meters.get(rid)
                if meter is not None:
                    meter[LAST] = self._last
        weights: dict[int, int] = {}
        even = True
        for row, (rid, count) in enumerate(zip(batch.rids, batch.tok_lens, strict=True)):
            meter = meters.get(rid)
            if meter is None:
                continue
            before = meter[LAST]
            if before and count:
                self._intervals(meter[SERIES], (now - before) / count, now - before, count)
            elif before or not self._first_row(meter, batch, row, now):
                even = False
                continue
            meter[LAST] = now
            weights[meter[SERIES]] = weights.get(meter[SERIES], 0) + 1
        self._last = now
        self._weights = weights
        members = set(batch.rids)
        even = even and len(members) == batch.n  # else a rid was named twice
        self._members = members if even else None
        self._rows = rows if even else None
        self._ones = [1] * batch.n

    def _intervals(self, series: int, each: float, total: int, count: int) -> None:
        words = self._words
        words[series + self._itl_at + bisect_left(self._itl_limits, each)] += count
        at = series + self._itl_sum
        words[at] = words[at] + total & MASK

    def _first_row(self, meter: list[Any], batch: Any, row: int, now: int) -> bool:
        """Time to the first token; False where this row says nothing of it."""
        finish = batch.finish_reasons[row]
        if self._prefill or (finish is not None and finish.get("type") == "abort"):
            return False
        first, created = now, meter[CREATED]
        latency = None if finish is None else batch.row_decode_latency(row)
        if latency is not None and 0 <= latency < _LONGEST_S and not meter[IS_STREAM]:
            # A unary request whose rows were held back: the scheduler knows when it began.
            first = max(created, now - int(latency * 1e9))
        meter[FIRST] = first
        layout = self._layout
        at = meter[SERIES] + (layout.stream_words if meter[IS_STREAM] else 0)
        observe(self._words, at, layout.first_token.place, first - created)
        return True

    # -- ends ------------------------------------------------------------------------

    def ended(self, stream: Any, batch: Any, row: int, now: int) -> None:
        """A request's last row, before its tokens are counted."""
        if batch.row_ended_outside(row):
            return
        _, series, first, structured, is_stream, created = stream.meter
        words = self._words
        (
            streams, structured_at, prompt_tokens, generation_tokens, prompt, uncached, generation,
            e2e, per_token,
        ) = self._at_end  # fmt: skip
        at = series + streams if is_stream else series
        count = batch.prompt_tokens[row]
        tokens = stream.hot[DONE] + batch.tok_lens[row]
        words[at + prompt_tokens] = words[at + prompt_tokens] + count & MASK
        words[at + generation_tokens] = words[at + generation_tokens] + tokens & MASK
        if structured:
            words[series + structured_at] += 1
        observe(words, at, e2e, now - created)
        observe(words, series, prompt, count)
        observe(words, series, uncached, count - batch.cached_tokens[row])
        observe(words, series, generation, tokens)
        if first and tokens > 1 and now > first:
            kind = batch.finish_reasons[row].get("type")
            if kind == "stop" or kind == "length":
                observe(words, at, per_token, (now - first) // (tokens - 1))


def observe(words: Any, base: int, place: tuple[int, list[float], int], value: int) -> None:
    """One value of a histogram. Modulo 2**64: whatever a scheduler sends, a word takes it."""
    first, limits, total = place
    at = base + first + bisect_left(limits, value)
    words[at] += 1
    at = base + total
    words[at] = words[at] + value & MASK
