"""An unmodified SGLang, served by us: `SGLANG_FRONTEND=tpc`. Owner: SGLang's processes, at start.

`activate` is an entry point of group `sglang.srt.plugins`, which SGLang runs in each of its
processes before it reads its arguments. SGLang only logs what a plugin raises, and would go on
with a frontend of its own: so this module imports nothing that may be missing, and whatever goes
wrong once we are asked for ends the process.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "SGLANG_FRONTEND"
OURS = "tpc"
THEIRS = ("", "0", "python", "rust")


def chosen(value: str | None) -> bool:
    """Whether that value of the variable asks for us. Raises ValueError on what nobody knows."""
    name = (value or "").strip().lower()
    if name == OURS:
        return True
    if name in THEIRS:
        return False
    raise ValueError(
        f"{VARIABLE}={value}: no such frontend; `{OURS}` is this one, unset, 0, `python` and"
        " `rust` leave SGLang as it is"
    )


def activate() -> None:
    """The plugin: nothing at all, or this frontend in the place of SGLang's, or the end."""
    try:
        if not chosen(os.environ.get(VARIABLE)):
            return
        from .plugin import hook_in

        hook_in(os.environ)
    except Exception as error:
        text = str(error) or repr(error)
        if not getattr(error, "plain", isinstance(error, ValueError)):
            text = f"{type(error).__name__}: {text}"
        sys.exit(f"tpc-server: error: {text}")
