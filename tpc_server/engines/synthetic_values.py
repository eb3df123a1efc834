"""Made-up logprobs and hidden states of the synthetic engine. Owner: engine (stateless).

Every value is a function of the token id alone, so that a test can say what it expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .synthetic_request import SyntheticRequest

__all__ = ["HIDDEN_SIZE", "families_of", "logprob_of"]

HIDDEN_SIZE: Final = 4


def logprob_of(token: int, rank: int = 0) -> float:
    """The logprob of a token: an exact f32, between -16 and 0; `rank` places lower for others."""
    return -((token % 64) + 1) / 8 - rank


def families_of(
    rows: Sequence[tuple[SyntheticRequest, list[int]]], vocab_size: int
) -> dict[str, list[Any]]:
    """The extras columns of one frame; `rows` are requests with the ids they emit in it.

    A family that no row asked for is left out.
    """
    out: dict[str, list[Any]] = {}
    n = len(rows)
    for i, (request, ids) in enumerate(rows):
        if request.want_logprob:
            _put(out, "output_token_logprobs", n, i, [logprob_of(t) for t in ids], list(ids))
            _positions(out, "output", n, i, request, ids, vocab_size, False)
            if not request.first_row_sent:
                start = request.logprob_start
                prompt = list(request.prompt[start:]) if start >= 0 else []
                values: list[float | None] = [logprob_of(t) for t in prompt]
                if values:
                    values[0] = None  # nothing comes before it
                _put(out, "input_token_logprobs", n, i, values, prompt)
                _positions(out, "input", n, i, request, prompt, vocab_size, True)
        if request.want_hidden:
            column = out.setdefault("output_hidden_states", [None] * n)
            column[i] = [[float(t % 16)] * HIDDEN_SIZE for t in ids]
    return out


def _positions(
    out: dict[str, list[Any]],
    side: str,
    n: int,
    i: int,
    request: SyntheticRequest,
    ids: list[int],
    vocab_size: int,
    first_is_null: bool,
) -> None:
    """The top and the asked-for alternatives at each position."""
    if request.top:
        picks = [[(t + r) % vocab_size for r in range(request.top)] for t in ids]
        _pairs(out, f"{side}_top_logprobs", n, i, ids, picks, first_is_null)
    if request.token_ids:
        picks = [list(request.token_ids) for _ in ids]
        _pairs(out, f"{side}_token_ids_logprobs", n, i, ids, picks, first_is_null)


def _pairs(
    out: dict[str, list[Any]],
    name: str,
    n: int,
    i: int,
    ids: list[int],
    picks: list[list[int]],
    first_is_null: bool,
) -> None:
    values: list[Any] = [
        [logprob_of(token, rank) for rank in range(len(pick))]
        for token, pick in zip(ids, picks, strict=True)
    ]
    indices: list[Any] = list(picks)
    if first_is_null and values:
        values[0] = indices[0] = None
    _put(out, name, n, i, values, indices)


def _put(
    out: dict[str, list[Any]], name: str, n: int, i: int, values: list[Any], indices: list[Any]
) -> None:
    for suffix, cell in (("val", values), ("idx", indices)):
        out.setdefault(f"{name}_{suffix}", [None] * n)[i] = cell
