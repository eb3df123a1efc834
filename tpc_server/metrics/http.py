"""Counts one core's HTTP requests and answers by route. Owner: the core's thread."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from ..routes.table import ROUTES, Route
from .layout import MASK, Layout, status_slot

NONE: Final = -1  # no request, or none that came over HTTP


def endpoints() -> tuple[tuple[str, str], ...]:
    """(path, method) of everything that is answered; a route's position is its number."""
    return tuple(
        (route.path, method)
        for route in ROUTES
        for method in (*route.methods, *(("HEAD",) if "GET" in route.methods else ()))
    )


def make_layout(config: Any) -> Layout | None:
    """The layout of a MetricsConfig, None without one. Each core makes its own."""
    return None if config is None else Layout(config, endpoints())


class HttpMeter:
    """Words of one core."""

    def __init__(self, layout: Layout, words: Any, block_at: int) -> None:
        self._words = words
        self._loads = layout.loads
        self._loads_at = block_at + layout.loads.at
        self._at = [block_at + layout.route_at(k) for k in range(len(layout.routes))]
        self._unmatched = len(layout.routes) - 1
        self._numbers = {
            (path.encode(), method.encode()): k
            for k, (path, method) in enumerate(layout.routes[:-1])
        }
        for at in self._at:  # a core that was rebuilt has let go of all its connections
            words[at + 1] = 0

    def number(self, route: Route | None, method: bytes) -> int:
        """Number of a route; what no route takes has one for itself."""
        if route is None:
            return self._unmatched
        return self._numbers.get((route.path.encode(), method), self._unmatched)

    def exact(self, path: bytes, method: bytes) -> int | None:
        """Number of a path that is written as it is declared."""
        return self._numbers.get((path, method))

    def began(self, route: int) -> None:
        """A request was dispatched."""
        at = self._at[route]
        self._words[at] += 1
        self._words[at + 1] += 1

    def answering(self, route: int, status: int) -> None:
        """The head of an answer goes out."""
        if route != NONE:
            self._words[self._at[route] + status_slot(status)] += 1

    def ended(self, route: int) -> None:
        """Answered whole, or its connection is gone."""
        if route != NONE:
            at = self._at[route] + 1
            self._words[at] = self._words[at] - 1 & MASK

    def loads(self, duration_ns: int) -> None:
        """A request of /v1/loads was answered."""
        words, histogram = self._words, self._loads
        words[self._loads_at + bisect_left(histogram.limits, duration_ns)] += 1
        words[self._loads_at + histogram.sum_at] += duration_ns
