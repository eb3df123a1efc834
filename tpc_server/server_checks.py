"""Arguments of `Server`, checked before anything is made. Owner: stateless.

Standard library only: a scheduler's process with a GIL checks them too.
"""

from __future__ import annotations

from collections.abc import Sequence

from .boundary.server_args import ServerArgs
from .parsers.formats import check_names


def check_arguments(
    server_args: ServerArgs, port_offset: int | None, to_scheduler_cap: int,
    from_scheduler_cap: int, stage_channel_cap: int, cores: Sequence[int] | None,
) -> None:  # fmt: skip
    """Raises TypeError that names the argument."""
    if not isinstance(server_args, ServerArgs):
        raise TypeError(f"server_args must be ServerArgs, got {type(server_args).__name__}")
    try:
        check_names(server_args.reasoning_parser, server_args.tool_call_parser)
    except ValueError as error:
        raise TypeError(f"ServerArgs: {error}") from None
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
