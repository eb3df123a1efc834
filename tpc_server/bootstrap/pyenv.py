"""Where a command really is, when a version manager's shim stands on PATH. Owner: any process.

pyenv puts one script per command on PATH that looks up the version of this folder, and fails with
eight lines where the command exists in another version only. The interpreter behind it is asked
instead: a fixed path, no script that answers differently tomorrow, and no half second per start.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path


def which(command: str) -> str | None:
    """Like shutil.which, for a versioned `pythonX.Y[t]`: never a shim, also when not selected."""
    path = shutil.which(command)
    if not re.fullmatch(r"python\d+\.\d+t?", command):
        return path
    if path is not None and not _is_shim(path):
        return path
    found = installed(command)
    return found[0] if found else None


def installed(command: str) -> list[str]:
    """The command in every version that pyenv holds, newest first."""
    versions = _root() / "versions"
    found: list[tuple[list[int], str]] = []
    for path in versions.glob(f"*/bin/{command}"):
        if os.access(path, os.X_OK):
            numbers = [int(n) for n in re.findall(r"\d+", path.parts[-3])]
            found.append((numbers, str(path)))
    return [path for _, path in sorted(found, reverse=True)]


def _root() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")


def _is_shim(path: str) -> bool:
    return Path(path).parent == _root() / "shims" or Path(path).parent.name == "shims"
