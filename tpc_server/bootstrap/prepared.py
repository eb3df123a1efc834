"""The environment that `setup` has made, for those who may make nothing. Owner: any thread."""

from __future__ import annotations

import os
from pathlib import Path

from .interpreter import Tried, look
from .progress import BootstrapError
from .venv import ready


def prepared_python(strict: bool = False) -> Path | None:
    """The free-threaded Python with our packages, None when there is none yet. `strict`: raises
    BootstrapError where TPC_PYTHON names nothing that will do."""
    tried: list[Tried] = []
    try:
        found = look(tried)
    except BootstrapError:
        if strict and os.environ.get("TPC_PYTHON"):
            raise
        return None
    if found is None or not found.free_threaded:
        return None
    return ready(found)
