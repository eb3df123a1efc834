"""Records one core's requests and steps into its published words. Owner: the detok core.

What a step costs: as long as every step brings one token for each of the same requests, all their
inter-token latencies are equal, and one addition to one bucket counts them. A step at which a
request came, ended, paused or brought several tokens is taken row by row.

SGLang's rules: the first row of a request observes the time to its first token, each later row its
interval divided by its new tokens, as often as there are; the last row everything else. A row
without tokens does not end an interval. Requests that the scheduler ended outside its output
stream (aborts in its queue) are not recorded, nor those with `log_metrics: false`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any, Final

from ..stages.stream import DONE, STREAM
from .layout import LABEL_BYTES, MASK, OTHER, Histogram, Layout, read_label, write_label

# A recorded stream's own list.
LAST: Final = 0  # nanoseconds at its last tokens; 0 before the first row
SERIES: Final = 1  # index of its series' first word
FIRST: Final = 2  # nanoseconds at its first token
STRUCTURED: Final = 3  # whether its output follows a grammar

_LONGEST_S: Final = 1e9  # a latency beyond is nonsense (as NaN is, which no comparison holds for)


class Recorder:
    """Words of one core, and the times of its streams."""

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
        itl = layout.inter_token
        self._itl_at = itl.at
        self._itl_limits = itl.limits
        self._itl_sum = itl.sum_at
        # The last step, where every recorded row of it brought tokens: its rows, its time, the
        # lists of its streams, and how many rows belong to each series.
        self._rows: list[Any] | None = None
        self._ones: list[int] = []
        self._last = -1
        self._live: list[list[Any]] = []
        self._weights: list[tuple[int, int]] = []

    def _series_at(self, k: int) -> int:
        return self._block + self._layout.series_at + k * self._layout.series_words

    # -- streams ---------------------------------------------------------------------

    def open(self, label: str, structured: bool) -> list[Any]:
        """The list of a new stream, by what `Layout.label_text` made of its request."""
        at = self._series.get(label)
        return [0, self._add_series(label) if at is None else at, 0, structured]

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
        """One step, before its rows are taken; `rows` are hot lists, None for other cores."""
        if rows is not self._rows or batch.tok_lens != self._ones:
            self._by_row(batch, rows, now)
            return
        interval = now - self._last
        self._last = now
        bucket = self._itl_at + bisect_left(self._itl_limits, interval)
        words = self._words
        for series, count in self._weights:
            words[series + bucket] += count
            at = series + self._itl_at + self._itl_sum
            words[at] = words[at] + interval * count & MASK

    def _by_row(self, batch: Any, rows: list[Any], now: int) -> None:
        last = self._last
        if self._rows is not None:
            for meter in self._live:
                meter[LAST] = last
        live: list[list[Any]] = []
        regular: list[int] = []  # series of the rows whose interval is that of the last step
        even = True
        for hot, count, row in zip(rows, batch.tok_lens, range(batch.n), strict=True):
            stream = None if hot is None else hot[STREAM]
            if stream is None:
                continue
            meter = stream.meter
            if meter is None:
                continue
            before = meter[LAST]
            if before == last and count == 1:
                regular.append(meter[SERIES])
            elif not before:
                if not self._first_row(stream, meter, batch, row, now):
                    even = False
                    continue
            elif count:
                self._intervals(meter[SERIES], (now - before) / count, now - before, count)
            else:
                even = False
                continue
            meter[LAST] = now
            live.append(meter)
        for series, count in Counter(regular).items():
            self._intervals(series, now - last, (now - last) * count, count)
        self._last = now
        if even:
            self._rows = rows
            self._ones = [1] * batch.n
            self._live = live
            self._weights = list(Counter([meter[SERIES] for meter in live]).items())
        else:
            self._rows = None
            self._live = []

    def _intervals(self, series: int, each: float, total: int, count: int) -> None:
        words = self._words
        at = series + self._itl_at
        words[at + bisect_left(self._itl_limits, each)] += count
        at += self._itl_sum
        words[at] = words[at] + total & MASK

    def _first_row(self, stream: Any, meter: list[Any], batch: Any, row: int, now: int) -> bool:
        """Time to the first token; False where this row says nothing of it."""
        finish = batch.finish_reasons[row]
        if self._prefill or (finish is not None and finish.get("type") == "abort"):
            return False
        group = stream.group
        first = now
        latency = None if finish is None else batch.row_decode_latency(row)
        if latency is not None and 0 <= latency < _LONGEST_S and not group.is_stream:
            # A unary request whose rows were held back: the scheduler knows when it began.
            first = max(group.created_ns, now - int(latency * 1e9))
        meter[FIRST] = first
        layout = self._layout
        at = meter[SERIES] + (layout.stream_words if group.is_stream else 0)
        self._observe(at, layout.first_token, first - group.created_ns)
        return True

    # -- ends ------------------------------------------------------------------------

    def ended(self, stream: Any, batch: Any, row: int, now: int) -> None:
        """A stream's last row, before its tokens are counted."""
        meter: list[Any] = stream.meter
        stream.meter = None
        if batch.row_ended_outside(row):
            return
        layout = self._layout
        group = stream.group
        series = meter[SERIES]
        at = series + (layout.stream_words if group.is_stream else 0)
        prompt, cached = batch.prompt_tokens[row], batch.cached_tokens[row]
        tokens = stream.hot[DONE] + batch.tok_lens[row]
        self._add(at + layout.prompt_tokens, prompt)
        self._add(at + layout.generation_tokens, tokens)
        self._add(at + layout.requests, 1)
        self._add(series + layout.cached, cached)
        if meter[STRUCTURED]:
            self._add(series + layout.structured, 1)
        self._observe(at, layout.e2e, now - group.created_ns)
        decoded = now - meter[FIRST]
        finish = batch.finish_reasons[row]
        if meter[FIRST] and tokens > 1 and decoded > 0 and finish.get("type") in ("stop", "length"):
            self._observe(at, layout.per_token, decoded // (tokens - 1))
        self._observe(series, layout.prompt_histogram, prompt)
        self._observe(series, layout.uncached_histogram, prompt - cached)
        self._observe(series, layout.generation_histogram, tokens)

    def _add(self, at: int, value: int) -> None:
        # Modulo 2**64: whatever a scheduler sends, a word takes it.
        self._words[at] = self._words[at] + value & MASK

    def _observe(self, base: int, histogram: Histogram, value: int) -> None:
        words = self._words
        at = base + histogram.at
        words[at + bisect_left(histogram.limits, value)] += 1
        at += histogram.sum_at
        words[at] = words[at] + value & MASK
