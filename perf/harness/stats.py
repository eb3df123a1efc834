"""Percentiles, medians, spread. Owner: stateless."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

POINTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """`{"p50": …, "p99": …, "max": …, "mean": …}`; empty for no values. Nearest rank."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    found = {f"p{point:g}": ordered[round(last * point / 100)] for point in POINTS}
    return found | {"max": ordered[-1], "mean": statistics.fmean(ordered)}


def spread(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Median, minimum, maximum and count of the rounds' values; None when there are none."""
    kept = [each for each in values if each is not None]
    if not kept:
        return None
    return {
        "median": statistics.median(kept),
        "min": min(kept),
        "max": max(kept),
        "rounds": len(kept),
    }
