"""Arguments a scheduler hands to `Server`. Owner: any thread (plain data).

Names, order and meaning are those of SGLang 0.5.23's Rust extension, so that its own
wrapper can build them. Every field has a default; an unknown or mistyped field raises
TypeError with the field's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BOOL: Final = "bool"
_INT: Final = "int"
_OPT_INT: Final = "int or None"
_STR: Final = "str"
_OPT_STR: Final = "str or None"
_OPT_JSON: Final = "JSON object as text, or None"
_JSON: Final = "JSON object as text"
_DICT: Final = "dict"
_PAIRS: Final = "list of (str, int) pairs, or dict"
_FLOAT: Final = "float or None"
_FLOATS: Final = "list of floats or None"
_OPT_BOOL: Final = "bool or None"
_MODE: Final = "a DisaggregationMode"
_DEFAULTS: Final = "DefaultSamplingParams or None"
_MODEL: Final = "ModelConfig"
_METRICS: Final = "MetricsConfig or None"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _json_object(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return isinstance(json.loads(value or "{}"), dict)
    except ValueError:
        return False


def _matches(kind: str, value: object) -> bool:
    """Whether `value` is acceptable for a field of the named kind."""
    if kind == _BOOL:
        return isinstance(value, bool)
    if kind == _OPT_BOOL:
        return value is None or isinstance(value, bool)
    if kind == _MODE:
        return isinstance(value, _Mode)
    if kind == _DEFAULTS:
        return value is None or isinstance(value, DefaultSamplingParams)
    if kind == _MODEL:
        return value is None or isinstance(value, ModelConfig)
    if kind == _METRICS:
        return value is None or isinstance(value, MetricsConfig)
    if kind == _INT:
        return _is_int(value)
    if kind == _OPT_INT:
        return value is None or _is_int(value)
    if kind == _STR:
        return isinstance(value, str)
    if kind == _OPT_STR:
        return value is None or isinstance(value, str)
    if kind == _JSON:
        return _json_object(value)
    if kind == _OPT_JSON:
        return value is None or _json_object(value)
    if kind == _DICT:
        return isinstance(value, Mapping)
    if kind == _FLOAT:
        return value is None or isinstance(value, float) or _is_int(value)
    if kind == _FLOATS:
        return value is None or (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(isinstance(v, float) or _is_int(v) for v in value)
        )
    if kind == _PAIRS:
        if isinstance(value, Mapping):
            return True
        return isinstance(value, Sequence) and all(
            isinstance(p, Sequence) and not isinstance(p, str) and len(p) == 2 for p in value
        )
    raise AssertionError(kind)


class _Mode(str):
    """A role: compares and prints as its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"DisaggregationMode.{self.title()}"


class DisaggregationMode:
    """Role in prefill/decode disaggregation."""

    Null: Final = _Mode("null")
    Prefill: Final = _Mode("prefill")
    Decode: Final = _Mode("decode")


class _Args:
    """Keyword record checked against a class-level table of (name, kind, default)."""

    FIELDS: tuple[tuple[str, str, Any], ...] = ()

    def __init__(self, **given: Any) -> None:
        name = type(self).__name__
        for field, kind, default in self.FIELDS:
            value = given.pop(field, default)
            if not _matches(kind, value):
                raise TypeError(
                    f"{name}: field `{field}` must be {kind}, got {type(value).__name__}"
                    + (f" {value!r}" if kind in (_JSON, _OPT_JSON) else "")
                )
            setattr(self, field, value)
        if given:
            unknown = sorted(given)[0]
            raise TypeError(f"{name}: unknown field `{unknown}`")

    def __repr__(self) -> str:
        shown = ", ".join(f"{f}={getattr(self, f)!r}" for f, _, _ in self.FIELDS)
        return f"{type(self).__name__}({shown})"

    def __getattr__(self, field: str) -> Any:
        # Only reached for names outside the table; typed access goes through Any.
        raise AttributeError(f"{type(self).__name__} has no field `{field}`")


class DefaultSamplingParams(_Args):
    """Sampling defaults that come with the model; None means the engine's own default."""

    FIELDS = (
        ("temperature", _FLOAT, None),
        ("top_p", _FLOAT, None),
        ("top_k", _OPT_INT, None),
        ("min_p", _FLOAT, None),
        ("repetition_penalty", _FLOAT, None),
    )


class ModelConfig(_Args):
    """What the frontend must know of the model: lengths in tokens, vocabulary size."""

    FIELDS = (
        ("context_len", _INT, 4096),
        ("vocab_size", _INT, 0),
        ("is_multimodal", _BOOL, False),
        ("default_sampling_params", _DEFAULTS, None),
        ("model_type", _OPT_STR, None),
    )

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.context_len: int
        if self.context_len < 1:
            raise TypeError(
                f"ModelConfig: field `context_len` must be positive: {self.context_len}"
            )


