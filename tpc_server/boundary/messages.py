"""Messages a frontend sends to a scheduler. Owner: any thread (tables are constants).

A message is a msgpack array: tag, rid, HTTP worker (always nil), then the type's fields in
declaration order. A tail that equals its defaults may be left out; `n_sent` fields are sent here,
which is what schedulers of this protocol have been seen to receive. Bulk integers travel beside
the message as named buffers and are nil in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from . import codec
from .schema import Field, Struct, compile_type, explain, fields_conform

__all__ = [
    "GENERATE",
    "GENERATE_FIELDS",
    "GENERATE_N_SENT",
    "SAMPLING",
    "SAMPLING_FIELDS",
    "STRUCTS",
    "TAGGED",
    "MsgpackDecodeError",
    "decode_ingress",
    "generate_template",
    "msgpack_decode_explained",
    "pack_abort",
    "pack_control",
    "sampling_template",
]

_R = ...  # a required field
_MATCHED = "{str|int|[int]|null}|null"
_SCALAR = "null|bool|int|float|str"

SAMPLING_FIELDS: tuple[Field, ...] = (
    Field("max_new_tokens", "int|null", 128),
    Field("stop", "str|[str]|null", None),
    Field("stop_token_ids", "[int]|null", None),
    Field("stop_regex", "str|[str]|null", None),
    Field("temperature", "float", 1.0),
    Field("top_p", "float", 1.0),
    Field("top_k", "int", 1 << 30),
    Field("min_p", "float", 0.0),
    Field("frequency_penalty", "float", 0.0),
    Field("presence_penalty", "float", 0.0),
    Field("repetition_penalty", "float", 1.0),
    Field("min_new_tokens", "int", 0),
    Field("n", "int", 1),
    Field("beam_width", "int|null", None),
    Field("json_schema", "str|null", None),
    Field("regex", "str|null", None),
    Field("ebnf", "str|null", None),
    Field("structural_tag", "str|null", None),
    Field("ignore_eos", "bool", False),
    Field("skip_special_tokens", "bool", True),
    Field("spaces_between_special_tokens", "bool", True),
    Field("no_stop_trim", "bool", False),
    Field("stream_interval", "int|null", None),
    Field("logit_bias", "{float}|null", None),
    Field("sampling_seed", "int|null", None),
    Field("custom_params", "{" + f"{_SCALAR}|[{_SCALAR}]|{{{_SCALAR}}}" + "}|null", None),
    Field("watermark", "any", None),
    Field("stop_strs", "str|[str]|null", None),
    Field("stop_regex_strs", "str|[str]|null", None),
    Field("stop_str_max_len", "int", 0),
    Field("stop_regex_max_len", "int", 0),
    Field("is_normalized", "bool", False),
    Field("ebnf_full_assistant", "bool", False),
)

_SESSION_FIELDS: tuple[Field, ...] = (
    Field("id", "str|null", None),
    Field("rid", "str|null", None),
    Field("offset", "int|null", None),
    Field("replace", "bool|null", None),
    Field("drop_previous_output", "bool|null", None),
)

# Types that only SGLang's own processes exchange (arrays, pickles, tensors) are `any` here: they
# are never filled from HTTP.
_BASE: tuple[Field, ...] = (
    Field("rid", "str|null", None),
    Field("http_worker_ipc", "str|null", None),
)
GENERATE_FIELDS: tuple[Field, ...] = (
    *_BASE,
    Field("input_text", "str|[str|[str]]|null", _R),
    Field("input_ids", "any", _R),
    Field("input_embeds", "[[float]]|null", _R),
    Field("mm_inputs", "any", _R),
    Field("token_type_ids", "[int]|null", _R),
    Field("sampling_params", "@SamplingParams", _R),
    Field("return_logprob", "bool", _R),
    Field("logprob_start_len", "int", _R),
    Field("top_logprobs_num", "int", _R),
    Field("token_ids_logprob", "[int]|null", _R),
    Field("stream", "bool", _R),
    Field("return_sampling_mask", "bool", False),
    Field("return_flat_raw_top_logprobs", "bool", False),
    Field("return_hidden_states", "bool|'last'", False),
    Field("return_routed_experts", "bool", False),
    Field("routed_experts_start_len", "int", 0),
    Field("return_indexer_topk", "bool", False),
    Field("session_id", "str|null", None),
    Field("session_params", "@SessionParams|null", None),
    Field("lora_id", "str|null", None),
    Field("custom_logit_processor", "str|null", None),
    Field("positional_embed_overrides", "any", None),
    Field("bootstrap_host", "str|null", None),
    Field("bootstrap_port", "int|null", None),
    Field("bootstrap_room", "int|null", None),
    Field("bootstrap_pair_key", "str|null", None),
    Field("decode_tp_size", "int|null", None),
    Field("routed_dp_rank", "int|null", None),
    Field("disagg_prefill_dp_rank", "int|null", None),
    Field("routing_key", "str|null", None),
    Field("require_reasoning", "bool", False),
    Field("priority", "int|null", None),
    Field("extra_key", "str|null", None),
    Field("no_logs", "bool", False),
    Field("return_bytes", "bool", False),
    Field("return_entropy", "bool", False),
    Field("need_wait_for_mm_inputs", "bool|null", None),
    Field("num_items_assigned", "any", None),
    Field("encoder_urls", "[str]|null", None),
    Field("multi_item_delimiter_indices", "[int]|null", None),
    Field("token_indices_to_pool", "[int]|null", None),
    Field("time_stats", "any", None),
    Field("cache_salt", "str|null", None),
    Field("kv_hints", "any", None),
    Field("pp_prefetch_ticketed", "bool", False),
    Field("sampling_logprobs_mode", "'selected'/'support'", "selected"),
    Field("lora_name", "str|null", None),
)
GENERATE_N_SENT = 46  # fields after the tag; the three newest are left at their defaults

# tag -> (fields, how many of them are sent)
_MESSAGES: dict[str, tuple[tuple[Field, ...], int]] = {
    "TokenizedGenerateReqInput": (GENERATE_FIELDS, GENERATE_N_SENT),
    "AbortReq": (
        (
            *_BASE,
            Field("abort_all", "bool", False),
            Field("finished_reason", _MATCHED, None),
            Field("abort_message", "str|null", None),
            Field("weight_versions", "any", None),
        ),
        5,
    ),
    "FlushCacheReqInput": ((*_BASE, Field("timeout_s", "float|null", None)), 3),
    "GetInternalStateReq": (_BASE, 2),
    "CheckWeightsReqInput": (
        (
            *_BASE,
            Field("action", "str", "checksum"),
            Field("allow_quant_error", "bool", False),
            Field("skip_tensor_list", "[str]|null", None),
            Field("selector", "'target'/'draft'/'all'", "all"),
        ),
        6,
    ),
    "ClearHiCacheReqInput": (_BASE, 2),
    "AttachHiCacheStorageReqInput": (
        (
            *_BASE,
            Field("hicache_storage_backend", "str", _R),
            Field("hicache_storage_backend_extra_config_json", "str|null", None),
            Field("hicache_storage_prefetch_policy", "str|null", None),
            Field("hicache_write_policy", "str|null", None),
        ),
        6,
    ),
    "DetachHiCacheStorageReqInput": (_BASE, 2),
    # Of these a scheduler answers the opening of a session only.
    "PauseGenerationReqInput": (
        (*_BASE, Field("mode", "'abort'/'retract'/'in_place'", "abort")),
        3,
    ),
    "ContinueGenerationReqInput": ((*_BASE, Field("torch_empty_cache", "bool", True)), 3),
    "OpenSessionReqInput": (
        (
            *_BASE,
            Field("capacity_of_str_len", "int", _R),
            Field("session_id", "str|null", None),
            Field("streaming", "bool|null", None),
            Field("timeout", "float|null", None),
        ),
        6,
    ),
    "CloseSessionReqInput": ((*_BASE, Field("session_id", "str", _R)), 3),
}


def _struct(name: str, tag: str | None, fields: tuple[Field, ...]) -> Struct:
    required = [k + 1 for k, field in enumerate(fields) if field.default is _R]
    nodes = tuple(compile_type(field.type) for field in fields)
    return Struct(name, tag, fields, nodes, max(required, default=0))


STRUCTS: dict[str, Struct] = {
    "SamplingParams": _struct("SamplingParams", None, SAMPLING_FIELDS),
    "SessionParams": _struct("SessionParams", None, _SESSION_FIELDS),
}
TAGGED: dict[str, Struct] = {tag: _struct(tag, tag, row[0]) for tag, row in _MESSAGES.items()}

# Position of each field in a message (the tag is position 0) and in the sampling array.
GENERATE: dict[str, int] = {field.name: k + 1 for k, field in enumerate(GENERATE_FIELDS)}
SAMPLING: dict[str, int] = {field.name: k for k, field in enumerate(SAMPLING_FIELDS)}


class MsgpackDecodeError(Exception):
    """A message that does not decode: `reason` for the client, `rid` if it could be recovered."""

    def __init__(self, rid: str | None, reason: str) -> None:
        super().__init__(reason)
        self.rid = rid
        self.reason = reason


_LEADING_INDEX = re.compile(r"\$\[(\d+)\]")


def msgpack_decode_explained(header: bytes | memoryview) -> list[Any]:
    """Decode and check one message: `[tag, fields…]`, missing tail filled with its defaults
    (the sampling array too). Raises MsgpackDecodeError."""
    data = bytes(header)
    try:
        values = codec.unpack(data)
    except Exception as error:  # each library has its own family of errors
        raise MsgpackDecodeError(None, explain(data, TAGGED, STRUCTS) or str(error)) from None
    if type(values) is list and values and type(values[0]) is str:
        struct = TAGGED.get(values[0])
        if struct is not None and fields_conform(values, struct, STRUCTS, start=1):
            return _with_defaults(values, struct)
    raise _explained(data, values)


# The short name, as schedulers here use it.
decode_ingress = msgpack_decode_explained


def _with_defaults(values: list[Any], struct: Struct) -> list[Any]:
    fields = struct.fields
    del values[len(fields) + 1 :]
    for field in fields[len(values) - 1 :]:
        values.append(field.default)
    if struct.tag == "TokenizedGenerateReqInput":
        sampling = values[GENERATE["sampling_params"]]
        del sampling[len(SAMPLING_FIELDS) :]
        for field in SAMPLING_FIELDS[len(sampling) :]:
            sampling.append(field.default)
    return values


def _explained(data: bytes, values: Any) -> MsgpackDecodeError:
    reason = explain(data, TAGGED, STRUCTS) or "message does not match its type"
    if type(values) is not list or not values:
        return MsgpackDecodeError(None, reason)
    rid = str(values[1]) if len(values) > 1 and values[1] is not None else None
    struct = TAGGED.get(values[0]) if type(values[0]) is str else None
    if struct is not None:
        # Only the leading index is a field of the message; what follows stays numbered.
        found = _LEADING_INDEX.search(reason)
        if found is not None and 1 <= int(found[1]) <= len(struct.fields):
            name = struct.fields[int(found[1]) - 1].name
            reason = f"{reason[: found.start()]}$.{name}{reason[found.end() :]}"
    return MsgpackDecodeError(rid, reason)


def sampling_template() -> list[Any]:
    """A fresh sampling array, normalized, all defaults: the caller's own to fill."""
    values = [field.default for field in SAMPLING_FIELDS]
    values[SAMPLING["stop_strs"]] = []
    values[SAMPLING["stop_regex_strs"]] = []
    values[SAMPLING["is_normalized"]] = True
    return values


