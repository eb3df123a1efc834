"""Dealing a request's fields out to its items. Owner: the ingress core (per request)."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, Final

from ..boundary.messages import GENERATE, SAMPLING
from .errors import BadRequest, invalid_type
from .limits import Limits, check_ids
from .options import Options

if TYPE_CHECKING:
    from .generate import Item

__all__ = ["Columns", "check_copies", "expand", "to_ids"]

_CUSTOM: Final = SAMPLING["custom_params"]
_I64_MAX: Final = (1 << 63) - 1
_I64_MIN: Final = -(1 << 63)

_MARSHALLED: Final = 2  # times as much takes a value that is decoded, packed and waits for room

# Fields that go to the scheduler as they are, and their places.
_FORWARDED: Final = {
    name: GENERATE[name]
    for name in (
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "return_hidden_states",
        "session_id",
        "session_params",
        "custom_logit_processor",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "decode_tp_size",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        "routing_key",
        "require_reasoning",
        "priority",
        "extra_key",
        "cache_salt",
        "kv_hints",
        "routed_experts_start_len",
        "no_logs",
    )
}
# Lists of these cannot be dealt out to the samples of `n`.
_NOT_WITH_N: Final = (
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "custom_logit_processor",
)
_LISTS: Final = frozenset(
    (*_FORWARDED, "token_ids_logprob", "lora_path"),
) - {"session_id", "session_params", "routed_dp_rank", "disagg_prefill_dp_rank", "routing_key",
     "require_reasoning", "priority", "routed_experts_start_len", "no_logs"}  # fmt: skip

_LOGPROB: Final = GENERATE["return_logprob"]
_START: Final = GENERATE["logprob_start_len"]
_TOP: Final = GENERATE["top_logprobs_num"]
_HIDDEN: Final = GENERATE["return_hidden_states"]
_LORA: Final = GENERATE["lora_id"]
_PROCESSOR: Final = GENERATE["custom_logit_processor"]
_SKIP_SPECIAL: Final = SAMPLING["skip_special_tokens"]
_SPACES: Final = SAMPLING["spaces_between_special_tokens"]
_NO_TRIM: Final = SAMPLING["no_stop_trim"]
_STOPS: Final = SAMPLING["stop_strs"]
_REGEXES: Final = SAMPLING["stop_regex_strs"]


def to_ids(value: Any, path: str) -> list[list[int]]:
    """One or several lists of token ids as a list of lists. Raises BadRequest."""
    if type(value) is not list:
        raise invalid_type(value, "an array of token ids or of arrays of them", path)
    # The first entry decides which of the two it is.
    if type(value[0]) in (int, float):
        _ints(value, path)
        return [value]
    for k, entry in enumerate(value):
        if type(entry) is not list:
            raise invalid_type(entry, "an array of token ids", f"{path}[{k}]")
        _ints(entry, f"{path}[{k}]")
    return value


def _ints(value: list[Any], path: str) -> None:
    if value and set(map(type, value)) != {int}:
        for k, entry in enumerate(value):
            if type(entry) is not int:
                raise invalid_type(entry, "an integer", f"{path}[{k}]")


class Columns:
    """A request's options, ready to be applied to item after item."""

    __slots__ = ("_given", "_n", "_room")

    def __init__(self, given: dict[str, Any], n: int) -> None:
        self._given = given
        self._n = n

    def apply(self, item: Item, k: int, sampling: list[Any], limits: Limits) -> None:
        """Fill item `k`'s message, buffers and rendering plan."""
        given, wire = self._given, item.wire
        prompt = k // self._n
        for name, value in given.items():
            at = _FORWARDED.get(name)
            if at is None:
                continue
            if type(value) is list and name in _LISTS:
                value = value[prompt]
            elif name == "bootstrap_room":
                value += k  # each request needs a room of its own
            if name == "extra_key" or name == "cache_salt":
                value = value or None
            elif name == "priority" and value is None:
                value = limits.default_priority
            wire[at] = value
        tokens = given.get("token_ids_logprob")
        if tokens and (type(tokens[0]) is list or tokens[0] is None):
            tokens = tokens[prompt]
        if tokens:
            if len(tokens) > limits.max_alternatives:
                raise BadRequest(
                    f"token_ids_logprob has {len(tokens)} ids, over the limit of"
                    f" {limits.max_alternatives}"
                )
            check_ids(tokens, limits, "token_ids_logprob")
            item.token_ids_logprob = tokens
        if "lora_path" in given:
            self._lora(item, prompt, limits)
        if "max_thinking_tokens" in given:
            if not limits.enable_strict_thinking:
                raise BadRequest(
                    "max_thinking_tokens requires the server to be launched with"
                    " --enable-strict-thinking"
                )
            params = dict(sampling[_CUSTOM] or {})
            params["thinking_budget"] = given["max_thinking_tokens"]
            sampling[_CUSTOM] = params
        _check_outputs(wire, limits)
        item.plan = (
            sampling[_SKIP_SPECIAL],
            sampling[_SPACES],
            sampling[_NO_TRIM],
            wire[_LOGPROB],
            given.get("return_text_in_logprobs", False),
            wire[_HIDDEN],
            given.get("return_prompt_token_ids", False),
            wire[_TOP],
            item.token_ids_logprob is not None,
            bool(sampling[_STOPS] or sampling[_REGEXES]),
        )

    def _lora(self, item: Item, prompt: int, limits: Limits) -> None:
        path = self._given["lora_path"]
        name = path[prompt] if type(path) is list else path
        if not name:
            return
        if name not in limits.lora_ids:
            loaded = ", ".join(sorted(limits.lora_ids)) or "none"
            raise BadRequest(f"lora_path {name!r} names no loaded adapter (loaded: {loaded})")
        item.wire[_LORA] = limits.lora_ids[name]


