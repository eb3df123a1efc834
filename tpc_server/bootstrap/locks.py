"""The lock files: exact versions with hashes, one per build. Owner: any process, to read."""

from __future__ import annotations

import hashlib
from pathlib import Path

# In a checkout `requirements/` at the top; in a wheel a folder of this package.
_PLACES = (
    Path(__file__).resolve().parent / "lockfiles",
    Path(__file__).resolve().parents[2] / "requirements",
)


def lock_file(name: str) -> Path:
    """The path of the lock file `name` ("cp313t", "gil", "test", …). Raises FileNotFoundError."""
    for place in _PLACES:
        path = place / f"{name}.txt"
        if path.is_file():
            return path
    raise FileNotFoundError(f"no lock file {name}.txt in {' or '.join(map(str, _PLACES))}")


def builds() -> tuple[str, ...]:
    """The builds that have a lock file, the one we are measured on first."""
    names = {path.stem for place in _PLACES for path in place.glob("*.txt")}
    return tuple(sorted(n for n in names if n.startswith("cp"))) + (("gil",) * ("gil" in names))


def pins(name: str) -> dict[str, str]:
    """Package name -> version of one lock file."""
    found = {}
    for line in lock_file(name).read_text(encoding="utf-8").splitlines():
        requirement = line.split(" \\")[0].strip()
        if "==" in requirement and not requirement.startswith(("#", "--")):
            package, version = requirement.split("==")
            found[package] = version
    return found


def digest(*parts: str) -> str:
    """A short name for what an environment was made of."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
