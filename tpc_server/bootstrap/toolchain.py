"""What building needs: a C compiler, headers, Rust; installed where we may. Owner: one process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from .progress import BootstrapError, StepFailed, duration, run, say

RUST_MINIMUM = (1, 83)
# header -> (Debian package, CPython cannot serve without it)
HEADERS = {
    "openssl/ssl.h": ("libssl-dev", True),
    "zlib.h": ("zlib1g-dev", True),
    "ffi.h": ("libffi-dev", True),
    "bzlib.h": ("libbz2-dev", False),
    "lzma.h": ("liblzma-dev", False),
    "sqlite3.h": ("libsqlite3-dev", False),
    "readline/readline.h": ("libreadline-dev", False),
    "uuid/uuid.h": ("uuid-dev", False),
}
# How much longer this machine takes than a quiet one, as a step of this run has shown.
_PACE: list[float] = []
_MOST_LOAD = 2.0  # of each CPU: in a container the load may be that of a far larger machine
TOOLS = {"cc": "build-essential", "make": "build-essential", "xz": "xz-utils"}


def prepare_c() -> None:
    """Sees to it that CPython can be built, installing Debian packages where we are root there.

    Raises BootstrapError with one line that says what to install.
    """
    needed, wished = missing_packages()
    if not needed and not wished:
        return
    names = [*needed, *wished]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"building CPython needs packages, installing: {' '.join(names)}")
        try:
            install_debian(names)
        except StepFailed as error:
            say(f"could not install them: {error.why}")
        needed, wished = missing_packages()
    if needed:
        raise BootstrapError(
            "building CPython needs a C compiler, make and the headers of OpenSSL, zlib and "
            f"libffi; on Debian or Ubuntu: sudo apt-get install {' '.join([*needed, *wished])}"
        )
    if wished:
        say(f"building without some optional modules, for want of {' '.join(wished)}")


def missing_packages() -> tuple[list[str], list[str]]:
    """Debian packages to install: those that a build needs, those that it can do without."""
    needed = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    wished: list[str] = []
    for header, (package, must) in HEADERS.items():
        if not _has_header(header):
            (needed if must else wished).append(package)
    return needed, wished


def _has_header(header: str) -> bool:
    if shutil.which("cc") is None:
        return False
    done = subprocess.run(
        ["cc", "-E", "-x", "c", "-o", os.devnull, "-"],
        input=f"#include <stdio.h>\n#include <{header}>\n".encode(),
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def install_debian(names: Sequence[str]) -> None:
    """apt-get install; with an update first only if it does not go without. Raises StepFailed."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *names]
    try:
        run(install, "installing build packages", env=env)
    except StepFailed:
        try:
            run(["apt-get", "update"], "updating the package lists", env=env, limit_s=300)
        except StepFailed as error:
            # One dead source among good ones fails the update; the install then still may work.
            say(f"apt-get update: {error.why}")
        run(install, "installing build packages", env=env)


def rust_fault() -> str:
    """Why Rust cannot build tokenizers here, or ""."""
    wanted = ".".join(map(str, RUST_MINIMUM))
    for tool in ("rustc", "cargo"):
        if shutil.which(tool) is None:
            return f"{tool} is not there (Rust >= {wanted} is needed)"
    try:
        done = subprocess.run(
            ["rustc", "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"rustc does not run: {error}"
    found = re.match(r"rustc (\d+)\.(\d+)", done.stdout)
    if not found:
        return f"rustc does not say its version: {(done.stdout + done.stderr).strip()[:80]}"
    if (int(found[1]), int(found[2])) < RUST_MINIMUM:
        return f"Rust {found[1]}.{found[2]} is too old (>= {wanted} is needed)"
    return ""


def require_rust(why: str) -> None:
    """Raises BootstrapError when Rust is missing or too old; `why` says what wants it."""
    fault = rust_fault()
    if fault:
        raise BootstrapError(
            f"{why}: {fault}. Install Rust (from rustup, or a recent enough distribution's cargo "
            "package) and run again; or set TPC_PYTHON to an ordinary CPython >= 3.11, which has "
            "ready-made packages, to go on with a GIL"
        )


def cores() -> int:
    """CPUs that a build may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def quiet_s(one_cpu_s: float, all_cpus_s: float) -> float:
    """What a step takes that runs on one CPU first, then on all, where nothing else does."""
    return one_cpu_s + all_cpus_s / cores()


def note_pace(quiet: float, took: float) -> None:
    """A step is done that was to take `quiet` seconds: later estimates go by what it took."""
    _PACE[:] = [max(1.0, took / quiet)]


def expected(quiet: float) -> str:
    """How long such a step takes here now, in words: by the pace so far, else by the load."""
    count = cores()
    if _PACE:
        pace, why = _PACE[0], ", going by the pace so far"
    else:
        pace, why = 1 + min(_MOST_LOAD, os.getloadavg()[0] / count), ", which are busy"
    text = f"{duration(quiet * pace)} on {count} CPU{'s' * (count > 1)}"
    return text + (why if pace > 1.25 else "")
