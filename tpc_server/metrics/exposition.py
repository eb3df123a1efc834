"""Published words to Prometheus text. Owner: the thread that scrapes; it only reads words.

The format is `prometheus_client`'s. Families that other processes wrote to the multiprocess
directory (a scheduler's) are merged in; what both have under one name is added up.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from .layout import STATUSES, Histogram, Layout, read_label

# What a page is made with, all of it: where it is first needed there may be no descriptor left.
_MODULES: Final = ("", ".core", ".multiprocess", ".utils")
CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "sglang:"


def load() -> None:
    """Import what pages need."""
    for name in _MODULES:
        importlib.import_module(f"prometheus_client{name}")


class _Series:
    """One series' words, added up over the cores."""

    __slots__ = ("label", "words")

    def __init__(self, label: str, words: list[int]) -> None:
        self.label = label
        self.words = words


class Exposition:
    """What `/metrics` shows: the frontend's families, our own, and other processes'."""

    def __init__(
        self, layout: Layout, words: Any, blocks: Sequence[int],
        own: Callable[[], Iterable[Any]] = tuple,
    ) -> None:  # fmt: skip
        """`blocks` are the words at which the cores' blocks start; `own` yields more families."""
        self._layout = layout
        self._words = words
        self.blocks = blocks
        self._own = own
        self._unreadable = 0  # pages without the families of other processes

    def text(self) -> bytes:
        """The whole page."""
        from prometheus_client import generate_latest

        page: bytes = generate_latest(_Merged(self.families(), self._of_others()))
        return page

    def _of_others(self) -> Iterable[Any]:
        path = self._layout.multiproc_dir
        if not path or not os.path.isdir(path):
            return ()
        from prometheus_client.multiprocess import MultiProcessCollector

        for _ in range(2):  # a process may end between the listing and the reading
            try:
                return list(MultiProcessCollector(None, path).collect())  # type: ignore[no-untyped-call]
            except Exception:  # whatever is in a file that is half written, or no file of theirs
                continue
        self._unreadable += 1
        return ()

    # -- the frontend's families -----------------------------------------------------

    def families(self) -> Iterator[Any]:
        """All of this process."""
        from prometheus_client.core import CounterMetricFamily

        layout = self._layout
        series = self._merged()
        yield from self._by_stream(series)
        prompt, uncached = (
            h.at + h.sum_at for h in (layout.prompt_histogram, layout.uncached_histogram)
        )
        yield self._counter(
            "cached_tokens_total", "Prompt tokens that came from the cache, by source.", series,
            # As SGLang's Rust server: the boundary does not tell tiers of the cache apart.
            lambda words, _: words[prompt] - words[uncached], "cache_source", "device",
        )  # fmt: skip
        yield self._counter(
            "num_so_requests_total", "Requests with structured output.", series,
            lambda words, _: words[layout.structured],
        )  # fmt: skip
        names = list(layout.labels)
        aborted = CounterMetricFamily(
            _PREFIX + "num_aborted_requests", "Requests aborted by their clients.", labels=names
        )
        count = sum(int(self._words[block + layout.aborted]) for block in self.blocks)
        aborted.add_metric(list(layout.labels.values()), count)
        yield aborted
        # The scheduler boundary has no column for it: named, never counted.
        yield CounterMetricFamily(
            _PREFIX + "spec_verify_calls", "Verification calls of speculative decoding.",
            labels=names,
        )  # fmt: skip
        for name, about, histogram in (
            ("prompt_tokens_histogram", "Prompt lengths in tokens.", layout.prompt_histogram),
            (
                "uncached_prompt_tokens_histogram",
                "Prompt tokens that were computed, a request.",
                layout.uncached_histogram,
            ),
            (
                "generation_tokens_histogram",
                "Generated tokens, a request.",
                layout.generation_histogram,
            ),
            (
                "inter_token_latency_seconds",
                "Time between two tokens of a request, in seconds.",
                layout.inter_token,
            ),
        ):
            family = self._histogram_family(name, about)
            for one in series:
                _add(family, layout.label_values(one.label), histogram, one.words, 0)
            yield family
        yield self._loads()
        yield from self._http()
        if layout.multiproc_dir:
            yield CounterMetricFamily(
                "tpc_multiproc_failures", "Pages made without unreadable files of other processes.",
                value=self._unreadable,
            )  # fmt: skip
        yield from self._own()

    def _by_stream(self, series: list[_Series]) -> Iterator[Any]:
        layout = self._layout
        for name, about, at, size in (
            ("prompt_tokens_total", "Prompt tokens processed.", layout.prompt_tokens, 1),
            ("generation_tokens_total", "Tokens generated.", layout.generation_tokens, 1),
            ("num_requests_total", "Requests processed.", layout.e2e.at, layout.e2e.sum_at),
        ):
            yield self._counter(
                name, about, series, lambda words, off, at=at, size=size: sum(  # type: ignore[misc]
                    words[at + off : at + off + size]
                ), "is_streaming",
            )  # fmt: skip
        for name, about, histogram in (
            (
                "time_to_first_token_seconds",
                "Time to the first token of a request, in seconds.",
                layout.first_token,
            ),
            (
                "e2e_request_latency_seconds",
                "Time from a request to its last token, in seconds.",
                layout.e2e,
            ),
            (
                "request_time_per_output_token_seconds",
                "A request's time from its first to its last token, by its further tokens.",
                layout.per_token,
            ),
        ):
            family = self._histogram_family(name, about, "is_streaming")
            for one in series:
                values = layout.label_values(one.label)
                for streaming in (False, True):
                    offset = layout.stream_words if streaming else 0
                    _add(family, [*values, _flag(streaming)], histogram, one.words, offset)
            yield family

    def _counter(
        self, name: str, about: str, series: list[_Series],
        count: Callable[[list[int], int], int], extra: str = "", value: str = "",
    ) -> Any:  # fmt: skip
        """`count` takes a series' words and the offset of its streams' words."""
        from prometheus_client.core import CounterMetricFamily

        layout = self._layout
        names = [*layout.labels, extra] if extra else list(layout.labels)
        family = CounterMetricFamily(_PREFIX + name.removesuffix("_total"), about, labels=names)
        for one in series:
            values = layout.label_values(one.label)
            if extra == "is_streaming":
                for streaming in (False, True):
                    offset = layout.stream_words if streaming else 0
                    family.add_metric([*values, _flag(streaming)], count(one.words, offset))
            else:
                family.add_metric([*values, value] if extra else values, count(one.words, 0))
        return family

    def _histogram_family(self, name: str, about: str, *extra: str) -> Any:
        from prometheus_client.core import HistogramMetricFamily

        return HistogramMetricFamily(_PREFIX + name, about, labels=[*self._layout.labels, *extra])

    def _loads(self) -> Any:
        layout = self._layout
        family = self._histogram_family(
            "get_loads_duration_seconds", "Time taken by requests of /v1/loads, in seconds."
        )
        histogram = layout.loads
        total = [0] * (histogram.at + histogram.words)
        for block in self.blocks:
            for k in range(histogram.at, len(total)):
                total[k] += self._words[block + k]
        _add(family, list(layout.labels.values()), histogram, total, 0)
        return family

    def _http(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        layout, words = self._layout, self._words
        requests = CounterMetricFamily(
            _PREFIX + "http_requests", "HTTP requests, by endpoint and method.",
            labels=["endpoint", "method"],
        )  # fmt: skip
        responses = CounterMetricFamily(
            _PREFIX + "http_responses", "HTTP answers, by endpoint, status and method.",
            labels=["endpoint", "status_code", "method"],
        )  # fmt: skip
        active = GaugeMetricFamily(
            _PREFIX + "http_requests_active", "HTTP requests that are not answered yet.",
            labels=["endpoint", "method"],
        )  # fmt: skip
        for route, (endpoint, method) in enumerate(layout.routes):
            at = layout.route_at(route)
            count, now, *answers = (
                sum(int(words[block + at + k]) for block in self.blocks)
                for k in range(2 + len(STATUSES))
            )
            if not count:
                continue
            requests.add_metric([endpoint, method], count)
            active.add_metric([endpoint, method], now)
            for status, answered in zip(STATUSES, answers, strict=True):
                if answered:
                    code = str(status) if status else "other"
                    responses.add_metric([endpoint, code, method], answered)
        yield from (requests, responses, active)

    def _merged(self) -> list[_Series]:
        """Series of all cores by name; the first ones first."""
        layout, words = self._layout, self._words
        merged: dict[str, _Series] = {}
        for block in self.blocks:
            for k in range(min(int(words[block]), layout.max_series)):
                at = block + layout.series_at + k * layout.series_words
                label = read_label(words, at) if layout.dynamic else ""
                values = [int(words[at + i]) for i in range(layout.series_words)]
                known = merged.get(label)
                if known is None:
                    merged[label] = _Series(label, values)
                else:
                    known.words = [a + b for a, b in zip(known.words, values, strict=True)]
        return list(merged.values())


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _add(
    family: Any, values: list[str], histogram: Histogram, words: list[int], offset: int
) -> None:
    from prometheus_client.utils import floatToGoString

    at = histogram.at + offset
    reached = 0
    pairs: list[tuple[str, float]] = []
    for k, bound in enumerate((*histogram.bounds, float("inf"))):
        reached += words[at + k]
        pairs.append((floatToGoString(bound), reached))  # type: ignore[no-untyped-call]
    family.add_metric(values, pairs, words[at + histogram.sum_at] / histogram.scale)


class _Merged:
    """Families of two sources: those of one name become one, equal samples are added."""

    def __init__(self, first: Iterable[Any], second: Iterable[Any]) -> None:
        self._families = (first, second)

    def collect(self) -> list[Any]:
        """As `prometheus_client` asks."""
        out: dict[str, Any] = {}
        for families in self._families:
            for family in families:
                known = out.get(family.name)
                if known is None:
                    out[family.name] = family
                elif known.type == family.type:
                    known.samples = _sum([*known.samples, *family.samples])
        return list(out.values())


def _sum(samples: list[Any]) -> list[Any]:
    by_key: dict[Any, Any] = {}
    for sample in samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        known = by_key.get(key)
        by_key[key] = sample if known is None else known._replace(value=known.value + sample.value)
    return list(by_key.values())
