"""What this interpreter is, and the guard that the GIL is really off. Owner: the main thread."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import warnings
from typing import Final

# Everything a serving process imports that is not ours; one of them can switch the GIL on.
IMPORTS: Final = (
    "numpy", "tokenizers", "httptools", "jiter", "msgpack", "psutil", "gguf", "jinja2",
    "backports.zstd",
)  # fmt: skip


# Read now: the call opens a file, and later there may be no descriptor left for it.
_FREE_THREADED: Final = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def free_threaded_build() -> bool:
    """Whether this interpreter was built with --disable-gil."""
    return _FREE_THREADED


def gil_enabled() -> bool:
    """Whether the GIL is on now."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def import_all(*more: str) -> str | None:
    """Import what serving needs; the name of the module that switched the GIL on, or None.

    A package that is not there is passed over: whoever needs it says so.
    """
    before = gil_enabled()
    for name in (*IMPORTS, *more):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                importlib.import_module(name)
            except ImportError:
                continue
        if not before and gil_enabled():
            return name
    return None


def describe() -> str:
    """One line: version, build, GIL."""
    build = "free-threaded" if free_threaded_build() else "GIL"
    state = "on" if gil_enabled() else "off"
    return f"CPython {sys.version.split()[0]} ({build} build, GIL {state})"
