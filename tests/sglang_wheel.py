"""Source files of the released sglang 0.5.23 wheel, fetched once. Owner: tests (marked network)."""

from __future__ import annotations

import types
import zipfile
from pathlib import Path

from tpc_server.bootstrap.fetch import fetch_pypi

VERSION = "0.5.23"


def load_module(member: str) -> types.ModuleType:
    """One source file of the wheel as a module of its own (it must import nothing of sglang)."""
    with zipfile.ZipFile(fetch_pypi("sglang", VERSION, python_version="3.12")) as wheel:
        source = wheel.read(member).decode()
    module = types.ModuleType(Path(member).stem)
    exec(compile(source, member, "exec"), module.__dict__)
    return module
