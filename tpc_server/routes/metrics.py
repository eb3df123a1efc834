"""/metrics and /v1/loads: what monitoring asks. Owner: the core's thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ..helper import Helper
from ..http1 import HttpRequest
from ..loads import LoadReader, parse_query
from ..metrics.exposition import CONTENT_TYPE
from ..metrics.scrape import Pages
from ..stages import stream as records
from .beside import BesideHandlers

_NONE: Final = "no metrics are kept: the server was started without --enable-metrics"

if TYPE_CHECKING:
    from ..stages.connections import Connection


class MetricsHandlers(BesideHandlers):
    """A page takes milliseconds, more where a scheduler wrote many files: a helper thread makes it.
    Loads are read from the scheduler's snapshot, which takes microseconds."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pages: Helper | None = None
        self._maker = Pages(self.setup.metrics, self._link)
        # Connections: (key, close, head only). Those that came before a page was begun get it.
        self._asking: list[tuple[int, bool, bool]] = []
        self._served: list[tuple[int, bool, bool]] = []
        self._loads = LoadReader(self.setup.loads) if self.setup.loads.path else None

    # -- /metrics ------------------------------------------------------------------------

    def metrics(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /metrics."""
        if self.layout is None:
            self._error(conn, request, close, 404, _NONE)
            return
        try:
            if self._pages is None:
                helper = Helper("tpc-metrics")
                self.helper_hook(helper.fileno(), self)
                self._pages = helper
            self._asking.append((conn.key, close, request.method == b"HEAD"))
            self._make_page()
        except (OSError, RuntimeError) as error:  # no descriptors, no threads
            self._asking.clear()
            self._error(conn, request, close, 503, f"no thread to read the metrics: {error}")

    def _make_page(self) -> None:
        if self._asking and not self._served:
            assert self._pages is not None
            self._pages.call("page", False, self._maker.page)
            self._served, self._asking = self._asking, []

    def on_events(self, fd: int, mask: int) -> None:
        """A page is made."""
        assert self._pages is not None
        for _, page, error in self._pages.results():
            served, self._served = self._served, []
            status = 200
            if error is not None:
                self.setup.log(
                    "error", "the metrics cannot be read", core=self.core, error=repr(error)
                )
                status = 500
                page = f"the metrics cannot be read: {error}\n".encode("utf-8", "replace")
            for key, close, head_only in served:
                conn = self._stage.connections.get(key)
                if conn is not None and conn.inflight:
                    self.counters.errors += status != 200
                    self._stage.answer(conn, status, page, CONTENT_TYPE, close, head_only)
            self._make_page()

    def end_helpers(self) -> None:
        """A core that ends or is rebuilt."""
        super().end_helpers()
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    # -- /v1/loads -----------------------------------------------------------------------

    def loads(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /v1/loads."""
        began = time.monotonic_ns()
        wanted = parse_query(request.query)
        if self._loads is None:  # ask the scheduler itself; `loads.render` answers
            about = f"{records.LOADS} {began} {wanted}"
            self._control(conn, request, close, about, "GetInternalStateReq")
            return
        body, content_type = self._loads.answer(wanted)
        self._stage.answer(conn, 200, body, content_type, close, request.method == b"HEAD")
        if self.setup.http_meter is not None:
            self.setup.http_meter.loads(time.monotonic_ns() - began)
