"""Flushes of an engine's cache, answered in SGLang's shape. Owner: the engine thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Answers(Protocol):
    """Where answers to control messages go."""

    def push_control_result(self, rid: str, payload: bytes) -> bool: ...


class FlushQueue:
    """Flush requests, answered at once, or when the engine falls idle within their time-out."""

    def __init__(self, answers: Answers, pack: Callable[[Any], bytes]) -> None:
        self._answers = answers
        self._pack = pack
        self._rid: str | None = None
        self._deadline = 0.0

    def request(self, rid: str, timeout_s: float, idle: bool, flush: Callable[[], None]) -> None:
        """One flush request. With work in progress it fails, or waits if it brought a time-out."""
        if self._rid is not None:
            self._answer(rid, False, "Another flush_cache is already in progress.")
        elif idle:
            flush()
            self._answer(rid, True, "")
        elif timeout_s > 0.0:
            self._rid = rid
            self._deadline = time.monotonic() + timeout_s
        else:
            self._answer(rid, False, "")

    def look_again(self, idle: bool, flush: Callable[[], None]) -> None:
        """Settle the waiting request if the engine is idle or the time is up."""
        rid = self._rid
        if rid is None:
            return
        if idle:
            flush()
        elif time.monotonic() < self._deadline:
            return
        self._rid = None
        self._answer(rid, idle, "" if idle else "Timed out waiting for idle state.")

    def _answer(self, rid: str, success: bool, message: str) -> None:
        payload = {"rid": None, "http_worker_ipc": None, "success": success, "message": message}
        self._answers.push_control_result(rid, self._pack(payload))
