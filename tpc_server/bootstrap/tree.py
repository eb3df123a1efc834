"""The build tree of CPython, kept across interrupted runs. Owner: the holder of the build's lock.

A killed build goes on where it was: the unpacked source, what configure found and every object file
stay under a name that says the version and the kind of build, with a note of the prefix that is
baked into them. The tree has a lock of its own that make and its compilers inherit, so that nobody
works in it while a killed run's compiler still does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .cache import sub, write_atomically
from .progress import Step
from .source import unpack

ORPHANS_LIMIT_S = 60
# A compiler that was killed may have left half a file; what was written last is made again.
SUSPECT_S = 5
OBJECTS = (".o", ".a", ".so")


class Tree:
    """One build tree: `source` to build in, `home` the prefix that it is configured for.

    `resumed` is True when it holds the work of an interrupted run.
    """

    def __init__(self, folder: Path, state: dict[str, Any], fd: int, resumed: bool) -> None:
        self.folder = folder
        self.resumed = resumed
        self.lock_fd = fd
        self._state = state

    @property
    def source(self) -> Path:
        return self.folder / str(self._state["source"])

    @property
    def home(self) -> Path:
        return Path(str(self._state["home"]))

    @property
    def configured(self) -> bool:
        return bool(self._state["configured"])

    def note_configured(self) -> None:
        """The next run need not configure again."""
        self._state["configured"] = True
        self.save()

    def save(self) -> None:
        """Makes the state known to the next run."""
        write_atomically(self.folder / "state.json", json.dumps(self._state).encode())

    def objects(self) -> int:
        """How many compiled files there are."""
        return sum(1 for path in _objects(self.source) if path.suffix == ".o")

    def remove(self) -> None:
        """The work is done, or of no use."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # holds another build's tree
            self.folder.parent.rmdir()


@contextlib.contextmanager
def build_tree(
    name: str, tarball: Path, options: Sequence[str], python_folder: Path
) -> Iterator[Tree]:
    """The tree `name`, as an interrupted run left it, or with the source just unpacked.

    Unpacked anew when it was made of another tarball or with other options.
    """
    made_of = [tarball.name, tarball.stat().st_size, list(options), str(python_folder)]
    folder = sub("build") / name
    fd = _lock(folder)
    if fd is None:
        # Children that do not end write into what they have open, and that is nobody's now.
        shutil.rmtree(folder, ignore_errors=True)
        fd = _lock(folder)
        assert fd is not None
    try:
        state = _read(folder, made_of)
        resumed = state is not None
        if state is None:
            state = _unpack(folder, name, tarball, python_folder)
            state["made_of"] = made_of
        tree = Tree(folder, state, fd, resumed)
        if resumed:
            _drop_suspects(tree.source)
        else:
            tree.save()
        yield tree
    finally:
        os.close(fd)


def _unpack(folder: Path, name: str, tarball: Path, python_folder: Path) -> dict[str, Any]:
    for path in folder.iterdir():
        if path.name != "lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    work = folder / "work"
    work.mkdir()
    return {
        "source": str(unpack(tarball, work).relative_to(folder)),
        "home": str(python_folder / f"{name}.{secrets.token_hex(4)}"),
        "configured": False,
    }


def _lock(folder: Path) -> int | None:
    """The tree's lock; None when a killed run's children do not let go of it."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    with Step("waiting for compilers of a killed run") as step:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except OSError:
                if step.elapsed_s() > ORPHANS_LIMIT_S:
                    os.close(fd)
                    return None
                step.tick()
                time.sleep(0.1)


def _read(folder: Path, made_of: Sequence[object]) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / "state.json").read_bytes())
        whole = state["made_of"] == made_of and (folder / state["source"]).is_dir()
        return dict(state) if whole and {"home", "configured"} <= set(state) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _objects(source: Path) -> Iterator[Path]:
    for where, _, names in os.walk(source):
        for name in names:
            if name.endswith(OBJECTS):
                yield Path(where, name)


def _drop_suspects(source: Path) -> None:
    ages = {path: path.stat().st_mtime for path in _objects(source)}
    newest = max(ages.values(), default=0.0)
    for path, written in ages.items():
        if written >= newest - SUSPECT_S:
            path.unlink()
