"""Virtual environments in the cache, one per interpreter and lock file. Owner: one process a lock.

An environment is made of exactly the lock file's files (checked by hash, no dependency resolved),
so two machines with the same key have the same packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from . import toolchain
from .cache import build_once, cache_root, locked, log_file, sub
from .fetch import pip_detail
from .locks import digest, lock_file, pins
from .probe import Interpreter
from .progress import BootstrapError, Share, StepFailed, run, say
from .toolchain import require_rust

# Builds for which the index has no ready-made tokenizers.
NEEDS_RUST = ("cp313t",)
# Their number and the time of one CPU, for progress: near enough is enough.
CRATES = 121
CRATES_CPU_S = 280
# Variables that would make pip or venv do something else than what the lock file says.
BENDING = (
    *("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"),
    *("PIP_CONSTRAINT", "PIP_REQUIREMENT", "PIP_REQUIRE_VIRTUALENV"),
)


def ready(interpreter: Interpreter, lock: str | None = None) -> Path | None:
    """The Python of the environment if it is there already, else None."""
    python = sub("venv") / _key(interpreter, lock or interpreter.build) / "bin" / "python"
    # Through the link inside the environment: None as well when its interpreter is gone.
    return python.parent.resolve() / "python" if os.access(python, os.X_OK) else None


def environment(interpreter: Interpreter, lock: str | None = None) -> Path:
    """The Python of the environment of one lock file (default: the build's own), made if missing.

    Raises BootstrapError.
    """
    found = ready(interpreter, lock)
    if found is not None:
        return found
    name = lock or interpreter.build
    if name in NEEDS_RUST:
        require_rust(f"the tokenizers package has to be built for {interpreter}")

    def make(target: Path) -> None:
        _make(interpreter, name, target)

    key = _key(interpreter, name)
    folder = build_once(sub("venv"), key, f"making the environment {key}", make)
    python = folder / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise BootstrapError(f"{python} does not run: its interpreter is gone; remove {folder}")
    return python


def add(python: Path, lock: str) -> None:
    """Adds one more lock file's packages to an environment, once. Raises BootstrapError."""
    home = python.parent.parent
    mark = home / f"added-{lock}-{digest(_text(lock))}"
    if mark.exists():
        return
    with locked(f"add-{home.name}", f"adding {lock} packages"):
        if not mark.exists():
            _install(python, lock)
            mark.touch()


def _key(interpreter: Interpreter, lock: str) -> str:
    version = ".".join(map(str, interpreter.version)) + ("t" if interpreter.free_threaded else "")
    # The path too: two interpreters of one version may differ in how they were built.
    where = os.path.realpath(interpreter.executable)
    return f"{lock}-{version}-{digest(where, *map(_text, (lock, 'build', 'pip')))}"


def _text(lock: str) -> str:
    return lock_file(lock).read_text(encoding="utf-8")


def _make(interpreter: Interpreter, lock: str, target: Path) -> None:
    what = f"making the environment for {interpreter}"
    run([interpreter.executable, "-I", "-m", "venv", str(target)], what, env=_clean())
    python = target / "bin" / "python"
    # One known pip: which options it takes and how it builds must not depend on the interpreter.
    _install(python, "pip")
    _install(python, lock)


def _install(python: Path, lock: str) -> None:
    count = len(pins(lock))
    what = f"installing {count} packages ({lock})" if count > 1 else f"installing {lock}"
    env = {**_clean(), "PIP_BUILD_CONSTRAINT": str(lock_file("build"))}
    argv = [str(python), "-I", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    argv += ["--disable-pip-version-check", "-v"]
    argv += ["--no-deps", "--require-hashes", "-r", str(lock_file(lock))]
    kept = cache_root() / "build" / f"packages-{python.parent.parent.name.rpartition('.')[0]}"
    resumed = kept.exists()
    detail = Installing(0)
    if lock in NEEDS_RUST:
        detail = Installing(0 if resumed else CRATES)
        argv += _keep_work(python, kept, env)
        say(
            "going on with the packages where an interrupted run was"
            if resumed
            else f"packages are compiled once, tokenizers above all: {expected()}"
        )
    log = log_file(f"install-{lock}")
    try:
        run(argv, what, detail=detail.detail, env=env, log=log)
    except StepFailed as error:
        if resumed:  # what it went on from may be the fault
            shutil.rmtree(kept, ignore_errors=True)
        raise BootstrapError(f"{error}\n{_advice(error)}".rstrip()) from error
    shutil.rmtree(kept, ignore_errors=True)


def expected() -> str:
    """How long compiling the packages takes here, in words."""
    return toolchain.expected(toolchain.quiet_s(45, CRATES_CPU_S))


def _keep_work(python: Path, kept: Path, env: dict[str, str]) -> list[str]:
    """Makes a build's work outlast an interruption; returns options for pip.

    cargo's output goes to `kept` (it knows what of it still holds). pip keeps each wheel that it
    has built in its cache; where that is switched off, it gets one there.
    """
    kept.mkdir(parents=True, exist_ok=True)
    env.setdefault("CARGO_TARGET_DIR", str(kept / "cargo"))
    argv = [str(python), "-I", "-m", "pip", "cache", "dir"]
    on = subprocess.run(argv, env=env, capture_output=True, check=False).returncode == 0
    return [] if on else ["--cache-dir", str(kept / "pip")]


def _advice(error: StepFailed) -> str:
    if "HASHES" in error.tail or "hash" in error.tail.lower():
        return "A file differs from the one in the lock file; look at pip's find-links and index."
    if "Connection" in error.tail or "No matching distribution" in error.tail:
        return "Is the package index reachable? pip's own configuration applies (pip config list)."
    return ""


class Installing:
    """The telling lines of `pip install -v`, and cargo's among them, counted."""

    def __init__(self, crates: int) -> None:
        self._count = 0
        self._crates = crates
        self._share: Share | None = None

    def detail(self, line: str) -> str:
        """What to show of one line."""
        words = line.split()
        if words[0] in ("Collecting", "Downloading", "Building", "Installing", "Created"):
            return " ".join(words[:4])
        if words[0] == "Compiling" and len(words) > 2:
            if self._share is None:  # its clock starts with the first one
                self._share = Share("crates", self._crates)
            self._count += 1
            return f"compiled {self._share.text(self._count)}, {words[1]} {words[2]}"
        return pip_detail(line) if words[0] == "Progress" else ""


def _clean() -> dict[str, str]:
    """The environment without what would bend another Python's environment."""
    return {name: value for name, value in os.environ.items() if name not in BENDING}
