"""What the server says of itself: allow-lists only. Owner: stateless; results are bytes per core.

Everything shown is named here. A launch argument or an internal state that is not named, a key
or a token under whatever name, can therefore not appear.
"""

from __future__ import annotations

import json
import sys
import time
from math import isfinite
from typing import Any, Final

from . import __version__
from .counters import snapshot
from .render import native

# Launch arguments of the scheduler's program that tell an operator something and hold no secret.
LAUNCH_FIELDS: Final = frozenset(
    [
        "model_path",
        "tokenizer_path",
        "tokenizer_mode",
        "tokenizer_backend",
        "tokenizer_worker_num",
        "detokenizer_worker_num",
        "skip_tokenizer_init",
        "load_format",
        "trust_remote_code",
        "context_length",
        "is_embedding",
        "enable_multimodal",
        "revision",
        "model_impl",
        "dtype",
        "quantization",
        "kv_cache_dtype",
        "mem_fraction_static",
        "max_running_requests",
        "max_queued_requests",
        "max_total_tokens",
        "chunked_prefill_size",
        "max_prefill_tokens",
        "prefill_max_requests",
        "schedule_policy",
        "enable_priority_scheduling",
        "default_priority_value",
        "schedule_conservativeness",
        "page_size",
        "radix_eviction_policy",
        "device",
        "tp_size",
        "pp_size",
        "dp_size",
        "ep_size",
        "stream_interval",
        "random_seed",
        "attention_backend",
        "sampling_backend",
        "grammar_backend",
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "disaggregation_mode",
        "disable_radix_cache",
        "disable_cuda_graph",
        "enable_metrics",
        "enable_cache_report",
        "served_model_name",
        "weight_version",
        "num_continuous_decode_steps",
        "status",
        "max_req_input_len",
        "nnodes",
        "node_rank",
        "enable_dp_attention",
        "enable_hierarchical_cache",
        "disaggregation_transfer_backend",
        "disaggregation_bootstrap_port",
    ]
)
EVENT_FIELDS: Final = frozenset(
    [
        "publisher",
        "endpoint_host",
        "endpoint_port_base",
        "topic",
        "block_size",
        "dp_size",
        "load_endpoint_port_base",
        "load_topic",
        "replay_endpoint_port_base",
    ]
)
STATE_FIELDS: Final = frozenset(
    [
        "last_gen_throughput",
        "avg_spec_accept_length",
        "max_total_num_tokens",
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        "cache_hit_rate",
        "effective_max_running_requests_per_dp",
        "max_running_requests",
        "weight_load_time_s",
        "kv_cache_pool_tokens",
        "num_used_tokens",
        "memory_usage",
        "step_time",
        "step_time_dict",
        "rust_mm_transport",
        "world_size",
        "dp_size",
        "attn_dp_size",
        "tp_size",
        "page_size",
        "cuda_graph_config",
        "decode_cuda_graph_bs",
        "decode_cuda_graph_memory_gb",
    ]
)
_DEEPEST: Final = 4

_STARTUP_FIELDS: Final = frozenset(
    ("load_weight", "kv_cache_allocation", "scheduler_e2e", "cuda_graph", "tokenizer_e2e")
)


def _plain(value: Any) -> bool:
    return value is None or (isinstance(value, (bool, int, float)) and isfinite(value))


def allowed_launch(info: dict[str, Any]) -> dict[str, Any]:
    """The launch arguments that may be shown: named here and scalar."""
    shown = _scalars(info, LAUNCH_FIELDS)
    if "kv_events" in info:  # where routers subscribe
        events = info["kv_events"]
        shown["kv_events"] = _scalars(events, EVENT_FIELDS) if isinstance(events, dict) else None
    return shown


def _scalars(values: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k in names and (_plain(v) or isinstance(v, str))}


