"""Which `Server` a scheduler gets. Owner: any thread (decided once, when it is first asked for).

Without a GIL the cores are threads of the scheduler's process; with one they run in a process of
their own. `TPC_MODE` (in-process or sidecar) says otherwise, where that can be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

IN_PROCESS: Final = "in-process"
SIDECAR: Final = "sidecar"
MODES: Final = (IN_PROCESS, SIDECAR)


def has_gil() -> bool:
    """Whether threads of this process take turns."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def mode(environ: Mapping[str, str] = os.environ) -> str:
    """The mode of this process. Raises ValueError on one that there is not, or not here."""
    asked = environ.get("TPC_MODE", "")
    if asked and asked not in MODES:
        raise ValueError(f"TPC_MODE={asked}: must be {' or '.join(MODES)}")
    if asked == IN_PROCESS and has_gil():
        raise ValueError(
            f"TPC_MODE={asked}: this Python has a GIL, the cores would take turns with the"
            f" scheduler; unset it ({SIDECAR} is what there is here)"
        )
    return asked or (SIDECAR if has_gil() else IN_PROCESS)


def __getattr__(name: str) -> Any:
    if name not in ("Server", "ServerError"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if mode() == SIDECAR:
        from .link import server as beside

        found = {"Server": beside.SidecarServer, "ServerError": beside.ServerError}
    else:
        from . import server as within

        found = {"Server": within.Server, "ServerError": within.ServerError}
    globals().update(found)
    return found[name]
