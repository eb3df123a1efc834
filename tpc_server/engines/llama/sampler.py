"""Logits to tokens, row by row. Owner: the engine thread (stateless).

A row's token depends on its logits, its own parameters, its seed and its position only, never on
the rows beside it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from .gguf_tensors import Array
from .request import Request, Sampling

#: How many likeliest ids are looked at first for top_p; the next looks take eight times as many.
_FIRST_LOOK: Final = 64
_MASK64: Final = (1 << 64) - 1


def adjust(row: Array, request: Request) -> None:
    """Penalties, minimum length and biases, into `row`, in SGLang's order."""
    sampling = request.sampling
    if request.counts:
        ids = np.fromiter(request.counts, np.int64, len(request.counts))
        picked = row[ids]
        if sampling.frequency_penalty or sampling.presence_penalty:
            counts = np.fromiter(request.counts.values(), np.float32, len(request.counts))
            picked -= np.float32(sampling.frequency_penalty) * counts
            picked -= np.float32(sampling.presence_penalty)
        if sampling.repetition_penalty != 1.0:
            factor = np.float32(sampling.repetition_penalty)
            picked = np.where(picked < 0, picked * factor, picked / factor)
        row[ids] = picked
    if sampling.barred and len(request.output) < sampling.min_new_tokens:
        row[sampling.barred] = -np.inf
    for token, value in sampling.biases:
        row[token] += np.float32(value)


def is_adjusted(request: Request) -> bool:
    """Whether `adjust` would change anything."""
    sampling = request.sampling
    if request.counts or sampling.biases:
        return True
    return bool(sampling.barred) and len(request.output) < sampling.min_new_tokens


def pick(row: Array, request: Request) -> int | None:
    """The next token for adjusted logits; None where they hold no usable number."""
    sampling = request.sampling
    best = int(row.argmax())  # the first NaN, where there is one
    if not np.isfinite(row[best]):
        return None
    if sampling.top_k == 1:
        return best
    weights = (row - row[best]) / np.float32(sampling.temperature)
    np.exp(weights, out=weights)
    return _draw(weights, sampling, uniform(sampling.seed, len(request.output)))


def _draw(weights: Array, sampling: Sampling, u: float) -> int:
    """One id by weight (largest is 1), among those top_k, top_p and min_p leave; u in [0, 1)."""
    narrow = sampling.top_k < len(weights) or sampling.top_p < 1.0
    if not narrow:
        if sampling.min_p > 0.0:
            ids = np.flatnonzero(weights >= np.float32(sampling.min_p))
            return int(ids[_at(weights[ids], u)])
        return _at(weights, u)
    ids = _likeliest(weights, sampling)
    kept = weights[ids]
    if sampling.min_p > 0.0:
        kept = kept[: max(int(np.count_nonzero(kept >= np.float32(sampling.min_p))), 1)]
    return int(ids[_at(kept, u)])


def _likeliest(weights: Array, sampling: Sampling) -> npt.NDArray[np.int64]:
    """Ids that top_k and top_p leave, likeliest first. Both cut the same unfiltered distribution:
    an id stays while those before it have less than top_p of all weight, and there are < top_k."""
    n = len(weights)
    limit = min(sampling.top_k, n)
    if sampling.top_p >= 1.0:
        return top_ids(weights, limit)
    enough = sampling.top_p * float(weights.sum(dtype=np.float64))
    look = min(_FIRST_LOOK, limit)
    while True:
        ids = top_ids(weights, look)
        sums = np.cumsum(weights[ids], dtype=np.float64)
        if look == limit or sums[-1] > enough:
            break
        look = min(look * 8, limit)
    # sums[k] is the weight before id k + 1: that id goes once it exceeds the share.
    return ids[: 1 + int(np.searchsorted(sums[:-1], enough, side="right"))]


def top_ids(values: Array, count: int) -> npt.NDArray[np.int64]:
    """Positions of the `count` largest, largest first; equal ones by position."""
    if count >= len(values):
        return np.argsort(-values, kind="stable")
    least = np.partition(values, len(values) - count)[len(values) - count]
    ids = np.flatnonzero(values > least)
    ids = ids[np.argsort(-values[ids], kind="stable")]
    ties = np.flatnonzero(values == least)[: count - len(ids)]
    return np.concatenate((ids, ties))


def _at(weights: Array, u: float) -> int:
    """The position where the running sum of weights passes u of the whole."""
    sums = np.cumsum(weights, dtype=np.float64)
    position = int(np.searchsorted(sums, u * sums[-1], side="right"))
    if position < len(weights):
        return position
    return int(np.flatnonzero(weights)[-1])  # u * sum was rounded up to the sum itself


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) fixed by a request's seed and the output position (splitmix64 twice)."""
    mixed = _mix((_mix(seed & _MASK64) + position * 0x9E3779B97F4A7C15) & _MASK64)
    return (mixed >> 11) / (1 << 53)


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