class MetricsConfig(_Args):
    """Where and how the frontend's metrics are exposed; buckets in seconds or tokens."""

    FIELDS = (
        ("multiproc_dir", _OPT_STR, None),
        ("labels", _DICT, {}),
        ("priority_label", _OPT_BOOL, None),
        ("bucket_time_to_first_token", _FLOATS, None),
        ("bucket_inter_token_latency", _FLOATS, None),
        ("bucket_e2e_request_latency", _FLOATS, None),
        ("bucket_prompt_tokens", _FLOATS, None),
        ("bucket_generation_tokens", _FLOATS, None),
    )


class ServerArgs(_Args):
    """All arguments of a frontend; listening port = `port` + the Server's `port_offset`."""

    FIELDS = (
        ("model_path", _STR, ""),
        ("served_model_name", _OPT_STR, None),
        ("tokenizer_path", _OPT_STR, None),
        ("revision", _OPT_STR, None),
        ("load_format", _OPT_STR, "auto"),
        ("weight_version", _STR, "default"),
        ("hicache_storage_backend", _OPT_STR, None),
        ("hicache_storage_backend_extra_config", _OPT_STR, None),
        ("hicache_storage_prefetch_policy", _OPT_STR, "best_effort"),
        ("hicache_write_policy", _OPT_STR, "write_through"),
        ("host", _STR, "127.0.0.1"),
        ("port", _INT, 30000),
        ("grpc_port", _OPT_INT, None),
        ("log_level", _STR, "info"),
        ("log_level_http", _OPT_STR, None),
        ("chat_template", _OPT_STR, None),
        ("default_chat_template_kwargs", _OPT_JSON, "{}"),
        ("tool_call_parser", _OPT_STR, None),
        ("reasoning_parser", _OPT_STR, None),
        ("stream_response_default_include_usage", _BOOL, False),
        ("tokenizer_worker_num", _INT, 1),
        ("detokenizer_worker_num", _INT, 1),
        ("skip_tokenizer_init", _BOOL, False),
        ("skip_server_warmup", _BOOL, False),
        ("health_generate_headers", _DICT, {}),
        ("default_priority_value", _OPT_INT, None),
        ("enable_request_header_overrides", _BOOL, False),
        ("incremental_streaming_output", _BOOL, False),
        ("disaggregation_mode", _MODE, DisaggregationMode.Null),
        ("model_config", _MODEL, None),
        ("preferred_sampling_params", _OPT_JSON, None),
        ("default_max_new_tokens", _OPT_INT, 128),
        ("lora_ids", _DICT, {}),
        ("enable_strict_thinking", _BOOL, False),
        ("limit_mm_data_per_request", _PAIRS, []),
        ("allow_auto_truncate", _BOOL, False),
        ("enable_return_hidden_states", _BOOL, False),
        ("num_reserved_tokens", _INT, 0),
        ("tokenizer_model_max_length", _OPT_INT, None),
        ("version", _OPT_STR, None),
        ("max_total_num_tokens", _OPT_INT, None),
        ("deployment_info", _OPT_JSON, "{}"),
        ("launch_server_info", _OPT_JSON, "{}"),
        ("load_snapshot_path", _OPT_STR, None),
        ("load_snapshot_dp_size", _OPT_INT, 0),
        ("load_snapshot_dp_rank", _OPT_INT, 0),
        ("accelerator", _OPT_STR, None),
        ("num_accelerators", _OPT_INT, 0),
        ("metrics", _METRICS, None),
    )

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.model_config: Any
        self.port: int
        self.lora_ids: Any
        if self.model_config is None:
            self.model_config = ModelConfig()
        for name in ("num_reserved_tokens", "default_max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise TypeError(f"ServerArgs: field `{name}` must not be negative, got {value}")
        for adapter in self.lora_ids.items():
            if not all(isinstance(text, str) for text in adapter):
                raise TypeError(
                    f"ServerArgs: field `lora_ids` must map names to ids, got {adapter}"
                )
        self.health_generate_headers: Any
        for name, value in self.health_generate_headers.items():
            if not (isinstance(name, str) and _TOKEN.fullmatch(name) and isinstance(value, str)
                    and value.isascii() and value.isprintable()):  # fmt: skip
                raise TypeError(
                    "ServerArgs: field `health_generate_headers` must map header names to their"
                    f" values, got {name!r}: {value!r}"
                )
        if not 0 <= self.port <= 65535:
            raise TypeError(f"ServerArgs: field `port` must be 0 to 65535, got {self.port}")