def _check_outputs(wire: list[Any], limits: Limits) -> None:
    if wire[_START] < -1:
        raise BadRequest(f"logprob_start_len must be at least -1, got {wire[_START]}.")
    if not 0 <= wire[_TOP] <= limits.max_alternatives:
        raise BadRequest(
            f"top_logprobs_num must be in [0, {limits.max_alternatives}], got {wire[_TOP]}."
        )
    if wire[_PROCESSOR] and not limits.enable_custom_logit_processor:
        raise BadRequest(
            "custom_logit_processor needs a server that was started with"
            " --enable-custom-logit-processor"
        )
    if wire[_HIDDEN] and not limits.enable_return_hidden_states:
        raise BadRequest(
            "return_hidden_states needs a server that was started with"
            " --enable-return-hidden-states"
        )


def check_copies(
    prompt_bytes: int, shared: tuple[Any, dict[str, Any]], prompts: int, n: int, limits: Limits
) -> None:
    """Refuse what would be copied too often: prompts for `n`, what is one for all for every item.

    `shared` are the sampling parameters as given and the options. Raises BadRequest.
    """
    params, given = shared
    once: list[Any] = [params]  # what all items have
    dealt: list[Any] = []  # what the samples of one prompt have
    for value in given.values():
        (dealt if type(value) is list and len(value) == prompts else once).append(value)
    if type(params) is list:
        once, dealt = once[1:], [params, *dealt]
    size = _MARSHALLED * len(marshal.dumps(once)) * (prompts * n - 1)
    if n > 1:
        size += (prompt_bytes + _MARSHALLED * len(marshal.dumps(dealt))) * (n - 1)
    if size > limits.max_clone_bytes:
        what = (
            f"n is too large: {n} copies of this request"
            if n > 1
            else f"parameters for {prompts} prompts"
        )
        raise BadRequest(f"{what} exceed {limits.max_clone_bytes} bytes")


def expand(
    options: Options, is_batch: bool, single: bool, count: int, n: int, limits: Limits
) -> Columns:
    """Check that lists fit the batch of `count` prompts with `n` samples each."""
    given = options.given
    for name, value in given.items():
        if type(value) is not list or name not in _LISTS:
            continue
        if name == "token_ids_logprob" and not (
            value and (type(value[0]) is list or value[0] is None)
        ):
            continue  # one flat list, for every item
        if not is_batch:
            raise BadRequest(f"{name} should be a single value for a single request.")
        if n > 1 and name in _NOT_WITH_N:
            raise BadRequest(f"Cannot use list {name} with parallel_sample_num > 1")
        if len(value) != count:
            raise BadRequest(f"The length of {name} should be equal to the batch size.")
    if "session_id" in given and "session_params" in given:
        raise BadRequest("session_id and session_params cannot both be set.")
    room = given.get("bootstrap_room")
    if type(room) is int and not _I64_MIN <= room + count * n <= _I64_MAX:
        raise BadRequest(f"bootstrap_room {room} leaves no room for {count * n} requests")
    return Columns(given, n)
