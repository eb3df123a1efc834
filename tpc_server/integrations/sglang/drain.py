"""How SGLang ends under us: a drain first, or one line. Owner: main threads, in signal handlers.

SGLang's main process dies of SIGTERM at once, and its schedulers with it. So the plugin takes the
signal there, tells every scheduler that has a frontend (SIGTERM, which it takes there too), waits
until their requests are answered, and lets the signal do what it would have done. What schedulers
have to say goes into a memory file of the main process, a line each: `+pid` has a frontend, `-pid`
has drained, `!text` cannot serve.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final, NoReturn

NOTES: Final = "TPC_SGLANG_NOTES"
_LOOK_S: Final = 0.05
_GRACE_S: Final = 3.0


class MainProcess:
    """SIGTERM of SGLang's main process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._fd = os.memfd_create("tpc-notes")
        self._begun = False
        self._previous: Any = signal.SIG_DFL
        os.environ[NOTES] = f"{os.getpid()}:{self._fd}"

    def install(self) -> None:
        """From the main thread."""
        self._previous = signal.signal(signal.SIGTERM, self._on_term)

    def notes(self) -> list[str]:
        """What the schedulers said so far."""
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, size, 0).decode("utf-8", "replace").splitlines()

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        failures = [line[1:] for line in self.notes() if line.startswith("!")]
        if failures:
            sys.stderr.write(f"tpc-server: error: {failures[0]}\n")
            sys.stderr.flush()
            os._exit(1)
        if not self._begun:  # a second signal waits for nothing
            self._begun = True
            self._drain()
        self._go_on(number, frame)

    def _drain(self) -> None:
        waiting = _pids(self.notes(), "+") - _pids(self.notes(), "-")
        for pid in waiting:
            try:
                os.kill(pid, signal.SIGTERM)
            except OSError:
                pass
        deadline = time.monotonic() + self._seconds + _GRACE_S
        while time.monotonic() < deadline:
            waiting = {pid for pid in waiting - _pids(self.notes(), "-") if _runs(pid)}
            if not waiting:
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
        return

    def on_term(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(
            target=_drain_scheduler, args=(server, seconds), name="tpc-drain", daemon=True
        ).start()

    try:
        signal.signal(signal.SIGTERM, on_term)
    except ValueError:  # not the main thread: it dies at once, as without us
        pass


def _drain_scheduler(server: Any, seconds: float) -> None:
    try:
        server.drain(seconds)
    finally:
        _note(f"-{os.getpid()}")
    # The main process ends now, and we with it; when it does not, the signal was for us alone.
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGTERM)


def fail(text: str) -> NoReturn:
    """In a scheduler that cannot serve: ends SGLang with one line."""
    text = " ".join(text.split())
    if _note(f"!{text}"):
        os.kill(int(os.environ[NOTES].partition(":")[0]), signal.SIGTERM)
        time.sleep(_GRACE_S)  # it ends, and we with it
        raise SystemExit(1)
    raise SystemExit(f"tpc-server: error: {text}")


def _note(line: str) -> bool:
    """Tell the main process; False where there is none of ours."""
    pid, _, fd = os.environ.get(NOTES, "").partition(":")
    if not pid:
        return False
    try:
        with open(f"/proc/{pid}/fd/{fd}", "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())
    except OSError:
        return False
    return True


def _pids(lines: list[str], mark: str) -> set[int]:
    return {int(line[1:]) for line in lines if line.startswith(mark) and line[1:].isdigit()}


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
