"""The released sglang 0.5.23 wheel, fetched once. Owner: tests (marked network)."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

VERSION = "0.5.23"


def wheel_path() -> Path:
    """Path of the wheel in the user's cache, downloaded by pip the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tpc_server" / "wheels"
    found = sorted(folder.glob(f"sglang-{VERSION}-*.whl"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps",
             "--only-binary", ":all:", "--python-version", "3.12", "--implementation", "cp",
             "--abi", "cp312", "--platform", "manylinux_2_34_x86_64",
             "-d", str(folder), f"sglang=={VERSION}"],
            check=True,
            timeout=300,
        )  # fmt: skip
        found = sorted(folder.glob(f"sglang-{VERSION}-*.whl"))
    return found[0]


def load_module(member: str) -> types.ModuleType:
    """One source file of the wheel as a module of its own (it must import nothing of sglang)."""
    with zipfile.ZipFile(wheel_path()) as wheel:
        source = wheel.read(member).decode()
    module = types.ModuleType(Path(member).stem)
    exec(compile(source, member, "exec"), module.__dict__)
    return module
