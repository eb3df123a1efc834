"""One request's whole state in the engine. Owner: the engine thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .gguf_tensors import Array
from .kv_cache import Slot

HEALTH_PREFIX: Final = "HEALTH_CHECK_"
TOP_K_ALL: Final = 1 << 30


class Sampling:
    """Sampling parameters of one request, checked. Greedy is `top_k` 1; no limit is TOP_K_ALL.

    biases   (token id, value) pairs added to the logits
    barred   ids that may not come before `min_new_tokens`
    """

    __slots__ = (
        "barred", "biases", "frequency_penalty", "min_new_tokens", "min_p", "presence_penalty",
        "repetition_penalty", "seed", "temperature", "top_k", "top_p",
    )  # fmt: skip

    def __init__(
        self, temperature: float = 1.0, top_p: float = 1.0, top_k: int = TOP_K_ALL,
        min_p: float = 0.0, frequency_penalty: float = 0.0, presence_penalty: float = 0.0,
        repetition_penalty: float = 1.0, min_new_tokens: int = 0, seed: int = 0,
        biases: Sequence[tuple[int, float]] = (), barred: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.temperature = temperature
        self.top_p = top_p
        self.top_k = top_k
        self.min_p = min_p
        self.frequency_penalty = frequency_penalty
        self.presence_penalty = presence_penalty
        self.repetition_penalty = repetition_penalty
        self.min_new_tokens = min_new_tokens
        self.seed = seed
        self.biases = list(biases)
        self.barred = list(barred)


class StopRules:
    """When an answer ends. `window` is how many last ids are decoded to look for strings."""

    __slots__ = ("ids", "max_new_tokens", "patterns", "strings", "window")

    def __init__(
        self, max_new_tokens: int, ids: frozenset[int] = frozenset(), strings: Sequence[str] = (),
        patterns: Sequence[tuple[str, Any]] = (), window: int = 1,
    ) -> None:  # fmt: skip
        self.max_new_tokens = max_new_tokens
        self.ids = ids
        self.strings = list(strings)
        self.patterns = list(patterns)
        self.window = window


class LogprobWish:
    """Which log-probabilities are wanted; `start` is the first prompt position reported."""

    __slots__ = ("start", "token_ids", "top_n")

    def __init__(self, start: int, top_n: int, token_ids: list[int] | None) -> None:
        self.start = start
        self.top_n = top_n
        self.token_ids = token_ids


class LogprobFamily:
    """Entries of prompt or output positions: chosen, top and asked-for ids, values beside ids."""

    __slots__ = ("ids_idx", "ids_val", "idx", "top_idx", "top_val", "val")

    def __init__(self) -> None:
        self.val: list[float | None] = []
        self.idx: list[int] = []
        self.top_val: list[list[float] | None] = []
        self.top_idx: list[list[int] | None] = []
        self.ids_val: list[list[float] | None] = []
        self.ids_idx: list[list[int] | None] = []


class Request:
    """A request from its arrival to its last frame.

    prompt, output     ids; `computed` counts those of both whose keys and values are in `slot`
    need               positions the request may come to (its part of the cache's budget)
    finish             finish_reason of the last frame, None while running
    sent               output ids that went out; logprobs likewise in `lp_sent`
    counts             how often each id was generated (kept only where a penalty needs it)
    tail               text of the last `stops.window` output ids (kept only with stop strings)
    """

    __slots__ = (
        "cached", "computed", "counts", "finish", "hidden", "hidden_mode", "input_lp",
        "input_lp_sent", "lp_sent", "lp_wish", "need", "output", "output_lp", "prefilled_at",
        "prompt", "prompt_hidden", "rid", "sampling", "sent", "slot", "stops", "stream",
        "stream_interval", "tail",
    )  # fmt: skip

    def __init__(
        self, rid: str, prompt: list[int], sampling: Sampling, stops: StopRules, stream: bool,
        stream_interval: int | None = None, lp_wish: LogprobWish | None = None,
        hidden_mode: bool | str = False,
    ) -> None:  # fmt: skip
        self.rid = rid
        self.prompt = prompt
        self.sampling = sampling
        self.stops = stops
        self.stream = stream
        self.stream_interval = stream_interval
        self.lp_wish = lp_wish
        self.hidden_mode = hidden_mode
        self.output: list[int] = []
        self.slot: Slot | None = None
        self.computed = 0
        self.cached = 0
        self.need = len(prompt) + stops.max_new_tokens
        self.finish: dict[str, Any] | None = None
        self.sent = 0
        self.lp_sent = 0
        self.input_lp = LogprobFamily() if lp_wish else None
        self.output_lp = LogprobFamily() if lp_wish else None
        self.input_lp_sent = False
        self.hidden: list[Any] = []
        self.prompt_hidden: list[Array] = []
        self.counts: dict[int, int] | None = {} if _penalized(sampling) else None
        self.tail = ""
        self.prefilled_at: float | None = None

    @property
    def is_health_check(self) -> bool:
        return self.rid.startswith(HEALTH_PREFIX)

    def missing(self) -> list[int]:
        """Ids whose keys and values still have to be computed before the next token can come."""
        if self.computed < len(self.prompt):
            return self.prompt[self.computed :] + self.output
        return self.output[self.computed - len(self.prompt) :]


def _penalized(sampling: Sampling) -> bool:
    return (
        sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
        or sampling.repetition_penalty != 1.0
    )


def abort_reason(
    message: str, status: int | None = None, kind: str | None = None
) -> dict[str, Any]:
    """finish_reason of a request that is ended rather than finished."""
    return {"type": "abort", "message": message, "status_code": status, "err_type": kind}


def bad_request(message: str) -> dict[str, Any]:
    return abort_reason(message, 400, "BadRequestError")


def internal_error(message: str) -> dict[str, Any]:
    return abort_reason(message, 500, "InternalServerError")
