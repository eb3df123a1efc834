"""/metrics and /v1/loads: what monitoring asks. Owner: the core's thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..http1 import HttpRequest
from ..loads import LoadReader, parse_query
from ..metrics.exposition import CONTENT_TYPE
from ..metrics.scrape import ScrapeThread
from .beside import BesideHandlers

if TYPE_CHECKING:
    from ..counters import Counters
    from ..stages.connections import Connection


class MetricsHandlers(BesideHandlers):
    """Pages are made by a helper thread; loads are read from the scheduler's snapshot."""

    def __init__(
        self, core: int, setup: Any, counters: Counters, link: Any, words: Any, generation: int
    ) -> None:
        super().__init__(core, setup, counters, link, words, generation)
        self._scraper: ScrapeThread | None = None
        self._scrapes: dict[int, tuple[bool, bool]] = {}  # by connection: close, head only
        self._loads = LoadReader(setup.loads) if setup.loads.path else None

    def metrics(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /metrics."""
        if self.layout is None:
            self._error(conn, request, close, 404, "Not Found")
            return
        if self._scraper is None:
            try:
                self._scraper = ScrapeThread(self.setup.metrics, self._link)
            except (OSError, RuntimeError) as error:  # no descriptors, no threads
                self._error(conn, request, close, 503, f"no thread to read the metrics: {error}")
                return
            self.helper_hook(self._scraper.fileno(), self)
        self._scrapes[conn.key] = (close, request.method == b"HEAD")
        self._scraper.submit(conn.key)

    def on_events(self, fd: int, mask: int) -> None:
        """Pages are made."""
        assert self._scraper is not None
        for keys, page, error in self._scraper.pages():
            if error:
                self.setup.log("error", "the metrics cannot be read", core=self.core, error=error)
            for key in keys:
                close, head_only = self._scrapes.pop(key)
                conn = self._stage.connections.get(key)
                if conn is None or not conn.inflight:
                    continue
                if error:
                    self.counters.errors += 1
                    page = f"the metrics cannot be read: {error}\n".encode("utf-8", "replace")
                status = 500 if error else 200
                self._stage.answer(conn, status, page, CONTENT_TYPE, close, head_only)

    def loads(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /v1/loads."""
        began = time.monotonic_ns()
        wanted = parse_query(request.query)
        if self._loads is None:  # ask the scheduler itself; `loads.render` answers
            self._control(conn, request, close, f"loads {began} {wanted}", "GetInternalStateReq")
            return
        body, content_type = self._loads.answer(wanted)
        self._stage.answer(conn, 200, body, content_type, close, request.method == b"HEAD")
        if self.setup.http_meter is not None:
            self.setup.http_meter.loads(time.monotonic_ns() - began)

    def end_helpers(self) -> None:
        """A core that ends or is rebuilt."""
        super().end_helpers()
        if self._scraper is not None:
            self._scraper.close()
            self._scraper = None