def generate_template() -> list[Any]:
    """A fresh generate message as it is sent (tag included): the caller's own to fill."""
    values: list[Any] = ["TokenizedGenerateReqInput"]
    for field in GENERATE_FIELDS[:GENERATE_N_SENT]:
        values.append(None if field.default is _R else field.default)
    values[GENERATE["sampling_params"]] = sampling_template()
    values[GENERATE["return_logprob"]] = False
    values[GENERATE["logprob_start_len"]] = -1
    values[GENERATE["top_logprobs_num"]] = 0
    values[GENERATE["stream"]] = False
    return values


def pack_abort(pack: Callable[[Any], bytes], rid: str, abort_all: bool = False) -> bytes:
    """An abort of every request whose wire rid starts with `rid` (all, with `abort_all`)."""
    return pack(["AbortReq", rid, None, abort_all, None, None])


def pack_control(pack: Callable[[Any], bytes], tag: str, rid: str, **fields: Any) -> bytes:
    """Any other message by its tag. Raises KeyError on an unknown tag, TypeError on a field that
    the type does not have, that is missing, or whose value is not of its type."""
    struct = TAGGED[tag]
    values: list[Any] = [tag, rid, None]
    for field in struct.fields[2 : _MESSAGES[tag][1]]:
        value = fields.pop(field.name, field.default)
        if value is _R:
            raise TypeError(f"{tag} needs {field.name}")
        values.append(value)
    if fields:
        raise TypeError(f"{tag} has no field {sorted(fields)[0]}")
    if not fields_conform(values, struct, STRUCTS, start=1):
        raise TypeError(f"a field of {tag} is not of its type")
    return pack(values)
