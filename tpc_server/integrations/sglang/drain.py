"""How SGLang ends under us: a drain first, or one line. Owner: main threads, in signal handlers.

SGLang's main process dies of SIGTERM at once, and its schedulers with it. So the plugin takes the
signal there, tells every scheduler that has a frontend (SIGTERM, which it takes there too), waits
until their requests are answered, and lets the signal do what it would have done. The signal may
also come to all processes at once (a process group, a systemd unit): no scheduler, with a frontend
or without one, ends by itself while a drain is on, because SGLang takes the end of one for a fault
and kills all. What there is to say goes into a memory file of the main process, a line each: `+pid`
has a frontend, `-pid` has drained, `!text` cannot serve; of the main process itself `~` a drain has
begun, `.` it ends.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NoReturn

NOTES: Final = "TPC_SGLANG_NOTES"
_LOOK_S: Final = 0.05
_GRACE_S: Final = 3.0

logger = logging.getLogger("tpc_server")


class MainProcess:
    """SIGTERM of SGLang's main process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pid = os.getpid()
        self._fd = os.memfd_create("tpc-notes")
        self._begun = False
        self._previous: Any = signal.SIG_DFL
        os.environ[NOTES] = f"{os.getpid()}:{self._fd}"

    def install(self) -> None:
        """From the main thread."""
        self._previous = signal.signal(signal.SIGTERM, self._on_term)
        # Before multiprocessing ends and joins its children: they need not wait for more.
        atexit.register(self._leave)

    def _leave(self) -> None:
        if os.getpid() == self._pid:
            _note(".")

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a process that was forked without a program of its own
            self._go_on(number, frame)
            return
        failures = [line[1:] for line in _notes() if line.startswith("!")]
        if failures:
            sys.stderr.write(f"tpc-server: error: {failures[0]}\n")
            sys.stderr.flush()
            os._exit(1)
        if not self._begun:  # a second signal waits for nothing
            self._begun = True
            self._drain()
        self._go_on(number, frame)

    def _drain(self) -> None:
        _note("~")
        waiting = _open(_notes())
        for pid in waiting:
            try:
                os.kill(pid, signal.SIGTERM)
            except OSError:
                pass
        deadline = time.monotonic() + self._seconds + _GRACE_S
        while time.monotonic() < deadline:
            if not waiting & _open(_notes()):
                return
            time.sleep(_LOOK_S)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        if callable(self._previous):
            self._previous(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Only process 1 of a container without an init is still here.
        raise SystemExit(128 + number)


def stand_by(server: Any, seconds: float) -> None:
    """In a scheduler that has a frontend: SIGTERM drains it, while the scheduler goes on."""
    if not _note(f"+{os.getpid()}"):
        if os.environ.get(NOTES):
            logger.warning("SIGTERM will drain nothing: the main process's notes cannot be written")
        return

    def drain() -> None:
        try:
            server.drain(seconds)
            server.leave()
        finally:
            _note(f"-{os.getpid()}")

    _Ending(drain).install()


def follow() -> None:
    """In any other process of SGLang's: SIGTERM does not end it before the drain is over."""
    if os.environ.get(NOTES):
        _Ending(lambda: None).install()


class _Ending:
    """SIGTERM of a process that is not the main one: first what is to be done, on a thread, then
    its end, but not before that of the others."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._pid = os.getpid()
        self._begun = False

    def install(self) -> None:
        """From the main thread; on another one nothing happens: it dies at once, as without us."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # forked, without a program of its own
            self._end()
        elif not self._begun:  # it comes twice where it came to all at once
            self._begun = True
            threading.Thread(target=self._run, name="tpc-drain", daemon=True).start()

    def _run(self) -> None:
        try:
            self._first()
        finally:
            _outlast()
            self._end()

    def _end(self) -> None:
        # Python lets only the main thread do that, which may be in a call that never returns.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
        os.kill(os.getpid(), signal.SIGTERM)


def _outlast() -> None:
    """As long as a drain of other schedulers is on, and a little: the main process ends then, and
    we with it. When it does not, the signal was for us alone."""
    main = int(os.environ[NOTES].partition(":")[0])
    until = time.monotonic() + _GRACE_S
    while time.monotonic() < until and _runs(main):
        notes = _notes()
        if "." in notes:
            return
        if "~" in notes and _open(notes):
            until = time.monotonic() + _GRACE_S
        time.sleep(_LOOK_S)


def fail(text: str) -> NoReturn:
    """In a scheduler that cannot serve: ends SGLang with one line."""
    text = " ".join(text.split())
    if _note(f"!{text}"):
        main = int(os.environ[NOTES].partition(":")[0])
        until = time.monotonic() + _GRACE_S
        # It ends, and we with it. More than once: a signal that comes just before a call that waits
        # is seen when that returns.
        while time.monotonic() < until and _runs(main):
            with suppress(ProcessLookupError):
                os.kill(main, signal.SIGTERM)
            time.sleep(_LOOK_S)
        raise SystemExit(1)
    raise SystemExit(f"tpc-server: error: {text}")


def _note(line: str) -> bool:
    """Tell the main process; False where there is none of ours."""
    if not os.environ.get(NOTES):
        return False
    try:
        with open(_path(), "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())
    except OSError:
        return False
    return True


def _notes() -> list[str]:
    """What was said so far; nothing once the main process is gone."""
    try:
        with open(_path(), "rb") as file:
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _path() -> str:
    pid, _, fd = os.environ[NOTES].partition(":")
    return f"/proc/{pid}/fd/{fd}"


def _open(notes: list[str]) -> set[int]:
    """Schedulers whose frontends have not drained, as far as they run."""
    return {pid for pid in _pids(notes, "+") - _pids(notes, "-") if _runs(pid)}


def _pids(lines: list[str], mark: str) -> set[int]:
    return {int(line[1:]) for line in lines if line.startswith(mark) and line[1:].isdigit()}


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
