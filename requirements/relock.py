"""Writes the lock files' hashes: `python requirements/relock.py [NAME…]`. Owner: one process.

The pins in `NAME.txt` are what a person edits (`name==version` lines, in any state of hashes); this
asks the package index, through uv, for the files of those versions and writes back the hashes of
the ones that the build can use: its own wheels, pure wheels, and the source. A file that says
`--only-binary :all:` is for an environment with a GIL beside ours (tests/gil_env.py): wheels only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# lock -> (Python that uv resolves for, wheels of that build by their Python and ABI tags)
BUILDS = {
    "cp313t": ("3.13", r"cp313-cp313t"),
    "cp314t": ("3.14", r"cp314-cp314t|cp315-abi3\.abi3t"),
    "gil": ("3.11", r"cp31[1-4]-cp31[1-4]|cp3\d+-abi3"),
}
NO_HASHES = "build"
WHEELS_ONLY = "--only-binary :all:"
# Installed into every build, so the wheels of all of them.
ANY = ("3.11", "|".join(tags for _, tags in BUILDS.values()))


def main(names: list[str]) -> int:
    for path in sorted(HERE.glob("*.txt")):
        if path.stem != NO_HASHES and (not names or path.stem in names):
            relock(path)
    return 0


def relock(path: Path) -> None:
    """Rewrites one lock file in place: its leading comment and its pins, with fresh hashes."""
    text = path.read_text(encoding="utf-8")
    comment = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    pins = re.findall(r"^([\w.-]+==[\w.+!-]+)", text, re.MULTILINE)
    wheels_only = WHEELS_ONLY in text.splitlines()
    python, tags = BUILDS["gil"] if wheels_only else BUILDS.get(path.stem, ANY)
    wanted = re.compile(rf"-((py2\.)?py3-none|{tags})-")
    out = [comment + f"{WHEELS_ONLY}\n" * wheels_only]
    for package in resolve(pins, python):
        files = [package["sdist"]] if "sdist" in package and not wheels_only else []
        files += [f for f in package.get("wheels", ()) if wanted.search(name_of(f))]
        files = [f for f in files if "-win" not in name_of(f)]
        if not files:
            raise SystemExit(f"{path.name}: no file of {package['name']} suits this build")
        hashes = sorted({f["hashes"]["sha256"] for f in files})
        lines = [f"{package['name']}=={package['version']}"]
        lines += [f"    --hash=sha256:{value}" for value in hashes]
        out.append(" \\\n".join(lines) + "\n")
    path.write_text("".join(out), encoding="utf-8")
    print(f"{path.name}: {len(pins)} pins")


def resolve(pins: list[str], python: str) -> list[dict[str, Any]]:
    """What uv knows of exactly these versions, without their dependencies."""
    with tempfile.TemporaryDirectory() as temp:
        pins_file, out = Path(temp) / "pins.txt", Path(temp) / "pylock.toml"
        pins_file.write_text("\n".join(pins) + "\n", encoding="utf-8")
        argv = ["uv", "pip", "compile", "--quiet", "--universal", "--no-deps"]
        argv += [
            "--no-python-downloads",
            "--python-version",
            python,
            "--format",
            "pylock.toml",
            "-o",
            str(out),
        ]
        subprocess.run([*argv, str(pins_file)], check=True)
        packages: list[dict[str, Any]] = tomllib.loads(out.read_text("utf-8"))["packages"]
    if len(packages) != len(pins):
        raise SystemExit(f"{len(pins)} pins, {len(packages)} answers")
    return packages


def name_of(file: dict[str, Any]) -> str:
    """The file's name, from its address when it is not given."""
    return str(file.get("name") or file["url"].rpartition("/")[2])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
