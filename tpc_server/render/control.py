"""Answers of a scheduler to control messages, as SGLang's frontends give them. Owner: stateless.

Standard library only. Each takes the scheduler's reply, None where there was none in time, and
gives status, body and content type.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from . import http, native

Answer = tuple[int, bytes, bytes]

SILENT: Final = b"The scheduler did not answer in time.\n"
HICACHE_FIELDS: Final = (
    "hicache_storage_backend",
    "hicache_storage_backend_extra_config",
    "hicache_storage_prefetch_policy",
    "hicache_write_policy",
)


def flushed(reply: Any) -> Answer:
    """Of /flush_cache."""
    if reply is None:
        return 503, SILENT, http.TEXT
    if reply.get("success"):
        return 200, b"Cache flushed.\n", http.TEXT
    return 400, _text(reply.get("message") or "Flush cache failed.\n"), http.TEXT


def weights(reply: Any) -> Answer:
    """Of /weights_checker: what each rank found, and one checksum over all of them."""
    if reply is None:
        return _silent()
    success = bool(reply["success"])
    body: dict[str, Any] = {"success": success, "message": str(reply.get("message") or "")}
    ranks = reply.get("payload")
    if ranks is not None:
        whole = hashlib.sha256()
        for rank in ranks:
            whole.update(rank["per_gpu_checksum"].encode())
        body |= {"ranks": ranks, "per_engine_checksum": whole.hexdigest()}
    return 200 if success else 400, native.to_json(body), http.JSON


def storage(done: str, failed: str, reply: Any) -> Answer:
    """Of what is done to the storage behind a scheduler's cache, in a line, and its message."""
    if reply is None:
        return 503, SILENT, http.TEXT
    success = bool(reply["success"])
    lines = [done if success else failed, str(reply.get("message") or "")]
    text = "".join([f"{line}\n" for line in lines if line])
    return 200 if success else 400, _text(text), http.TEXT


def told(message: str, reply: Any) -> Answer:
    """Of what a scheduler does without a word; the reply is to what was asked after it."""
    if reply is None:
        return _silent()
    return 200, native.to_json({"message": message, "status": "ok"}), http.JSON


def opened(reply: Any) -> Answer:
    """Of /open_session: its id."""
    if reply is None:
        return _silent()
    if reply["success"]:
        return 200, native.to_json(reply["session_id"]), http.JSON
    message = "Failed to open the session. Check if a session with the same id is still open."
    return 400, native.error_body(message, 400), http.JSON


def closed(reply: Any) -> Answer:
    """Of /close_session, as `told`."""
    return _silent() if reply is None else (200, b"", http.TEXT)


def _silent() -> Answer:
    return 503, native.error_body("the scheduler did not answer in time", 503), http.JSON


def storage_state(known: dict[str, Any], reply: Any) -> Answer:
    """Of GET /hicache/storage-backend: `known` are the launch arguments, newer is what the
    scheduler's own state says."""
    if reply is None:
        return _silent()
    state = reply.get("internal_state") or {}
    found = {name: state.get(name, known[name]) for name in HICACHE_FIELDS}
    return 200, native.to_json(found), http.JSON


def _text(text: str) -> bytes:
    return text.encode("utf-8", "replace")
