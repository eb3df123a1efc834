"""Bounds of the histograms: SGLang's defaults, and its rules for others. Owner: stateless."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

FIRST_TOKEN_S: Final = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0,
)  # fmt: skip
E2E_S: Final = (*FIRST_TOKEN_S, 600.0, 1200.0, 1800.0, 2400.0)
INTER_TOKEN_S: Final = (
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
TOKENS: Final = tuple(
    float(n) for n in (
        100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000,
        12500, 15000, 17500, 20000, 22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000,
        200000, 300000, 400000, 600000, 800000, 1000000, 1100000,
    )
)  # fmt: skip
LOADS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


def bounds(given: Iterable[float] | None, default: Sequence[float]) -> tuple[float, ...]:
    """Ascending finite bounds without repetition; the last bucket, +Inf, is not named."""
    chosen = default if given is None else given
    return tuple(sorted({float(b) for b in chosen if math.isfinite(b)}))


def by_rule(rule: Sequence[str] | None, flag: str) -> list[float] | None:
    """Bounds by one of SGLang's rules; None for its defaults. Raises ValueError naming the flag.

    default                       SGLang's bounds
    tse MIDDLE BASE COUNT         both sides of the middle, at distances that are powers of the base
    custom BOUND …                these
    """
    if not rule or rule[0] == "default":
        return None
    kind, *numbers = rule
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        raise ValueError(f"{flag}: {' '.join(numbers)} are not all numbers") from None
    if kind == "custom":
        if not values:
            raise ValueError(f"{flag}: custom needs at least one bound")
        return sorted(set(values))
    if kind != "tse":
        raise ValueError(f"{flag}: the rule is default, tse or custom, not {kind}")
    if len(values) != 3 or values[1] <= 1.0 or values[2] < 0 or values[2] > 1000:
        raise ValueError(f"{flag}: tse takes MIDDLE BASE COUNT, BASE above 1, COUNT to 1000")
    middle, base, count = values
    distances = [base ** (k + 1) for k in range(math.ceil(count / 2))]
    sides = [middle + d for d in distances] + [max(0.0, middle - d) for d in distances]
    return sorted({middle, *sides})
