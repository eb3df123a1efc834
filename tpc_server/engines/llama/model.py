"""The computation of a Llama-type model, float32, several sequences a pass. Owner: engine thread.

One pass takes any mixture of prompt pieces and single decode tokens: all matrix products run over
all rows together, attention runs per sequence over its own slot. A row's result depends on the
other rows only through the order in which BLAS adds (float32 rounding).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from .gguf_tensors import Array
from .kv_cache import Slot
from .weights import Weights

#: Attention of a prompt piece runs in blocks of so many scores (1 MB), which stay in the cache of a
#: core through the six passes over them, and of no fewer rows than a product needs to be fast.
_SCORES_KEPT: Final = 1 << 18
_LEAST_ROWS: Final = 16


class Piece(NamedTuple):
    """New tokens of one sequence: `ids` go to the positions from `start` on of `slot`."""

    slot: Slot
    start: int
    ids: Sequence[int]


class _Layer(NamedTuple):
    attn_norm: Array
    wqkv: Array
    wo: Array
    ffn_norm: Array
    gate_up: Array
    down: Array


class LlamaModel:
    """Weights and constants, ready to multiply. `max_len` bounds every position."""

    def __init__(self, weights: Weights, max_len: int) -> None:
        self.config = config = weights.config
        arrays = weights.arrays
        self._embed = arrays["embed"]
        self._norm = arrays["norm"]
        self._head = arrays["head"]
        self._layers = [
            _Layer(*(arrays[f"{i}.{name}"] for name in _Layer._fields))
            for i in range(config.n_layers)
        ]
        half = config.head_dim // 2
        steps = config.rope_base ** (-np.arange(half, dtype=np.float64) / half)
        angles = np.arange(max_len, dtype=np.float64)[:, None] * (
            steps / arrays["rope_factors"].astype(np.float64)
        )
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)
        self._scale = np.float32(config.head_dim**-0.5)
        self._eps = np.float32(config.rms_eps)
        self._per_dim = np.float32(1 / config.dim)

    def forward(self, pieces: Sequence[Piece]) -> Array:
        """Compute the pieces, store their keys and values, return the last states [rows, dim].

        Rows follow the pieces in order; states are after the final norm. Slots must have room
        (`Slot.reserve`); the caller extends `Slot.tokens` once the pass succeeded.
        """
        config = self.config
        ids: list[int] = []
        for piece in pieces:
            ids += piece.ids
        n = len(ids)
        padded = _padded(n)
        positions = np.zeros(padded, np.int64)
        at = 0
        for piece in pieces:
            end = at + len(piece.ids)
            positions[at:end] = np.arange(piece.start, piece.start + len(piece.ids))
            at = end
        ids += [0] * (padded - n)
        cos = self._cos[positions][:, None, :]
        sin = self._sin[positions][:, None, :]
        masks = [_causal(len(p.ids)) if len(p.ids) > 1 else None for p in pieces]
        x = self._embed[ids]
        q_dim, kv_dim, ffn = config.q_dim, config.kv_dim, config.ffn_dim
        n_rotated = config.n_heads + config.n_kv_heads
        mixed = np.zeros((padded, q_dim), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for number, layer in enumerate(self._layers):
                qkv = _product(self._normed(x, layer.attn_norm), layer.wqkv)
                turned = _rotated(
                    qkv[:, : q_dim + kv_dim].reshape(padded, n_rotated, config.head_dim), cos, sin
                )
                turned[:, : config.n_heads] *= self._scale
                values = qkv[:, q_dim + kv_dim :].reshape(padded, config.n_kv_heads, -1)
                at = 0
                for piece, mask in zip(pieces, masks, strict=True):
                    if mask is None:
                        self._attend_token(number, piece, turned[at], values[at], mixed[at])
                        at += 1
                        continue
                    end = at + len(piece.ids)
                    self._attend_piece(
                        number, piece, turned[at:end], values[at:end], mask, mixed[at:end]
                    )
                    at = end
                x += _product(mixed, layer.wo)
                gate_up = _product(self._normed(x, layer.ffn_norm), layer.gate_up)
                gate = gate_up[:, :ffn]
                # silu(g) * u; for g below -88 exp overflows to inf and the quotient is 0, as it is.
                slope = np.exp(-gate)
                slope += 1.0
                np.divide(gate, slope, out=slope)
                slope *= gate_up[:, ffn:]
                x += _product(slope, layer.down)
            states: Array = self._normed(x, self._norm)[:n]
            return states

    def logits(self, states: Array) -> Array:
        """[rows, vocab] of final states [rows, dim]."""
        n = len(states)
        padded = _padded(n)
        if padded != n:
            states = np.concatenate((states, np.zeros((padded - n, states.shape[1]), np.float32)))
        with np.errstate(over="ignore", invalid="ignore"):
            return _product(states, self._head)[:n]

    def _normed(self, x: Array, weight: Array) -> Array:
        scale: Array = np.add.reduce(x * x, axis=1, keepdims=True)
        scale *= self._per_dim
        scale += self._eps
        np.sqrt(scale, out=scale)
        y: Array = x / scale
        y *= weight
        return y

    def _attend_token(
        self, number: int, piece: Piece, turned: Array, values: Array, out: Array
    ) -> None:
        """Attention of one new token: stores its key and value, writes its [q_dim] into `out`.

        Matrix times vector, head by head: with so few queries a matrix product takes twice as long.
        """
        heads, at = self.config.n_heads, piece.start
        keys = piece.slot.keys[number]
        held = piece.slot.values[number]
        keys[:, at] = turned[heads:]
        held[:, at] = values
        shape = (keys.shape[0], heads // keys.shape[0], keys.shape[2])
        queries = turned[:heads].reshape(*shape, 1)
        scores = np.matmul(keys[:, None, : at + 1], queries)[..., 0]
        scores -= np.maximum.reduce(scores, axis=2, keepdims=True)
        np.exp(scores, out=scores)
        total = np.add.reduce(scores, axis=2, keepdims=True)
        result = np.matmul(scores[:, :, None], held[:, None, : at + 1])[:, :, 0]
        np.divide(result, total, out=out.reshape(shape))

    def _attend_piece(
        self, number: int, piece: Piece, turned: Array, values: Array, mask: Array, out: Array
    ) -> None:
        """The same for several new tokens; `out` is [rows, q_dim]."""
        config = self.config
        n, width, heads = len(piece.ids), config.head_dim, config.n_heads
        groups = heads // config.n_kv_heads
        end = piece.start + n
        keys = piece.slot.keys[number]
        held = piece.slot.values[number]
        keys[:, piece.start : end] = turned[:, heads:].swapaxes(0, 1)
        held[:, piece.start : end] = values.swapaxes(0, 1)
        queries = (
            turned[:, :heads]
            .reshape(n, config.n_kv_heads, groups, width)
            .transpose(1, 2, 0, 3)
            .reshape(config.n_kv_heads, groups * n, width)
        )
        result = np.empty_like(queries)
        step = max(_SCORES_KEPT // end, _LEAST_ROWS)
        rows = np.tile(np.arange(n), groups)
        for head in range(config.n_kv_heads):
            for first in range(0, groups * n, step):
                block = slice(first, first + step)
                scores = queries[head, block] @ keys[head, :end].T
                scores[:, piece.start :] += mask[rows[block]]
                scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
                np.exp(scores, out=scores)
                total = np.add.reduce(scores, axis=1, keepdims=True)
                np.divide(scores @ held[head, :end], total, out=result[head, block])
        out[:] = (
            result.reshape(config.n_kv_heads, groups, n, width)
            .transpose(2, 0, 1, 3)
            .reshape(n, config.q_dim)
        )


def _padded(n: int) -> int:
    """Rows to compute for `n`: BLAS takes as long for 3 or 5 to 7 rows as for 4 or 8."""
    return n if n <= 2 else -(-n // 4) * 4


def _product(x: Array, weight: Array) -> Array:
    """x @ weight; two rows are faster one by one (a matrix product needs about four to pay)."""
    if len(x) == 2:
        result = np.empty((2, weight.shape[1]), np.float32)
        np.matmul(x[0], weight, out=result[0])
        np.matmul(x[1], weight, out=result[1])
        return result
    return x @ weight


def _rotated(heads: Array, cos: Array, sin: Array) -> Array:
    """Rotary positions on [rows, heads, width], pairs (i, i + width / 2)."""
    half = heads.shape[2] // 2
    first, second = heads[..., :half], heads[..., half:]
    turned = np.empty_like(heads)
    np.multiply(first, cos, out=turned[..., :half])
    turned[..., :half] -= second * sin
    np.multiply(second, cos, out=turned[..., half:])
    turned[..., half:] += first * sin
    return turned


def _causal(n: int) -> Array:
    """[n, n]: 0 where a new position may look, -inf where it lies ahead (older ones: all seen)."""
    mask = np.zeros((n, n), np.float32)
    mask[np.triu_indices(n, 1)] = -np.inf
    return mask
