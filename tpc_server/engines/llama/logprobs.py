"""Log-probabilities of prompt and output positions. Owner: the engine thread (stateless).

Output positions are reported as the token was drawn: penalties and biases in, temperature in,
before top_k, top_p and min_p. Prompt positions are reported of the plain logits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .gguf_tensors import Array
from .request import LogprobFamily, LogprobWish, Request
from .sampler import top_ids

#: Values that JSON and a 32-bit float can carry for a probability of zero.
_LEAST: Final = float(np.finfo(np.float32).min)


def add_output(row: Array, request: Request, token: int) -> None:
    """Entries of one output position, from the adjusted logits."""
    wish, family = request.lp_wish, request.output_lp
    if wish is None or family is None:
        return
    _add(_normalized(row / np.float32(request.sampling.temperature)), wish, family, token)


def open_input(request: Request) -> None:
    """The first prompt position reported: nothing precedes it here, so it has no value."""
    wish, family = request.lp_wish, request.input_lp
    if wish is None or family is None or wish.start >= len(request.prompt):
        return
    family.val.append(None)
    family.idx.append(request.prompt[wish.start])
    if wish.top_n:
        family.top_val.append(None)
        family.top_idx.append(None)
    if wish.token_ids is not None:
        family.ids_val.append(None)
        family.ids_idx.append(None)


def add_input(row: Array, request: Request, position: int) -> None:
    """Entries of prompt position `position`, from the logits of the one before it."""
    wish, family = request.lp_wish, request.input_lp
    if wish is not None and family is not None:
        _add(_normalized(row), wish, family, request.prompt[position])


def _normalized(row: Array) -> Array:
    """log softmax."""
    shifted: Array = row - row.max()
    shifted -= np.log(np.exp(shifted).sum(dtype=np.float64)).astype(np.float32)
    np.maximum(shifted, np.float32(_LEAST), out=shifted)
    return shifted


def _add(values: Array, wish: LogprobWish, family: LogprobFamily, token: int) -> None:
    family.val.append(float(values[token]))
    family.idx.append(token)
    if wish.top_n:
        ids = top_ids(values, wish.top_n)
        family.top_val.append(values[ids].tolist())
        family.top_idx.append(ids.tolist())
    if wish.token_ids is not None:
        family.ids_val.append(values[wish.token_ids].tolist())
        family.ids_idx.append(wish.token_ids)
