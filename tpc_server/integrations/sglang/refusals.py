"""What we do not serve, and why, as far as launch arguments tell. Owner: SGLang's processes.

Before the model is loaded where the arguments are enough (`by_arguments`), else before the port
opens (`by_model`). What is not refused and yet does nothing is told (`without_effect`).
"""

from __future__ import annotations

from typing import Any, Final

from .problem import Problem

OTHERWISE: Final = "unset SGLANG_FRONTEND to serve it with SGLang's own"


def by_arguments(args: Any) -> None:
    """Raises Problem on launch arguments that ask for what we do not have."""
    for flag, why in _REFUSED:
        value = getattr(args, flag, None)
        if value in (None, False, 0, ""):
            continue
        shown = "" if value is True else f" {value}" if flag in _SHOWN else " …"
        raise Problem(f"--{flag.replace('_', '-')}{shown}: {why}; {OTHERWISE}")
    if args.nnodes and args.nnodes > 1:
        raise Problem(f"--nnodes {args.nnodes}: only one node is tested; {OTHERWISE}")


def by_model(model: Any) -> None:
    """Raises Problem on a kind of model that we do not serve."""
    if not model.is_generation:
        raise Problem(f"an embedding or reward model: only text generation is served; {OTHERWISE}")
    if model.is_multimodal:
        raise Problem(
            "a multimodal model: only text is served (`--language-model-only`, where the model has"
            f" it, is text); {OTHERWISE}"
        )


def without_effect(args: Any) -> list[str]:
    """Flags that were given, and that only SGLang's Python frontend reads."""
    defaults = _defaults(type(args))
    return [
        f"--{name.replace('_', '-')}"
        for name in _PYTHONS
        if name in defaults and getattr(args, name) != defaults[name]
    ]


def _defaults(kind: type[Any]) -> dict[str, Any]:
    if not hasattr(kind, "__struct_fields__"):
        return {}
    from msgspec import NODEFAULT, structs

    return {
        field.name: field.default if field.default_factory is NODEFAULT else field.default_factory()
        for field in structs.fields(kind)
    }


_GRPC: Final = "there is no gRPC here"
_TLS: Final = "there is no TLS here yet, terminate it in front"
# flag, reason. None, False, 0 and "" are never refused.
_REFUSED: Final = (
    ("smg_grpc_mode", _GRPC),
    ("grpc_mode", _GRPC),
    ("grpc_port", _GRPC),
    ("encoder_only", "an encoder has no text to serve"),
    ("use_ray", "Ray starts the processes its own way"),
    ("is_embedding", "an embedding or reward model, and only text generation is served"),
    ("enable_watermark", "watermarks are not sent on"),
    ("ssl_certfile", _TLS),
    ("ssl_keyfile", _TLS),
    ("ssl_ca_certs", _TLS),
    ("enable_ssl_refresh", _TLS),
)
_SHOWN: Final = ("grpc_port",)
# Neither SGLang's Rust server nor a scheduler asks for these.
_PYTHONS: Final = (
    "batch_notify_size",
    "completion_template",
    "crash_dump_folder",
    "disable_tokenizer_batch_decode",
    "enable_dynamic_batch_tokenizer",
    "enable_http2",
    "enable_http_worker_reuseport",
    "enable_response_store",
    "enable_tokenizer_batch_encode",
    "export_metrics_to_file",
    "gc_warning_threshold_secs",
    "hf_chat_template_name",
    "log_requests",
    "return_input_ids",
    "return_output_ids",
    "tokenizer_metrics_custom_labels_header",
    "tool_server",
    "trust_request_chat_template",
    "uvicorn_access_log_exclude_prefixes",
    "warmups",
)
