"""Answers to control messages, in SGLang's shapes. Owner: the engine thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Answers(Protocol):
    """The two ways to answer a control message."""

    def push_control_result(self, rid: str, payload: bytes) -> bool: ...

    def push_error(self, rid: str, message: str) -> bool: ...


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


def internal_state(stats: dict[str, Any]) -> dict[str, Any]:
    """Payload of a GetInternalStateReq: SGLang's names where it has one, ours beside them."""
    state = {
        "last_gen_throughput": stats["tokens_per_s"],
        "effective_max_running_requests_per_dp": stats["max_running_requests"],
        "max_total_num_tokens": stats["kv_budget_tokens"],
        "memory_usage": {
            "weight": stats["weights_bytes"] / 2**30,
            "kvcache": stats["kv_bytes"] / 2**30,
            "token_capacity": stats["kv_budget_tokens"],
        },
        "num_running_reqs": stats["running"],
        "num_queue_reqs": stats["waiting"],
        "engine": stats,
    }
    return {"rid": None, "http_worker_ipc": None, "internal_state": state}
