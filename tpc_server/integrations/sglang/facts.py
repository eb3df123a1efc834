"""What we rely on in SGLang, read from the one installed. Owner: SGLang's processes, at start.

`gather()` and the committed `facts.json` (SGLang 0.5.23) have one shape: section -> name -> fact.
`python -m tpc_server.integrations.sglang.facts` in SGLang's environment prints a new one.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Final

from . import layouts, reading

Facts = dict[str, dict[str, Any]]

RECORDED: Final = Path(__file__).with_name("facts.json")
_SERVER: Final = "sglang.srt.rust_server.server:RustServer"
_CONFIG: Final = "sglang.srt.rust_server.config:_build_server_args"
_METRICS: Final = "sglang.srt.rust_server.config:_build_metrics_config"
# What is hooked, overridden or called, by us or by the scheduler.
_CALLABLES: Final = (
    "sglang.srt.managers.scheduler:Scheduler.get_rust_server_class",
    "sglang.srt.managers.scheduler:Scheduler.maybe_init_rust_server",
    "sglang.srt.plugins.hook_registry:HookRegistry.register",
    "sglang.srt.server_args:ServerArgs.resolve_once",
    "sglang.srt.managers.scheduler:Scheduler._hosts_rust_server",
    "sglang.srt.managers.disagg_service:rust_server_serves_kv_bootstrap",
    "sglang.srt.configs.model_config:ModelConfig.from_server_args",
    "sglang.srt.arg_groups.overrides:resolving_view",
    _CONFIG,
    *(
        f"{_SERVER}.{name}"
        for name in (
            "__init__",
            "launch",
            "_load_extension",
            "_server_kwargs",
            "_health_generate_headers",
            "_default_max_new_tokens",
            "_server_core_budget",
            "_resolve_multimodal",
            "_partition_cores",
            "_admit",
            "_attach_buffers",
            "drain",
            "wait_request",
            "push_generation",
            "push_abort",
            "push_control_output",
            "push_health_ack",
            "set_startup_time",
            "mm_transport_stats",
        )
    ),
)
# Messages that cross the boundary, and the records inside them.
_STRUCTS: Final = (
    "sglang.srt.managers.io_struct:TokenizedGenerateReqInput",
    "sglang.srt.managers.io_struct:AbortReq",
    "sglang.srt.managers.io_struct:FlushCacheReqInput",
    "sglang.srt.managers.io_struct:GetInternalStateReq",
    "sglang.srt.managers.io_struct:CheckWeightsReqInput",
    "sglang.srt.managers.io_struct:ClearHiCacheReqInput",
    "sglang.srt.managers.io_struct:AttachHiCacheStorageReqInput",
    "sglang.srt.managers.io_struct:DetachHiCacheStorageReqInput",
    "sglang.srt.managers.io_struct:PauseGenerationReqInput",
    "sglang.srt.managers.io_struct:ContinueGenerationReqInput",
    "sglang.srt.managers.io_struct:OpenSessionReqInput",
    "sglang.srt.managers.io_struct:CloseSessionReqInput",
    "sglang.srt.managers.io_struct:BatchTokenIDOutput",
    "sglang.srt.managers.io_struct:SessionParams",
    "sglang.srt.sampling.sampling_params:SamplingParams",
)
# Launch arguments that decide whether and how we serve.
FLAGS: Final = (
    "admin_api_key",
    "api_key",
    "disaggregation_mode",
    "enable_cache_report",
    "enable_custom_logit_processor",
    "enable_ssl_refresh",
    "enable_streaming_session",
    "enable_watermark",
    "encoder_only",
    "fastapi_root_path",
    "grammar_backend",
    "grpc_mode",
    "grpc_port",
    "is_embedding",
    "nnodes",
    "smg_grpc_mode",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_keyfile_password",
    "use_ray",
)


def recorded() -> Facts:
    """The facts of the SGLang that this package was made for."""
    facts: Facts = json.loads(RECORDED.read_text(encoding="utf-8"))
    return facts


def gather() -> Facts:
    """The facts of the SGLang in this environment; None stands for what is not there."""
    server_args = reading.find("sglang.srt.server_args:ServerArgs")
    flags = set(reading.field_names(server_args))
    return {
        "callable": {path: reading.parameters(path) for path in _CALLABLES},
        "call": {
            "Server methods": _server_methods(reading.find(_SERVER)),
            "Server keywords": reading.keywords(f"{_SERVER}.launch", "Server"),
            "ServerArgs keywords": reading.keywords(_CONFIG, "ServerArgs"),
            "ModelConfig keywords": reading.keywords(_CONFIG, "ModelConfig"),
            "MetricsConfig keywords": reading.keywords(_METRICS, "MetricsConfig"),
            "what is asked of a request": reading.attributes_of(
                reading.parsed(reading.find(f"{_SERVER}.drain")), "req"
            ),
            "buffers of a request": reading.entries_asked(
                reading.parsed(reading.find(f"{_SERVER}._attach_buffers")), "buffers"
            ),
        },
        "frame": {
            "push_generation": _frame("push_generation"),
            "push_generation with logprobs": _frame("push_generation", extras=True),
            "push_abort": _frame("push_abort"),
            "push_control_output": _control_frame(),
        },
        "message": {path: reading.struct(path) for path in _STRUCTS},
        "argument": {name: name in flags for name in FLAGS},
        **layouts.gather(),
    }


def differences(here: Facts, wanted: Facts) -> list[str]:
    """One line for each fact that is not as it was recorded."""
    lines = []
    for section, facts in wanted.items():
        for name, fact in facts.items():
            found = here.get(section, {}).get(name)
            if found != fact:
                lines.append(f"{section} {name.rpartition(':')[2]}: {_told(section, fact, found)}")
    return lines


def _told(section: str, fact: Any, found: Any) -> str:
    if found is None or found is False:
        return "is gone"
    if isinstance(fact, list) and isinstance(found, list):
        named = section not in ("frame", "variable")
        names = [_name(item) for item in fact], [_name(item) for item in found]
        gone = [n for n in names[0] if n not in names[1]]
        new = [n for n in names[1] if n not in names[0]]
        if named and (gone or new):
            parts = [f"no {', '.join(gone)}"] * bool(gone) + [f"new {', '.join(new)}"] * bool(new)
            return "; ".join(parts)
        for k, (old, now) in enumerate(zip(fact, found, strict=False)):
            if old != now:
                return f"at {k}: {json.dumps(old)} is now {json.dumps(now)}"
    return f"{json.dumps(fact)} is now {json.dumps(found)}"


def _name(item: Any) -> str:
    return str(item[0]) if isinstance(item, list) and item else str(item)


def _server_methods(found: Any) -> list[str] | None:
    """The methods that SGLang's wrapper calls on its `Server`."""
    tree = None if found is None else reading.parsed(found)
    if tree is None:
        return None
    return sorted(
        {
            node.func.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "self.server"
        }
    )


