"""What we read of SGLang beside the frames: its replies, the file of its load, its registry's rows,
facts of its model. Owner: SGLang's processes, at start.

Sections of `facts.gather()`.
"""

from __future__ import annotations

from typing import Any, Final

from . import reading

_IO: Final = "sglang.srt.managers.io_struct"
# What the scheduler answers to the control requests that we send.
REPLIES: Final = (
    "FlushCacheReqOutput",
    "GetInternalStateReqOutput",
    "CheckWeightsReqOutput",
    "ChecksumInfo",
    "ClearHiCacheReqOutput",
    "AttachHiCacheStorageReqOutput",
    "DetachHiCacheStorageReqOutput",
    "OpenSessionReqOutput",
)
# How a request ended, by kind, with the arguments that each is made of here.
FINISHES: Final = (
    ("FINISH_MATCHED_TOKEN", (7,)),
    ("FINISH_MATCHED_STR", ("end",)),
    ("FINISHED_MATCHED_REGEX", ("e.d",)),
    ("FINISH_LENGTH", (7,)),
    ("FINISH_ABORT", ("told", 400, "kind")),
)
# Names in its internal state that are read.
_STATE: Final = (
    "effective_max_running_requests_per_dp",
    "last_gen_throughput",
    "memory_usage",
    "rust_server_startup_time",
)
_LOADS: Final = "sglang.srt.managers.load_snapshot"
_LOAD_RECORDS: Final = (
    "LoadSnapshot",
    "MemoryMetrics",
    "SpeculativeMetrics",
    "LoRAMetrics",
    "DisaggregationMetrics",
    "QueueMetrics",
)
_CONN: Final = "sglang.srt.disaggregation.common.conn"
_MODEL: Final = "sglang.srt.configs.model_config"
# By these a model is refused; SGLang sets them when it reads the model's configuration.
_MODEL_FACTS: Final = ("is_generation", "is_multimodal")
# What we set or honour; those that SGLang reads by other means are not among them.
_VARIABLES: Final = (
    "SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
    "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES",
    "SGLANG_MAX_BATCH_REQS_PER_HTTP_REQ",
    "SGLANG_PLUGINS",
    "SGLANG_RUST_SERVER",
    "SGLANG_TIMEOUT_KEEP_ALIVE",
    "SGLANG_WARMUP_TIMEOUT",
)


def gather() -> dict[str, dict[str, Any]]:
    """Section -> name -> fact; None or False stands for what is not there."""
    conn, model = reading.module_text(_CONN), reading.module_text(_MODEL)
    state = reading.module_text("sglang.srt.managers.scheduler_components.internal_state")
    config = reading.parsed(reading.find("sglang.srt.rust_server.config:_build_server_args"))
    return {
        "reply": {name: reading.struct(f"{_IO}:{name}") for name in REPLIES},
        "snapshot": {
            **_snapshot_file(),
            **{name: reading.struct(f"{_LOADS}:{name}") for name in _LOAD_RECORDS},
        },
        "registry": {
            "row of a rank": reading.strings_of(
                reading.block(conn, "register_to_bootstrap"), "payload"
            ),
            "room": reading.strings_of(reading.block(conn, "_register_prefill_dp_rank"), "payload"),
            "what is told of the server": _fields(f"{_CONN}:PrefillServerInfo"),
            "what is told of a rank": _fields(f"{_CONN}:PrefillRankInfo"),
        },
        "module": {
            "names": reading.attributes_of(config, "ext"),
            "DefaultSamplingParams keywords": reading.strings_of(
                reading.block(model, "get_default_sampling_params"), "available_params"
            ),
        },
        "model": {name: f"self.{name} = " in model for name in _MODEL_FACTS},
        "finish": {name: _finish(name, given) for name, given in FINISHES},
        "state": {name: f'state["{name}"] = ' in state for name in _STATE},
        "variable": {name: _variable(name) for name in _VARIABLES},
    }


def _fields(path: str) -> list[str] | None:
    return reading.field_names(reading.find(path)) or None


def _finish(name: str, given: tuple[Any, ...]) -> Any:
    kind = reading.find(f"sglang.srt.managers.schedule_batch:{name}")
    try:
        return kind(*given).to_json()
    except (AttributeError, TypeError):
        return None


def _variable(name: str) -> list[Any] | None:
    """How it is read, and its default."""
    found = reading.find(f"sglang.srt.environ:Envs.{name}")
    return None if found is None else [type(found).__name__, found.default]


def _snapshot_file() -> dict[str, Any]:
    """What the file begins with, and how the heads of the file and of a slot are packed."""
    module: Any = reading.module(_LOADS)
    magic = getattr(module, "MAGIC", None)
    return {
        "magic": magic.decode("latin-1") if isinstance(magic, bytes) else None,
        "version": getattr(module, "VERSION", None),
        "head of the file": _packed(module, "HEADER_STRUCT"),
        "head of a slot": _packed(module, "SLOT_LEN_STRUCT"),
    }


def _packed(module: Any, name: str) -> str | None:
    return getattr(getattr(module, name, None), "format", None)
