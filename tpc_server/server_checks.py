"""Arguments of `Server`, checked before anything is made. Owner: stateless.

Standard library only: a scheduler's process with a GIL checks them too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .boundary.server_args import ServerArgs
from .parsers.formats import check_names


def check_arguments(
    server_args: ServerArgs, port_offset: int | None, to_scheduler_cap: int,
    from_scheduler_cap: int, stage_channel_cap: int, cores: Sequence[int] | None,
) -> None:  # fmt: skip
    """Raises TypeError that names the argument."""
    if not isinstance(server_args, ServerArgs):
        raise TypeError(f"server_args must be ServerArgs, got {type(server_args).__name__}")
    named_model = server_args.model_path or server_args.tokenizer_path
    if not named_model and not server_args.skip_tokenizer_init:
        raise TypeError(
            "ServerArgs: field `model_path` is empty: give a folder with a tokenizer.json, or set"
            " skip_tokenizer_init=True (ids in, ids out)"
        )
    try:
        check_names(server_args.reasoning_parser, server_args.tool_call_parser)
    except ValueError as error:
        raise TypeError(f"ServerArgs: {error}") from None
    try:
        # What the engine is able to do is the options' affair, and checked with the requests.
        check_preferred(
            json.loads(server_args.preferred_sampling_params or "{}"),
            server_args.skip_tokenizer_init,
            server_args.default_max_new_tokens,
        )
    except ValueError as error:
        raise TypeError(f"ServerArgs: field `preferred_sampling_params`: {error}") from None
    named = {
        "to_scheduler_cap": to_scheduler_cap,
        "from_scheduler_cap": from_scheduler_cap,
        "stage_channel_cap": stage_channel_cap,
    }
    for name, value in named.items():
        if type(value) is not int or value < 1:
            raise TypeError(f"{name} must be a positive int, got {value!r}")
    if cores is not None and not all(type(c) is int and c >= 0 for c in cores):
        raise TypeError(f"cores must be None or a list of CPU numbers, got {cores!r}")
    if not 0 <= server_args.port + (port_offset or 0) <= 65535:
        raise TypeError(f"port_offset {port_offset}: the port would be outside 0 to 65535")


def check_preferred(
    preferred: Mapping[str, Any], skip_tokenizer_init: bool, default_max_new_tokens: int | None,
    grammars: bool = True,
) -> None:  # fmt: skip
    """That defaults of sampling are what a request may say. Raises ValueError that names one."""
    if not preferred:
        return
    from .contract.limits import Limits
    from .contract.sampling import SamplingDecoder

    limits = Limits(
        1 << 40, 1 << 40, default_max_new_tokens=default_max_new_tokens, grammars=grammars,
        preferred_sampling_params=dict(preferred), skip_tokenizer_init=skip_tokenizer_init,
    )  # fmt: skip
    try:
        SamplingDecoder(limits)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("preferred_sampling_params: ")) from None
