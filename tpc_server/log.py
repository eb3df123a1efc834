"""One-line structured logs through a writer thread. Owner: any thread may log; one writes.

Cores only put a tuple on a queue, and only for events that are rare (never per request unless
access logs were asked for, never per token).
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from typing import Any, Final, TextIO

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class LogWriter:
    """Formats and writes log lines on a thread of its own."""

    def __init__(self, level: str, style: str, stream: TextIO | None = None) -> None:
        """`style` is text or json; an unknown level is taken as info."""
        self._level = LEVELS.get(level.lower(), 20)
        self._json = style == "json"
        self._stream = stream if stream is not None else sys.stderr
        self._queue: queue.SimpleQueue[tuple[float, str, str, dict[str, Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="tpc-log", daemon=True)
        self._thread.start()

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Queue one line; never blocks."""
        if LEVELS.get(level, 20) >= self._level:
            self._queue.put((time.time(), level, message, fields))

    def close(self) -> None:
        """Write what is queued and stop."""
        self._queue.put(None)
        self._thread.join(2.0)

    def _run(self) -> None:
        while True:
            entry = self._queue.get()
            if entry is None:
                return
            try:
                self._stream.write(self._format(*entry) + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a closed terminal must not end the server
                pass

    def _format(self, when: float, level: str, message: str, fields: dict[str, Any]) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when))
        millis = int(when * 1000) % 1000
        if self._json:
            return json.dumps(
                {"time": f"{stamp}.{millis:03d}", "level": level, "message": message, **fields},
                default=str,
            )
        shown = " ".join(f"{k}={_value(v)}" for k, v in fields.items() if k != "stack")
        line = f"{stamp}.{millis:03d} {level.upper():<7} {message}" + (f" {shown}" if shown else "")
        stack = fields.get("stack")
        return f"{line}\n{stack}" if stack else line


def _value(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if " " in text or not text else text
