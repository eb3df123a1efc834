"""A frontend's generate message into a `Request`. Owner: the engine thread.

What the engine cannot do is refused here with a text for the client, never ignored.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from tpc_server.boundary.messages import GENERATE, SAMPLING
from tpc_server.text.stops import stop_regex_max_len

from .request import TOP_K_ALL, LogprobWish, Request, Sampling, StopRules

_GREEDY_BELOW: Final = 1e-6
#: Logits are 32-bit floats. What is added to them, and what divides them, is kept so far inside
#: that any difference of two logits over the least temperature is still finite.
_HUGE: Final = 1e30
#: Of an answer's end, searched for stop patterns; a longer match is found from here on only.
MAX_PATTERN_TOKENS: Final = 1024

#: Sampling fields that would constrain the output by a grammar.
_GRAMMARS: Final = ("json_schema", "regex", "ebnf", "structural_tag")
#: Generate fields that must be unset, and what to call them.
_UNSUPPORTED: Final = (
    ("input_embeds", "input_embeds"),
    ("mm_inputs", "image, video and audio input"),
    ("session_params", "session_params"),
    ("lora_id", "LoRA adapters"),
    ("lora_name", "LoRA adapters"),
    ("custom_logit_processor", "custom_logit_processor"),
    ("positional_embed_overrides", "positional_embed_overrides"),
    ("return_sampling_mask", "return_sampling_mask"),
    ("return_routed_experts", "return_routed_experts"),
    ("return_indexer_topk", "return_indexer_topk"),
    ("return_entropy", "return_entropy"),
    ("multi_item_delimiter_indices", "multi-item scoring"),
    ("token_indices_to_pool", "token_indices_to_pool"),
)


class BadRequest(Exception):
    """The request cannot be done; the text is for its client."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Limits:
    """What a request is checked against: vocabulary, longest sequence, ids that end an answer."""

    __slots__ = ("can_decode", "eos_ids", "max_len", "vocab_size")

    def __init__(
        self, vocab_size: int, max_len: int, eos_ids: tuple[int, ...], can_decode: bool
    ) -> None:
        self.vocab_size = vocab_size
        self.max_len = max_len
        self.eos_ids = eos_ids
        self.can_decode = can_decode


def build_request(values: list[Any], buffers: Mapping[str, Any], limits: Limits) -> Request:
    """`values` is a decoded message, tails filled; `buffers` its named arrays.

    Raises BadRequest with the text for the client.
    """
    for name, label in _UNSUPPORTED:
        if values[GENERATE[name]]:
            raise BadRequest(f"{label} is not supported by the embedded engine")
    if values[GENERATE["sampling_logprobs_mode"]] == "support":
        raise BadRequest("sampling_logprobs_mode 'support' is not supported by the embedded engine")
    prompt = _prompt(values, buffers, limits)
    params = values[GENERATE["sampling_params"]]
    stops = _stop_rules(params, len(prompt), limits)
    return Request(
        str(values[GENERATE["rid"]]),
        prompt,
        _sampling(params, stops, limits),
        stops,
        values[GENERATE["stream"]],
        _stream_interval(params),
        _logprob_wish(values, buffers, len(prompt), limits),
        values[GENERATE["return_hidden_states"]],
    )


def _prompt(values: list[Any], buffers: Mapping[str, Any], limits: Limits) -> list[int]:
    ids = buffers.get("input_ids")
    if ids is None:
        ids = values[GENERATE["input_ids"]]
    prompt = [] if ids is None else [int(i) for i in ids]
    if not prompt:
        raise BadRequest("the prompt is empty")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= limits.vocab_size:
        wrong = low if low < 0 else high
        raise BadRequest(
            f"input_ids contains {wrong}, which is outside the vocabulary "
            f"(0 to {limits.vocab_size - 1})"
        )
    if len(prompt) >= limits.max_len:
        raise BadRequest(
            f"The input ({len(prompt)} tokens) is longer than the model's context length "
            f"({limits.max_len} tokens)."
        )
    return prompt


def _stop_rules(params: list[Any], n_prompt: int, limits: Limits) -> StopRules:
    room = limits.max_len - n_prompt
    wanted = params[SAMPLING["max_new_tokens"]]
    if wanted is not None and wanted < 0:
        raise BadRequest(f"max_new_tokens must be at least 0, got {wanted}")
    max_new = room if wanted is None else min(wanted, room)
    ids: set[int] = set()
    if not params[SAMPLING["ignore_eos"]]:
        ids.update(limits.eos_ids)
        ids.update(params[SAMPLING["stop_token_ids"]] or ())
    strings = _strings(params, "stop_strs", "stop")
    sources = _strings(params, "stop_regex_strs", "stop_regex")
    if "" in strings:
        raise BadRequest("stop cannot contain an empty string")
    if (strings or sources) and not limits.can_decode:
        raise BadRequest("stop and stop_regex are unavailable when skip_tokenizer_init=True")
    patterns = []
    for source in sources:
        try:
            patterns.append((source, re.compile(source)))
        except (re.error, RecursionError, OverflowError) as error:
            raise BadRequest(f"invalid stop_regex {source!r}: {error}") from None
    window = 1 + max(_strings_window(params, strings), _patterns_window(params, sources))
    return StopRules(max_new, frozenset(ids), strings, patterns, window)


def _strings(params: list[Any], name: str, raw_name: str) -> list[str]:
    """A list field that may also have come as one string, or not yet moved from its API name."""
    value = params[SAMPLING[name]]
    if not value and not params[SAMPLING["is_normalized"]]:
        value = params[SAMPLING[raw_name]]
    return [value] if isinstance(value, str) else list(value or ())


