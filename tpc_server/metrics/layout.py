"""Which published word counts what. Owner: plain data after construction, any thread.

Every core has one block of 64-bit words in the shared region. Only the core's thread writes there,
one word at a time, so whoever reads needs no lock and no message: a scrape adds up the blocks of
all cores. A block holds a counter of `/v1/loads` times, HTTP counters by route, and *series*: one
for each set of label values that requests brought, with its histograms and counters. What follows
from them has no words: requests are the count of their latencies, cached tokens the prompt tokens
that were not computed.

The layout is a pure function of the configuration and the routes, so that another process finds
the same places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import buckets

LABEL_WORDS: Final = 64  # a length in bytes, then the values as JSON
LABEL_BYTES: Final = (LABEL_WORDS - 1) * 8
MAX_SERIES: Final = 64  # sets of label values a core tells apart; the last one is for all others
OTHER: Final = "other"
MASK: Final = (1 << 64) - 1
PRIORITY: Final = "priority"

# Statuses that are told apart; the last slot is for all others.
STATUSES: Final = (
    200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 415, 417, 422, 429, 431, 499, 500, 501, 502,
    503, 504, 0,
)  # fmt: skip
_STATUS_SLOT: Final = {status: i for i, status in enumerate(STATUSES)}
_ROUTE_WORDS: Final = 2 + len(STATUSES)  # requests, active, one a status
UNMATCHED: Final = ("(unmatched)", "(any)")  # endpoint and method of what no route takes


class Histogram:
    """Where a histogram's words are: one a bucket (the last is +Inf), then the sum.

    `at` is relative to its series (or block); `limits` are the bounds in recorded units:
    nanoseconds where `scale` is 1e9, tokens where it is 1.
    """

    __slots__ = ("at", "bounds", "limits", "place", "scale", "sum_at", "words")

    def __init__(self, at: int, bounds: tuple[float, ...], scale: float) -> None:
        self.at = at
        self.bounds = bounds
        self.scale = scale
        self.limits = [bound * scale for bound in bounds]
        self.sum_at = len(bounds) + 1  # relative to the first bucket
        self.words = len(bounds) + 2
        # What recording a value takes: first bucket, limits, sum.
        self.place = (at, self.limits, at + self.sum_at)


class Layout:
    """The words of one core's block. `area.MetricsArea` says where the block is."""

    def __init__(self, config: Any, routes: Sequence[tuple[str, str]] = ()) -> None:
        labels: dict[str, str] = {str(k): str(v) for k, v in config.labels.items()}
        self.by_priority = bool(config.priority_label)
        if self.by_priority:
            labels.setdefault(PRIORITY, "")
        self.labels = labels
        # Those that a request fills in: SGLang hands them over empty.
        self.dynamic = tuple(name for name, value in labels.items() if not value)
        self.max_series = MAX_SERIES if self.dynamic else 1
        self.routes = (*routes, UNMATCHED)
        self.multiproc_dir: str | None = config.multiproc_dir

        second, tokens = 1e9, 1.0
        ttft = buckets.bounds(config.bucket_time_to_first_token, buckets.FIRST_TOKEN_S)
        itl = buckets.bounds(config.bucket_inter_token_latency, buckets.INTER_TOKEN_S)
        e2e = buckets.bounds(config.bucket_e2e_request_latency, buckets.E2E_S)
        prompt = buckets.bounds(config.bucket_prompt_tokens, buckets.TOKENS)
        generation = buckets.bounds(config.bucket_generation_tokens, buckets.TOKENS)

        self._at = LABEL_WORDS
        self.structured = self._word()
        self.prompt_histogram = self._histogram(prompt, tokens)
        self.uncached_histogram = self._histogram(prompt, tokens)
        self.generation_histogram = self._histogram(generation, tokens)
        self.inter_token = self._histogram(itl, second)
        # Twice: unary requests, then streams.
        self._streams_at = self._at
        self.prompt_tokens = self._word()
        self.generation_tokens = self._word()
        self.first_token = self._histogram(ttft, second)
        self.per_token = self._histogram(itl, second)
        self.e2e = self._histogram(e2e, second)
        self.stream_words = self._at - self._streams_at
        self.series_words = self._at + self.stream_words

        self._at = 1  # the first word: how many series there are
        self.aborted = self._word()
        self.loads = self._histogram(buckets.LOADS_S, second)
        self.http_at = self._at
        self.series_at = self.http_at + len(self.routes) * _ROUTE_WORDS
        words = self.series_at + self.max_series * self.series_words
        self.words = words + -words % 16  # whole pairs of cache lines

    def _word(self) -> int:
        self._at += 1
        return self._at - 1

    def _histogram(self, bounds: tuple[float, ...], scale: float) -> Histogram:
        made = Histogram(self._at, bounds, scale)
        self._at += made.words
        return made

    def route_at(self, route: int) -> int:
        """Where a route's words start in the block: requests, active, then statuses."""
        return self.http_at + route * _ROUTE_WORDS

    def label_text(self, custom: Mapping[str, str] | None, priority: int | None) -> str:
        """What a request fills in, as its series is named; "" where nothing can be filled in."""
        if not self.dynamic:
            return ""
        values = [str((custom or {}).get(name, "")) for name in self.dynamic]
        if self.by_priority and priority is not None and PRIORITY in self.dynamic:
            values[self.dynamic.index(PRIORITY)] = str(priority)
        if max(map(len, values)) > LABEL_BYTES:
            return OTHER
        return json.dumps(values, ensure_ascii=False)

    def label_values(self, text: str) -> list[str]:
        """Values of all labels for a series' name, in the order of `labels`."""
        if not self.dynamic:
            return list(self.labels.values())
        filled = [OTHER] * len(self.dynamic) if text == OTHER else json.loads(text or "[]")
        by_name = dict(zip(self.dynamic, filled, strict=False))
        return [by_name.get(name, value) for name, value in self.labels.items()]


def status_slot(status: int) -> int:
    """Position of a status in a route's words."""
    return 2 + _STATUS_SLOT.get(status, len(STATUSES) - 1)


def write_label(words: Any, at: int, data: bytes) -> None:
    """A series' name, before the series is counted."""
    for k in range(0, len(data), 8):
        words[at + 1 + (k >> 3)] = int.from_bytes(data[k : k + 8], "little")
    words[at] = len(data)


def read_label(words: Any, at: int) -> str:
    """The name of a series that is counted."""
    size = min(int(words[at]), LABEL_BYTES)
    raw = b"".join(int(words[at + 1 + k]).to_bytes(8, "little") for k in range((size + 7) // 8))
    return raw[:size].decode("utf-8", "replace")
