"""Finds the interpreter, in the documented order, building one if need be. Owner: one process.

TPC_PYTHON, `python3.13t` on PATH, the cache, uv, a build from source; when all of that fails an
ordinary interpreter, with one honest line. TPC_PGO=1 asks for a profile-guided build: what is on
PATH then only counts if it is one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from . import build, pyenv, uv
from .cache import cache_root, sub, write_atomically
from .locks import builds
from .probe import Interpreter, probe
from .progress import BootstrapError, say

FREE_THREADED_COMMAND = "python3.13t"
GIL_COMMANDS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
# After a failed try the next runs start at once; `setup` always tries again.
RETRY_AFTER_S = 24 * 3600


Look = Callable[[], "Interpreter | str"]


class Tried(NamedTuple):
    """One place that was looked at, and what was found there."""

    where: str
    verdict: str


def wants_pgo() -> bool:
    """True when the user asked for a profile-guided build."""
    return os.environ.get("TPC_PGO", "") not in ("", "0")


def find(tried: list[Tried], *, retry: bool = False) -> Interpreter:
    """The interpreter to use; what was looked at is appended to `tried`.

    `retry` forgets that a build failed lately. Raises BootstrapError when there is none at all, or
    when TPC_PYTHON names none.
    """
    failed = "" if retry else failed_lately()
    makers: list[tuple[str, Look]] = [("uv", uv.install), ("build from source", _from_source)]
    found = _first(tried, [] if failed else makers)
    if found is not None:
        _forget_failure()
        if not found.free_threaded:
            say(f"TPC_PYTHON is {found}: cores will share one GIL")
        return found
    if failed:
        tried.append(Tried("uv, build from source", f"not tried again yet: {failed}"))
    else:
        failed = "; ".join(f"{t.where}: {t.verdict.splitlines()[0]}" for t in tried)
        _remember_failure(failed)
    found = _with_gil(tried, failed)
    say(
        f"no free-threaded interpreter to be had, going on with {found}: cores share one "
        f"GIL (`./tpc doctor` says why, `./tpc setup` tries again)"
    )
    return found


def look(tried: list[Tried]) -> Interpreter | None:
    """What is here already, like `find` but making, remembering and saying nothing.

    None: the next run would first make one. Raises BootstrapError as `find` does.
    """
    found = _first(tried, [])
    failed = failed_lately()
    return _with_gil(tried, failed) if found is None and failed else found


def _first(tried: list[Tried], makers: list[tuple[str, Look]]) -> Interpreter | None:
    chosen = os.environ.get("TPC_PYTHON")
    if chosen:
        return _named(chosen, tried)
    places = [(f"{FREE_THREADED_COMMAND} on PATH", _on_path), ("cache", _cached), *makers]
    for name, search in places:
        found = search()
        if isinstance(found, Interpreter):
            tried.append(Tried(name, f"used: {found} at {found.executable}"))
            return found
        tried.append(Tried(name, found))
    return None


def _named(chosen: str, tried: list[Tried]) -> Interpreter:
    path = shutil.which(chosen)
    if path is None:
        raise BootstrapError(f"TPC_PYTHON={chosen}: no such program")
    found = probe(os.path.abspath(path))
    fault = found if isinstance(found, str) else found.fault(builds())
    if isinstance(found, str) or fault:
        raise BootstrapError(f"TPC_PYTHON={chosen}: {fault}")
    tried.append(Tried("TPC_PYTHON", f"used: {found} at {found.executable}"))
    return found


def _on_path() -> Interpreter | str:
    path = pyenv.which(FREE_THREADED_COMMAND)
    return "not there" if path is None else _usable(path)


def _usable(path: str) -> Interpreter | str:
    """The free-threaded interpreter at `path`, or why it is not one for us."""
    found = probe(os.path.abspath(path))
    if isinstance(found, str):
        return found
    fault = found.fault(builds())
    if fault:
        return fault
    if not found.free_threaded:
        return f"{found}, which is not what its name says"
    if wants_pgo() and not found.optimized:
        return f"{found}: not profile-guided, and TPC_PGO asks for that"
    return found


def _cached() -> Interpreter | str:
    verdict = "nothing yet"
    for path in build.cached(wants_pgo()) + uv.cached():
        found = _usable(path)
        if isinstance(found, Interpreter):
            return found
        verdict = found
    return verdict


def _from_source() -> Interpreter | str:
    try:
        path = build.from_source(wants_pgo())
    except BootstrapError as error:
        return str(error)
    return _usable(path)


def ordinary(commands: Sequence[str] = GIL_COMMANDS) -> Interpreter | None:
    """An interpreter with a GIL that is here, or None. For tools, and as last way."""
    found = (found for _, found in _gil_candidates(commands))
    return next((one for one in found if isinstance(one, Interpreter)), None)


def _gil_candidates(commands: Sequence[str]) -> Iterator[tuple[str, Interpreter | str]]:
    """(command, the interpreter behind it or why it will not do); last the one this runs on."""
    for command in (*commands, sys.executable):
        path = pyenv.which(command)
        found = "not there" if path is None else probe(os.path.abspath(path))
        if isinstance(found, Interpreter):
            fault = found.fault(builds())
            if found.free_threaded:
                fault = f"{found}: not an ordinary build"
            yield command, fault or found
        else:
            yield command, found


def _with_gil(tried: list[Tried], failed: str) -> Interpreter:
    for command, found in _gil_candidates(GIL_COMMANDS):
        if isinstance(found, Interpreter):
            tried.append(Tried(command, f"used: {found} at {found.executable}"))
            return found
        tried.append(Tried(command, found))
    raise BootstrapError(
        "no interpreter to run on: neither a free-threaded CPython 3.13 nor any CPython >= 3.11\n"
        + "\n".join(f"  {t.where}: {t.verdict}" for t in tried)
        + (f"\n{failed}" if failed and failed not in str(tried) else "")
    )


def failed_lately() -> str:
    """Why making one failed within RETRY_AFTER_S, or ""."""
    try:
        note = json.loads((cache_root() / "failed.json").read_bytes())
        if note["pgo"] == wants_pgo() and 0 <= time.time() - note["at"] < RETRY_AFTER_S:
            return str(note["why"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ""


def _remember_failure(why: str) -> None:
    note = {"at": time.time(), "pgo": wants_pgo(), "why": why, "by": sys.version.split()[0]}
    write_atomically(sub() / "failed.json", json.dumps(note).encode())


def _forget_failure() -> None:
    try:
        (cache_root() / "failed.json").unlink()
    except FileNotFoundError:
        pass
