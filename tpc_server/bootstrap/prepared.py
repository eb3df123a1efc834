"""The environment that `setup` has made, for those who may make nothing. Owner: any thread."""

from __future__ import annotations

from pathlib import Path

from .interpreter import Tried, look
from .progress import BootstrapError
from .venv import ready


def prepared_python() -> Path | None:
    """The free-threaded Python with our packages, None when there is none yet."""
    tried: list[Tried] = []
    try:
        found = look(tried)
    except BootstrapError:
        return None
    if found is None or not found.free_threaded:
        return None
    return ready(found)
