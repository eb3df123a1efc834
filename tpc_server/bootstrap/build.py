"""Builds the free-threaded CPython from source into the cache. Owner: one process, under a lock.

A plain build is what CPython's own makefile does by default (-O3). With PGO it is two such builds
with a run of our own step loop between them, instead of the whole test suite (24 minutes). A build
that is interrupted goes on from there the next time (tree.py).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from pathlib import Path

from . import toolchain
from .cache import cache_root, locked, log_file, publish, sub, sweep, whole
from .probe import probe
from .progress import BootstrapError, Share, run, say
from .source import get_tarball, version_of
from .toolchain import cores, prepare_c, require_rust
from .tree import Tree, build_tree

PGO_TASK = Path(__file__).resolve().parents[2] / "perf" / "pgo_task.py"
# pip's bundled wheel stays where ensurepip finds it; only its installation is left out.
CONFIGURE = ("--disable-gil", "--without-ensurepip", "--disable-test-modules")
# What a whole build of 3.13 prints and compiles: for progress only, so near enough is enough.
CONFIGURE_LINES = 780
FILES = 285
# Measured: configure runs on one CPU whatever there is, the compiler on all of them.
CONFIGURE_S = 45
COMPILE_CPU_S = 270


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
        options = [*CONFIGURE, *(["--enable-optimizations"] if pgo else [])]
        kind = "with PGO, twice, " if pgo else ""
        say(f"building a free-threaded CPython {version} from source {kind}once: {expected(pgo)}")
        path = None
        while path is None:
            with build_tree(name, tarball, options, folder) as tree:
                path = _build_in(tree, options, pgo, version)
        return path


def kept() -> str:
    """The names of what interrupted builds left to go on with, or ""."""
    states = (cache_root() / "build").glob("*/state.json")
    return ", ".join(sorted(path.parent.name for path in states))


def expected(pgo: bool) -> str:
    """How long a build takes here, in words."""
    return toolchain.expected(_quiet_s(pgo))


def _quiet_s(pgo: bool) -> float:
    return toolchain.quiet_s(CONFIGURE_S, COMPILE_CPU_S) * (2 if pgo else 1)


def _build_in(tree: Tree, options: list[str], pgo: bool, version: str) -> str | None:
    """Builds and publishes; None when an interrupted run's tree was of no use and is gone now.

    The tree of a build that fails goes too: it would only fail again. Whatever else ends this, a
    signal for one, leaves it to the next run.
    """
    try:
        began, anew = time.monotonic(), not tree.resumed
        _build(tree, options, pgo)
        if anew:
            toolchain.note_pace(_quiet_s(pgo), time.monotonic() - began)
        path = str(tree.home / "bin" / f"python{version.rpartition('.')[0]}")
        made = probe(path)
        if isinstance(made, str):
            raise BootstrapError(f"the build does not run: {made}")
        if made.broken:
            raise BootstrapError(f"the build cannot import {', '.join(made.broken)}")
        publish(tree.home, tree.home.with_suffix(""))
    except BaseException as error:
        shutil.rmtree(tree.home, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        tree.remove()
        if not (tree.resumed and isinstance(error, BootstrapError)):
            raise
        why = str(error).splitlines()[0]
        say(f"what an interrupted run left is of no use ({why}): from the beginning")
        return None
    tree.remove()
    return path


def _build(tree: Tree, options: list[str], pgo: bool) -> None:
    # The user's own PYTHON… variables and build flags must not bend the build.
    drop = ("PYTHON", "CFLAGS", "LDFLAGS", "CPPFLAGS", "MAKEFLAGS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    kind = "CPython with PGO" if pgo else "CPython"
    source, keep = tree.source, (tree.lock_fd,)
    if not tree.configured:
        run(
            ["./configure", *options, f"--prefix={tree.home}"],
            f"configuring {kind}",
            detail=Lines(CONFIGURE_LINES).detail,
            cwd=source,
            env=env,
            log=log_file("configure"),
            pass_fds=keep,
        )
        tree.note_configured()
    done = tree.objects() if tree.resumed else 0
    if done:
        say(f"going on where an interrupted run was: {done} files are compiled")
    # How much of a half-made PGO build is still to come cannot be seen from outside.
    total = FILES * (2 if pgo else 1) if not (pgo and done) else 0
    make = ["make", f"-j{cores()}"]
    if pgo:
        # make puts it into a line of its shell.
        make.append(f"PROFILE_TASK={shlex.quote(str(PGO_TASK)).replace('$', '$$')}")
    run(
        make,
        f"compiling {kind}" + (" twice" if pgo else ""),
        detail=Compiled(total, done if total else 0).detail,
        cwd=source,
        env=env,
        log=log_file("make"),
        pass_fds=keep,
    )
    run(
        ["make", "install"],
        f"installing {kind} into the cache",
        cwd=source,
        env=env,
        log=log_file("make-install"),
        pass_fds=keep,
    )


class Lines:
    """Counts lines of output where their number is known beforehand."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._count = 0

    def detail(self, line: str) -> str:
        """What to show of one line."""
        self._count += 1
        return f"{min(99, 100 * self._count // self._total)} %, {line}"


class Compiled:
    """Counts compiler lines of make's output and names the file at work."""

    def __init__(self, total: int = 0, done: int = 0) -> None:
        self.count = done
        self._share = Share("files", total, done)

    def detail(self, line: str) -> str:
        """What to show of one line."""
        if " -c " in line:
            self.count += 1
            name = next((w for w in reversed(line.split()) if w.endswith((".c", ".S"))), "")
            return f"{self._share.text(self.count)}, {name}"
        return line if line.startswith("Rebuilding") else ""
