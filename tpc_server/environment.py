"""Settings as other software writes them: environment variables, paths. Owner: stateless.

Python 3.9 and the standard library only: `tpc --help` reads it before there is anything else.
"""

from __future__ import annotations

import os


def env_flag(name: str, default: bool) -> bool:
    """A boolean environment variable by SGLang's rules; anything else is the default."""
    value = os.environ.get(name, "").strip().lower()
    if value in ("1", "true", "yes", "y"):
        return True
    if value in ("0", "false", "no", "n"):
        return False
    return default


def env_number(name: str, default: float) -> float:
    """A number from the environment; anything unreadable is the default."""
    try:
        return float(os.environ[name])
    except (KeyError, ValueError):
        return default


def env_above_0(name: str, default: float) -> float:
    """The same where only what is above 0 means anything."""
    value = env_number(name, default)
    return value if 0 < value < 1e9 else default


def root_path(text: str) -> str:
    """What a proxy puts before every path: from a slash on, with none at its end."""
    text = text.strip().strip("/")
    return f"/{text}" if text else ""
