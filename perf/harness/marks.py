"""The peers' side of a measurement: say ready, report counters on demand, end. Owner: main thread.

A peer prints `READY {json}` once, `MARK {json}` after each SIGUSR1, and ends at SIGTERM. The
handlers only set flags; the main loop calls `poll()` between steps, never inside one.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Marks:
    """Flags set by signals, and the two kinds of line."""

    def __init__(self) -> None:
        self.stop = False
        self._wanted = False
        signal.signal(signal.SIGUSR1, self._on_mark)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)

    def _on_mark(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop = True

    @staticmethod
    def ready(values: dict[str, Any]) -> None:
        print("READY " + json.dumps(values), flush=True)

    def poll(self, values: Callable[[], dict[str, Any]]) -> None:
        """Answers a mark if one was asked for."""
        if self._wanted:
            self._wanted = False
            print("MARK " + json.dumps(values()), flush=True)
