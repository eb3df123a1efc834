"""Which `Server` a scheduler gets. Owner: any thread (decided once, at import).

Without a GIL the cores are threads of the scheduler's process; with one they run in a process of
their own. `TPC_MODE` (in-process or sidecar) says otherwise.
"""

from __future__ import annotations

import os
import sys
from typing import Any

MODES = ("in-process", "sidecar")


def mode() -> str:
    """The mode of this process. Raises ValueError on an unknown one."""
    asked = os.environ.get("TPC_MODE", "")
    if asked and asked not in MODES:
        raise ValueError(f"TPC_MODE={asked}: must be {' or '.join(MODES)}")
    gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    return asked or ("sidecar" if gil else "in-process")


if mode() == "sidecar":
    from .link.server import ServerError
    from .link.server import SidecarServer as _Server

    Server: Any = _Server
else:
    from .server import Server as _InProcess
    from .server import ServerError  # type: ignore[assignment]

    Server = _InProcess

__all__ = ["MODES", "Server", "ServerError", "mode"]