def allowed_state(state: Any) -> dict[str, Any]:
    """The numbers of an internal-state reply that may be shown; no text, whatever its name."""
    if not isinstance(state, dict):
        return {}
    shown = {k: _numbers(v, _DEEPEST) for k, v in state.items() if k in STATE_FIELDS}
    return {k: v for k, v in shown.items() if v is not ...}


def _numbers(value: Any, depth: int) -> Any:
    """A number, or what of a tree is numbers; `...` for anything else."""
    if _plain(value):
        return value
    if depth and isinstance(value, dict):
        pairs = {str(k): _numbers(v, depth - 1) for k, v in value.items() if type(k) in (str, int)}
        return {k: v for k, v in pairs.items() if v is not ...}
    if depth and isinstance(value, list):
        return [v for v in [_numbers(v, depth - 1) for v in value] if v is not ...]
    return ...


def startup_times(state: Any) -> dict[str, Any] | None:
    """How long the parts of the scheduler's start took, in seconds; None where it does not say."""
    value = state.get("rust_server_startup_time") if isinstance(state, dict) else None
    if not isinstance(value, dict):
        return None
    return {
        key: {k: v for k, v in part.items() if _plain(v)} if isinstance(part, dict) else part
        for key, part in value.items()
        if key in _STARTUP_FIELDS and (isinstance(part, dict) or _plain(part))
    }


class ServerInfo:
    """Static facts of one server, gathered once; plain data."""

    def __init__(self, args: Any, plan: Any, mode: str, http: str) -> None:
        served = args.served_model_name or args.model_path
        self.served = served
        self.shares = mode != "in-process"  # there may be other frontends, or have been one
        self.started = int(time.time())
        context = args.model_config.context_len
        launch = json.loads(args.launch_server_info or "{}")
        self.model = {
            "model_path": args.model_path,
            "served_model_name": served,
            "tokenizer_path": args.tokenizer_path or args.model_path,
            "is_generation": True,
            "preferred_sampling_params": args.preferred_sampling_params,
            "weight_version": args.weight_version,
            "load_format": args.load_format,
            "reasoning_parser": args.reasoning_parser,
            "tool_call_parser": args.tool_call_parser,
            "disaggregation_mode": str(args.disaggregation_mode),
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": args.model_config.model_type,
        }
        self.models = {
            "object": "list",
            "data": [
                {
                    "id": served, "object": "model", "created": self.started,
                    "owned_by": "sglang", "root": served, "parent": None,
                    "max_model_len": context,
                },
                *[
                    {
                        "id": name, "object": "model", "created": self.started,
                        "owned_by": "sglang", "root": name, "parent": served,
                        "max_model_len": None,
                    }
                    for name in args.lora_ids
                ],
            ],
        }  # fmt: skip
        gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        self.server = {
            **allowed_launch(launch),
            **self.model,
            "served_model_name": served,
            "host": args.host,
            "port": args.port,
            "max_model_len": context,
            "vocab_size": args.model_config.vocab_size,
            "max_total_num_tokens": args.max_total_num_tokens,
            "stream_incremental": args.incremental_streaming_output,
            "version": args.version or __version__,
            "frontend": "tpc",
            "frontend_version": __version__,
            "mode": mode,
            "http": http,
            "writer": "send",
            "enable_http2": False,
            "python": sys.version.split()[0],
            "gil_enabled": gil,
            "core_plan": plan.to_json(),
        }

    def server_body(
        self, counters: dict[str, dict[str, int]], states: list[Any],
        startup: dict[str, Any] | None = None,
    ) -> bytes:  # fmt: skip
        """Body of /server_info with the cores' newest published counters."""
        return native.to_json(
            {
                **self.server,
                **({} if startup is None else {"startup_time": startup}),
                "uptime_s": int(time.time()) - self.started,
                "cores": counters,
                "internal_states": states,
            }
        )


def core_counters(words: Any, link: Any) -> dict[str, dict[str, int]]:
    """Published counters of every core, by index."""
    return {str(c): snapshot(words, link.counters_at(c)) for c in range(link.n)}
