"""Routes that tell the scheduler something. Owner: the core's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from .. import frame
from ..contract.abort import decode_abort
from ..contract.control import decode_attach, decode_weights
from ..contract.errors import BadRequest
from ..http1 import HttpRequest
from .beside import BesideHandlers

if TYPE_CHECKING:
    from ..stages.connections import Connection


_NS: Final = 1_000_000_000
LONGEST_S: Final = 86_400  # that a flush may wait; far more would be no time at all


_SLOW_NS: Final = 600 * _NS  # weights and storage may be large
_NO_ADMIN_KEY: Final = (
    "this route needs an admin key, and the server was started without one (--admin-api-key)"
)


class ControlHandlers(BesideHandlers):
    """Aborts, and what looks after the scheduler's caches and weights."""

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


def _timeout(query: bytes) -> float:
    """The query's `timeout` in seconds, 0 without one."""
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("timeout")
    if given is None:
        return 0.0
    try:
        seconds = float(given[-1])
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_S:
        raise BadRequest(
            f"timeout must be a number of seconds from 0 to {LONGEST_S}, got {given[-1][:64]!r}"
        )
    return seconds