def _strings_window(params: list[Any], strings: list[str]) -> int:
    """Tokens of the longest stop string; its bytes where the frontend did not count."""
    if not strings:
        return 0
    given = int(params[SAMPLING["stop_str_max_len"]])
    return given if given > 0 else max(len(s.encode("utf-8", "surrogatepass")) for s in strings)


def _patterns_window(params: list[Any], sources: list[str]) -> int:
    """Tokens of the longest match, up to a bound: all of them are decoded at every step."""
    if not sources:
        return 0
    given = int(params[SAMPLING["stop_regex_max_len"]])
    if given <= 0:
        try:
            given = max(stop_regex_max_len(sources), 1)
        except ValueError:
            given = MAX_PATTERN_TOKENS
    return min(given, MAX_PATTERN_TOKENS)


def _sampling(params: list[Any], stops: StopRules, limits: Limits) -> Sampling:
    for name in _GRAMMARS:
        if params[SAMPLING[name]]:
            raise BadRequest(
                f"{name} is not supported by the embedded engine: it has no grammar decoding"
            )
    if (params[SAMPLING["beam_width"]] or 1) > 1:
        raise BadRequest("beam search is not supported by the embedded engine")
    if params[SAMPLING["watermark"]]:
        raise BadRequest("watermark is not supported by the embedded engine")
    temperature = _bounded(params, "temperature", 0.0, math.inf)
    top_k = params[SAMPLING["top_k"]]
    if top_k == -1:
        top_k = TOP_K_ALL
    if top_k < 1:
        raise BadRequest(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    if temperature < _GREEDY_BELOW:
        temperature, top_k = 1.0, 1
    top_p = _bounded(params, "top_p", 0.0, 1.0)
    repetition = _bounded(params, "repetition_penalty", 0.0, 2.0)
    if top_p == 0.0 or repetition == 0.0:
        raise BadRequest("top_p and repetition_penalty must be greater than 0")
    min_new = params[SAMPLING["min_new_tokens"]]
    wanted = params[SAMPLING["max_new_tokens"]]
    if min_new < 0 or (wanted is not None and min_new > wanted):
        raise BadRequest(f"min_new_tokens must be in [0, max_new_tokens], got {min_new}.")
    seed = params[SAMPLING["sampling_seed"]]
    return Sampling(
        min(temperature, _HUGE),
        top_p,
        top_k,
        _bounded(params, "min_p", 0.0, 1.0),
        _bounded(params, "frequency_penalty", -2.0, 2.0),
        _bounded(params, "presence_penalty", -2.0, 2.0),
        max(repetition, 1 / _HUGE),
        min_new,
        secrets.randbits(63) if seed is None else int(seed),
        _biases(params, limits),
        _barred(params, limits) if min_new else (),
    )


def _barred(params: list[Any], limits: Limits) -> list[int]:
    """Ids that may not come before `min_new_tokens`: those that would end the answer.

    Where they are all there are, none is: some id has to come, so the likeliest does, and ends it.
    """
    ids = set(limits.eos_ids) | set(params[SAMPLING["stop_token_ids"]] or ())
    inside = sorted(i for i in ids if 0 <= i < limits.vocab_size)
    return inside if len(inside) < limits.vocab_size else []


def _bounded(params: list[Any], name: str, low: float, high: float) -> float:
    value = float(params[SAMPLING[name]])
    if not low <= value <= high or not math.isfinite(value):
        raise BadRequest(f"{name} must be in [{low:g}, {high:g}], got {value}.")
    return value


def _biases(params: list[Any], limits: Limits) -> list[tuple[int, float]]:
    pairs = []
    for key, value in (params[SAMPLING["logit_bias"]] or {}).items():
        try:
            token = int(key)
        except ValueError:
            token = -1
        if not 0 <= token < limits.vocab_size:
            raise BadRequest(
                f"logit_bias must have keys in [0, {limits.vocab_size - 1}], got {key}."
            )
        if math.isnan(value):
            raise BadRequest(f"logit_bias of token {key} is not a number")
        pairs.append((token, min(max(float(value), -_HUGE), _HUGE)))
    return pairs


def _stream_interval(params: list[Any]) -> int | None:
    interval = params[SAMPLING["stream_interval"]]
    if interval is not None and interval < 1:
        raise BadRequest(f"stream_interval must be at least 1, got {interval}")
    return interval  # type: ignore[no-any-return]


def _logprob_wish(
    values: list[Any], buffers: Mapping[str, Any], n_prompt: int, limits: Limits
) -> LogprobWish | None:
    if not values[GENERATE["return_logprob"]]:
        return None
    start = values[GENERATE["logprob_start_len"]]
    if start > n_prompt:
        raise BadRequest(
            f"logprob_start_len={start} is higher than the number of input tokens {n_prompt}. "
            "Please use a smaller logprob_start_len."
        )
    top_n = values[GENERATE["top_logprobs_num"]]
    if not 0 <= top_n <= limits.vocab_size:
        raise BadRequest(f"top_logprobs_num must be in [0, {limits.vocab_size}], got {top_n}")
    wanted = buffers.get("token_ids_logprob")
    if wanted is None:
        wanted = values[GENERATE["token_ids_logprob"]]
    ids = None if wanted is None else [int(i) for i in wanted]
    if ids and not (min(ids) >= 0 and max(ids) < limits.vocab_size):
        raise BadRequest(f"token_ids_logprob must be in [0, {limits.vocab_size - 1}]")
    return LogprobWish(n_prompt if start < 0 else start, top_n, ids)