class _Recorder:
    """Stands for the `Server`: keeps the frame that is pushed."""

    frame: list[Any] | None = None

    def push_decode_result_batch(self, header: bytes, cols: list[Any]) -> bool:
        import msgspec

        self.frame = [
            *msgspec.msgpack.decode(header),
            *(bytes(memoryview(col).cast("B")).hex() for col in cols),
        ]
        return True

    def push_control_result(self, rid: str, encoded: bytes) -> None:
        import msgspec

        self.frame = [rid, msgspec.msgpack.decode(encoded)]


class _Row:
    """A step's output or a request: what is not named is empty."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        return None


def _control_frame() -> list[Any] | None:
    """The id that a reply to a control request goes to, and how it is packed."""
    server = reading.find(_SERVER)
    reply = reading.find("sglang.srt.managers.io_struct:FlushCacheReqOutput")
    if server is None or reply is None:
        return None
    recorder = _Recorder()
    try:
        host, request = _Row(server=recorder), _Row(rid="a")
        server.push_control_output(host, request, reply(success=True, message="told"))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return recorder.frame


def _frame(method: str, extras: bool = False) -> list[Any] | None:
    """The header columns, then the data, of a frame whose every value tells where it belongs."""
    from array import array

    server: Any = reading.find(_SERVER)
    if server is None:
        return None
    recorder = _Recorder()
    host = _Row(server=recorder, _multimodal_enabled=False)
    try:
        if method == "push_abort":
            abort = _Row(rid="a", finished_reason=None, abort_message="told", weight_versions=[])
            request = _Row(origin_input_ids=[7] * 11, cached_tokens=12, reasoning_tokens=13)
            server.push_abort(host, abort, request)
            return recorder.frame
        payload = _Row(
            rids=["a"],
            finished_reasons=[{"type": "length", "length": 1}],
            prompt_tokens=[11],
            output_ids=[array("q", [101, 102])],
            cached_tokens=[12],
            reasoning_tokens=[13],
            weight_versions=[[["v", 0, 2]]],
        )
        if extras:
            for k, name in enumerate(("output_token_logprobs", "input_token_logprobs")):
                setattr(payload, f"{name}_val", [[0.5 + k]])
                setattr(payload, f"{name}_idx", [[20 + k]])
            families = ("output_top", "input_top", "output_token_ids", "input_token_ids")
            for k, name in enumerate(families):
                setattr(payload, f"{name}_logprobs_val", [[[2.5 + k]]])
                setattr(payload, f"{name}_logprobs_idx", [[[30 + k]]])
            setattr(payload, "output_hidden_states", [[[9.5, 10.5]]])  # noqa: B010
        server.push_generation(host, payload, {0: 0.25})
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return recorder.frame


if __name__ == "__main__":
    print(json.dumps(gather(), indent=1, sort_keys=True))
