"""Live progress of the steps of the bootstrap, on stderr. Owner: the one thread that runs a step.

On a terminal: one line, rewritten. Elsewhere: whole lines, and none for a step that is over before
two seconds; then at most one every eight seconds.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

TTY_AFTER_S = 0.3
PLAIN_AFTER_S = 2.0
TTY_EVERY_S = 0.1
PLAIN_EVERY_S = 8.0
TAIL_LINES = 25


class BootstrapError(Exception):
    """Something that the user has to know; the message is for them, whole, without a traceback."""


class StepFailed(BootstrapError):
    """A command of a step ended badly. `tail` holds its last lines of output."""

    def __init__(self, what: str, why: str, tail: str, log: Path | None) -> None:
        place = f"\n(whole output: {log})" if log is not None else ""
        super().__init__(f"{what}: {why}\n{tail}{place}".rstrip())
        self.tail = tail
        self.why = why


def say(line: str) -> None:
    """One line to the user."""
    sys.stderr.write(f"tpc: {line}\n")
    sys.stderr.flush()


def duration(seconds: float) -> str:
    """`about 40 s`, `about 4 minutes`."""
    if seconds < 90:
        return f"about {max(10, round(seconds / 10) * 10):.0f} s"
    return f"about {seconds / 60:.0f} minutes"


class Share:
    """How much of a known amount is done and how long the rest takes, as text."""

    def __init__(self, unit: str, total: int, done: int = 0) -> None:
        self._unit = unit
        self._total = total  # 0: not known
        self._first = done
        self._began = time.monotonic()

    def text(self, done: int) -> str:
        """`120 of 285 files, about 2 minutes left`; just the count when the total is not known."""
        if not self._total:
            return f"{done} {self._unit}"
        total = max(self._total, done)
        text = f"{done} of {total} {self._unit}"
        made, spent = done - self._first, time.monotonic() - self._began
        # The first ones tell too little.
        if made * 10 >= total - self._first and total > done and spent > 5:
            text += f", {duration(spent / made * (total - done))} left"
        return text


class Step:
    """One step with its elapsed time; a context manager whose `tick()` is called again and again.

    `what` may be changed while it runs. A step that fails leaves its line as it stood.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.began = time.monotonic()
        self._tty = sys.stderr.isatty()
        self._next = self.began + (TTY_AFTER_S if self._tty else PLAIN_AFTER_S)
        self._shown = False

    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def tick(self, detail: str = "") -> None:
        """Shows the state if it is time to. Cheap otherwise."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (TTY_EVERY_S if self._tty else PLAIN_EVERY_S)
        self._shown = True
        line = f"tpc: {self.what} · {now - self.began:.0f} s"
        if detail:
            line += f" · {detail}"
        if self._tty:
            width = shutil.get_terminal_size().columns - 1
            _write("\r\x1b[K" + line[:width])
        else:
            _write(line[:200] + "\n")

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._shown:
            return
        end = "done" if error is None else "failed" if isinstance(error, Exception) else "stopped"
        clear = "\r\x1b[K" if self._tty else ""
        _write(f"{clear}tpc: {self.what} · {end} after {self.elapsed_s():.1f} s\n")


def _write(text: str) -> None:
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()


def run(
    argv: Sequence[str],
    what: str,
    *,
    detail: Callable[[str], str] = str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    limit_s: float | None = None,
    quiet_limit_s: float | None = None,
    pass_fds: Sequence[int] = (),
) -> str:
    """Runs a command as a step, its output shown as the step's detail, and returns the output.

    `detail` makes the shown text of a line ("" keeps the one before). `limit_s` bounds the whole,
    `quiet_limit_s` the time without a byte of output. Raises StepFailed when it ends otherwise than
    with status 0, or past a limit. Whatever ends this ends the command and its children too.
    """
    with Step(what) as step:
        try:
            child = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        except OSError as error:
            raise StepFailed(what, f"{argv[0]}: {error.strerror}", "", None) from error
        try:
            output, why = _follow(child, step, detail, log, limit_s, quiet_limit_s)
        except BaseException:
            end_group(child)
            raise
        if why:
            end_group(child)
        elif child.returncode:
            why = f"ended with status {child.returncode}"
        if why:
            tail = "\n".join(output.splitlines()[-TAIL_LINES:])
            raise StepFailed(what, why, tail, log)
        return output


def _follow(
    child: subprocess.Popen[bytes],
    step: Step,
    detail: Callable[[str], str],
    log: Path | None,
    limit_s: float | None,
    quiet_limit_s: float | None,
) -> tuple[str, str]:
    """Reads the output to its end. Returns (output, why it was given up or "")."""
    assert child.stdout is not None
    fd = child.stdout.fileno()
    chunks: list[bytes] = []
    rest = b""
    shown = ""
    heard = time.monotonic()
    sink = log.open("wb") if log is not None else None
    try:
        while True:
            if select.select([fd], [], [], TTY_EVERY_S)[0]:
                data = os.read(fd, 65536)
                if not data:
                    break
                heard = time.monotonic()
                chunks.append(data)
                if sink is not None:
                    sink.write(data)
                    sink.flush()
                *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
                for line in lines:
                    text = line.decode("utf-8", "replace").strip()
                    shown = (detail(text) if text else "") or shown
            step.tick(shown)
            if limit_s is not None and step.elapsed_s() > limit_s:
                return _text(chunks), f"given up after {limit_s:g} s"
            if quiet_limit_s is not None and time.monotonic() - heard > quiet_limit_s:
                return _text(chunks), f"given up after {quiet_limit_s:g} s of silence"
        child.wait()
        return _text(chunks), ""
    finally:
        child.stdout.close()
        if sink is not None:
            sink.close()


def _text(chunks: Sequence[bytes]) -> str:
    return b"".join(chunks).decode("utf-8", "replace")


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Ends a child started in a session of its own, with everything that it started."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sig)
        except ProcessLookupError:
            break
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    child.wait()
