"""Builds the free-threaded CPython from source into the cache. Owner: one process, under a lock.

A plain build is what CPython's own makefile does by default (-O3). With PGO it is two such builds
with a run of our own step loop between them, instead of the whole test suite (24 minutes).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

from .cache import locked, log_file, publish, sub, sweep, whole
from .probe import probe
from .progress import BootstrapError, run, say
from .source import get_tarball, unpack, version_of
from .toolchain import cores, prepare_c, require_rust

PGO_TASK = Path(__file__).resolve().parents[2] / "perf" / "pgo_task.py"
# pip's bundled wheel stays where ensurepip finds it; only its installation is left out.
CONFIGURE = ("--disable-gil", "--without-ensurepip", "--disable-test-modules")


def cached(pgo: bool) -> list[str]:
    """Paths of interpreters built before, the wanted kind first, newer versions first.

    A plain one is no answer to a wish for PGO; the other way round it is better than nothing.
    """
    plain: list[tuple[tuple[int, int, int], str]] = []
    optimized: list[tuple[tuple[int, int, int], str]] = []
    for link in sub("python").iterdir():
        made = re.fullmatch(r"cpython-(\d+)\.(\d+)\.(\d+)t(-pgo)?", link.name)
        home = whole(link) if made else None
        if made and home is not None:
            version = (int(made[1]), int(made[2]), int(made[3]))
            path = str(home / "bin" / f"python{made[1]}.{made[2]}")
            (optimized if made[4] else plain).append((version, path))
    groups = (optimized,) if pgo else (plain, optimized)
    return [path for group in groups for _, path in sorted(group, reverse=True)]


def from_source(pgo: bool) -> str:
    """Builds unless another run has done it meanwhile; the interpreter's path.

    Raises BootstrapError when something that it needs is missing or the build fails.
    """
    if pgo and not PGO_TASK.is_file():
        raise BootstrapError("TPC_PGO needs a checkout: its profile task is no part of the wheel")
    with locked("python", "building CPython"):
        made = cached(pgo)
        if made and (pgo or "-pgo" not in made[0]):
            return made[0]
        # Before minutes of building: without Rust the interpreter would be of no use.
        require_rust("the tokenizers package has to be built for a free-threaded CPython 3.13")
        prepare_c()
        tarball = get_tarball()
        version = version_of(tarball)
        folder = sub("python")
        name = f"cpython-{version}t{'-pgo' if pgo else ''}"
        sweep(folder, name)
        # A killed run's compiler may still be at work there and put files back: never its folder.
        shutil.rmtree(sub("build"), ignore_errors=True)
        work = sub("build", secrets.token_hex(4))
        home = folder / f"{name}.{secrets.token_hex(4)}"
        say(f"building a free-threaded CPython {version} from source, once; a few minutes")
        try:
            _build(unpack(tarball, work), home, pgo)
            path = str(home / "bin" / f"python{version.rpartition('.')[0]}")
            made_one = probe(path)
            if isinstance(made_one, str):
                raise BootstrapError(f"the build does not run: {made_one}")
            if made_one.broken:
                raise BootstrapError(f"the build cannot import {', '.join(made_one.broken)}")
            publish(home, folder / name)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(sub("build"), ignore_errors=True)
        return path


def _build(source: Path, home: Path, pgo: bool) -> None:
    # The user's own PYTHON… variables and build flags must not bend the build.
    drop = ("PYTHON", "CFLAGS", "LDFLAGS", "CPPFLAGS", "MAKEFLAGS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    kind = "CPython with PGO" if pgo else "CPython"
    options = [*CONFIGURE, f"--prefix={home}"] + (["--enable-optimizations"] if pgo else [])
    run(
        ["./configure", *options],
        f"configuring {kind}",
        cwd=source,
        env=env,
        log=log_file("configure"),
    )
    make = ["make", f"-j{cores()}"]
    if pgo:
        make.append(f"PROFILE_TASK={PGO_TASK}")
    run(
        make,
        f"compiling {kind}" + (" twice" if pgo else ""),
        detail=Compiled().detail,
        cwd=source,
        env=env,
        log=log_file("make"),
    )
    run(
        ["make", "install"],
        f"installing {kind} into the cache",
        cwd=source,
        env=env,
        log=log_file("make-install"),
    )


class Compiled:
    """Counts compiler lines of make's output and names the file at work."""

    def __init__(self) -> None:
        self.count = 0

    def detail(self, line: str) -> str:
        """What to show of one line."""
        if " -c " in line:
            self.count += 1
            name = next((w for w in reversed(line.split()) if w.endswith((".c", ".S"))), "")
            return f"{self.count} files, {name}"
        return line if line.startswith("Rebuilding") else ""
