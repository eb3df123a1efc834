"""A copy of the checkout to build a wheel from: a build writes into its source. Owner: tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copy_source(target: Path) -> Path:
    """The committed and the new files, in `target`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.decode().split("\0"):
        place = target / name
        if name and (ROOT / name).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                place.symlink_to((ROOT / name).readlink())
            else:
                place.write_bytes((ROOT / name).read_bytes())
    return target
