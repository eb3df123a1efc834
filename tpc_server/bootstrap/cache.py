"""The user's cache folder: places, locks, half-made things swept away. Owner: one process a lock.

Nothing in here is ever half made. A thing is built under a name of its own, `NAME.RANDOM`, and a
symlink `NAME` is renamed into place when it is whole; so paths baked into it (shebangs, prefixes)
stay right, and a run that is killed leaves nothing but a folder that the next run sweeps away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .progress import Step


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/tpc_server`, else `~/.cache/tpc_server`; made when missing."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    home = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    root = home / "tpc_server"
    root.mkdir(parents=True, exist_ok=True)
    return root


def sub(*names: str) -> Path:
    """A folder below the cache root, made when missing."""
    path = cache_root().joinpath(*names)
    path.mkdir(parents=True, exist_ok=True)
    return path


def log_file(name: str) -> Path:
    """Where the whole output of a step goes; the next run of that step replaces it."""
    return sub("logs") / f"{name}.log"


@contextlib.contextmanager
def locked(name: str, what: str) -> Iterator[None]:
    """Holds the lock `name` across processes; while another holds it, says so and waits.

    The kernel frees the lock when its holder dies, however it dies.
    """
    path = sub("locks") / f"{name}.lock"
    # Python's descriptors are not inherited: a child left behind by a kill never keeps the lock.
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with Step(f"waiting for another run ({_holder(fd)})") as step:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    step.what = f"waiting for another run ({_holder(fd)})"
                    step.tick()
                    time.sleep(0.1)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{what}, pid {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    return os.pread(fd, 200, 0).decode("utf-8", "replace") or "just starting"


def build_once(folder: Path, name: str, what: str, make: Callable[[Path], None]) -> Path:
    """The folder `folder/name`, made by `make(empty folder)` unless it is there already.

    Call it without the lock; it takes the lock named after the thing. Returns the real path.
    """
    link = folder / name
    done = whole(link)
    if done is not None:
        return done
    with locked(f"{folder.name}-{name}", what):
        done = whole(link)
        if done is not None:
            return done
        sweep(folder, name)
        target = folder / f"{name}.{secrets.token_hex(4)}"
        target.mkdir()
        try:
            make(target)
            publish(target, link)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    return target


def whole(link: Path) -> Path | None:
    """The real folder behind a published name, or None."""
    try:
        return link.resolve(strict=True) if link.is_symlink() else None
    except OSError:
        return None


def publish(target: Path, link: Path) -> None:
    """Makes `link` point to `target` in one step, replacing what it pointed to before."""
    fresh = target.with_name(target.name + ".link")
    if fresh.is_symlink():
        fresh.unlink()
    fresh.symlink_to(target.name, target_is_directory=True)
    os.replace(fresh, link)


def sweep(folder: Path, name: str) -> None:
    """Removes what interrupted runs left of `name`. Only for the holder of its lock."""
    keep = whole(folder / name)
    # Exactly our own random endings: `x-1.*` would also be the folder of `x-1.2`.
    ours = re.compile(re.escape(name) + r"\.[0-9a-f]{8}(\.link)?")
    for path in folder.iterdir():
        if not ours.fullmatch(path.name):
            continue
        if path.is_symlink():
            path.unlink()
        elif keep is None or path.name != keep.name:
            shutil.rmtree(path, ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a small file beside its place and renames it there."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    fresh.write_bytes(data)
    os.replace(fresh, path)
