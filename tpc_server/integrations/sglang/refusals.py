"""What we do not serve, and why, as far as launch arguments tell. Owner: SGLang's processes.

Before the model is loaded where the arguments are enough (`by_arguments`), else before the port
opens (`by_model`).
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
