"""What we rely on in SGLang, read from the one installed. Owner: SGLang's processes, at start.

`gather()` and the committed `facts.json` (SGLang 0.5.23) have one shape: section -> name -> fact.
`python -m tpc_server.integrations.sglang.facts` in SGLang's environment prints a new one.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any, Final

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
    "sglang.srt.arg_groups.overrides:resolving_view",
    _CONFIG,
    *(
        f"{_SERVER}.{name}"
        for name in (
            "__init__",
            "launch",
            "_load_extension",
            "_server_kwargs",
            "_resolve_multimodal",
            "_partition_cores",
            "_admit",
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
    "enable_ssl_refresh",
    "enable_watermark",
    "encoder_only",
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
    server_args = _find("sglang.srt.server_args:ServerArgs")
    flags = set(_field_names(server_args))
    return {
        "callable": {path: _parameters(path) for path in _CALLABLES},
        "call": {
            "Server methods": _server_methods(_find(_SERVER)),
            "Server keywords": _keywords(f"{_SERVER}.launch", "Server"),
            "ServerArgs keywords": _keywords(_CONFIG, "ServerArgs"),
            "ModelConfig keywords": _keywords(_CONFIG, "ModelConfig"),
            "MetricsConfig keywords": _keywords(_METRICS, "MetricsConfig"),
        },
        "frame": {
            "push_generation": _frame("push_generation"),
            "push_generation with logprobs": _frame("push_generation", extras=True),
            "push_abort": _frame("push_abort"),
        },
        "message": {path: _struct(path) for path in _STRUCTS},
        "argument": {name: name in flags for name in FLAGS},
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
        named = section != "frame"
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


def _find(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
        for name in names.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError):
        return None
    return getattr(found, "__func__", found)


def _parameters(path: str) -> list[str] | None:
    found = _find(path)
    return None if found is None else list(inspect.signature(found).parameters)


def _tree(found: Any) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(found)))
    except (OSError, TypeError):
        return None


def _server_methods(found: Any) -> list[str] | None:
    """The methods that SGLang's wrapper calls on its `Server`."""
    tree = None if found is None else _tree(found)
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


def _keywords(path: str, called: str) -> list[str] | None:
    """The keywords of the calls of `called` in a function."""
    found = _find(path)
    tree = None if found is None else _tree(found)
    if tree is None:
        return None
    return sorted(
        {
            keyword.arg or "**"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == called
            for keyword in node.keywords
        }
    )


def _field_names(found: Any) -> list[str]:
    if found is None:
        return []
    names: Any = getattr(found, "__struct_fields__", None)
    return list(names or getattr(found, "__dataclass_fields__", ()))


def _struct(path: str) -> list[list[Any]] | None:
    """Name, type and default of each field, in order; first the tag."""
    found = _find(path)
    if found is None:
        return None
    import msgspec
    from msgspec import inspect as kinds

    described: Any = kinds.type_info(found)
    rows: list[list[Any]] = [["(tag)", getattr(described, "tag", None), described.array_like]]
    for field in described.fields:
        if field.required:
            default = "required"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = f"{field.default_factory.__name__}()"
        else:
            default = repr(field.default)
        rows.append([field.name, _kind(field.type, kinds), default])
    return rows


def _kind(kind: Any, kinds: Any) -> str:
    """A type in words that no Python version changes."""
    name = type(kind).__name__.removesuffix("Type").lower()
    if isinstance(kind, kinds.UnionType):
        return "|".join(sorted(_kind(k, kinds) for k in kind.types))
    if isinstance(kind, kinds.DictType):
        return f"{{{_kind(kind.key_type, kinds)}: {_kind(kind.value_type, kinds)}}}"
    if isinstance(kind, kinds.LiteralType):
        return "/".join(map(str, kind.values))
    if hasattr(kind, "item_type"):
        return f"{name}[{_kind(kind.item_type, kinds)}]"
    if hasattr(kind, "item_types"):
        return f"{name}[{', '.join(_kind(k, kinds) for k in kind.item_types)}]"
    if hasattr(kind, "cls"):
        return str(kind.cls.__name__)
    return name


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


class _Row:
    """A step's output or a request: what is not named is empty."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        return None


def _frame(method: str, extras: bool = False) -> list[Any] | None:
    """The header columns, then the data, of a frame whose every value tells where it belongs."""
    from array import array

    server: Any = _find(_SERVER)
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
