"""Routes that tell the scheduler something. Owner: the core's thread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from .. import frame
from ..boundary import messages
from ..contract.abort import decode_abort
from ..contract.control import (
    decode_attach,
    decode_close,
    decode_continue,
    decode_open,
    decode_pause,
    decode_weights,
)
from ..contract.errors import BadRequest
from ..http1 import HttpRequest
from .beside import BesideHandlers

if TYPE_CHECKING:
    from ..stages.connections import Connection


_NS: Final = 1_000_000_000
_SECONDS: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
LONGEST_S: Final = 86_400  # that a flush may wait; far more would be no time at all


_SLOW_NS: Final = 600 * _NS  # weights and storage may be large
_NO_ADMIN_KEY: Final = (
    "this route needs an admin key, and the server was started without one (--admin-api-key)"
)
_NO_STREAMING: Final = (
    "Streaming sessions are disabled. Please relaunch with --enable-streaming-session."
)


class ControlHandlers(BesideHandlers):
    """Aborts, sessions, and what looks after the scheduler's caches and weights."""

    def abort(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /abort_request: on whichever core, of whichever frontend, the request is."""
        wanted = self.read(request, decode_abort)
        rids = None if wanted.abort_all else wanted.rids
        if rids is None or rids:
            for port in self._detok_ports:
                port.send((frame.D_ABORT, rids))
            if self.setup.info.shares:
                self._tok_port.send((frame.T_SHARE, rids))
        self._text(conn, request, close, 200, b"")

    def flush_cache(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET, POST /flush_cache: waits up to `timeout` seconds for running requests."""
        timeout = _timeout(request.query)
        self._control(
            conn, request, close, "flush_cache", "FlushCacheReqInput",
            int(timeout * _NS) + self.setup.health_timeout_ns, timeout_s=timeout,
        )  # fmt: skip

    def weights_checker(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET, POST /weights_checker."""
        wanted = self.read(request, decode_weights)
        self._control(
            conn, request, close, "weights", "CheckWeightsReqInput", _SLOW_NS, **wanted
        )  # fmt: skip

    def hicache(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET, PUT, DELETE /hicache/storage-backend: nobody's where there is no admin key."""
        if not self.setup.admin_key_digests:
            raise BadRequest(_NO_ADMIN_KEY)
        if request.method == b"PUT":
            wanted = self.read(request, decode_attach)
            self._control(
                conn, request, close, "attach_hicache", "AttachHiCacheStorageReqInput", _SLOW_NS,
                **wanted,
            )  # fmt: skip
        elif request.method == b"DELETE":
            self._control(
                conn, request, close, "detach_hicache", "DetachHiCacheStorageReqInput", _SLOW_NS
            )
        else:
            self._control(conn, request, close, "hicache", "GetInternalStateReq")

    def clear_hicache(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /hicache/storage-backend/clear."""
        self._control(conn, request, close, "clear_hicache", "ClearHiCacheReqInput", _SLOW_NS)

    def pause(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /pause_generation."""
        mode = self.read(request, decode_pause)
        # Once retracted, all requests wait in the scheduler's queue, and can be ended at once.
        ends = mode == "abort"
        self._tell(
            conn, request, close, "pause",
            ("PauseGenerationReqInput", {"mode": "retract" if ends else mode}),
            *([("AbortReq", {"abort_all": True})] if ends else []),
        )  # fmt: skip

    def continue_(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /continue_generation."""
        wanted = self.read(request, decode_continue)
        self._tell(conn, request, close, "continue", ("ContinueGenerationReqInput", wanted))

    def open_session(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET, POST /open_session."""
        wanted = self.read(request, decode_open)
        if wanted.get("streaming") and not self.setup.streaming_session:
            raise BadRequest(_NO_STREAMING)
        if wanted.get("session_id") is None:
            wanted["session_id"] = self._decoder.new_rid()
        self._control(
            conn, request, close, "open_session", "OpenSessionReqInput",
            self.setup.health_timeout_ns, **wanted,
        )  # fmt: skip

    def close_session(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET, POST /close_session."""
        wanted = self.read(request, decode_close)
        self._tell(conn, request, close, "close_session", ("CloseSessionReqInput", wanted))

    def _tell(
        self, conn: Connection, request: HttpRequest, close: bool, name: str,
        *told: tuple[str, dict[str, Any]],
    ) -> None:  # fmt: skip
        """Messages that a scheduler does not answer, and one that it does: then it has them."""
        rid = self._control(
            conn, request, close, name, told[0][0], self.setup.health_timeout_ns, **told[0][1]
        )
        for tag, fields in (*told[1:], ("GetInternalStateReq", {})):
            header = messages.pack_control(self._pack, tag, rid, **fields)
            self._tok_port.send((frame.T_CONTROL, rid, header))


def _timeout(query: bytes) -> float:
    """The query's `timeout` in seconds, 0 without one."""
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("timeout")
    if given is None:
        return 0.0
    seconds = float(given[-1]) if _SECONDS.fullmatch(given[-1]) else -1.0
    if not 0 <= seconds <= LONGEST_S:
        raise BadRequest(
            f"timeout must be a number of seconds from 0 to {LONGEST_S}, got {given[-1][:64]!r}"
        )
    return seconds
