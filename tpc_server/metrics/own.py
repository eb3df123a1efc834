"""Our own families, `tpc_…`: what the cores published, and how full the rings are. Owner: the
thread that scrapes; it only reads words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .. import mesh
from ..counters import snapshot
from ..shm import LINE_BYTES

# (counter, family, what it is, divisor): counters of one core that only grow.
_COUNTERS: Final = (
    ("loops", "tpc_loop_turns", "Turns of a core's loop.", 1),
    ("waits", "tpc_loop_waits", "Sleeps of a core with nothing to do.", 1),
    ("waited_ns", "tpc_loop_idle_seconds", "Time a core slept.", 1e9),
    ("wakeups", "tpc_wakeups", "Sleeps that a doorbell ended.", 1),
    ("spin_hits", "tpc_spin_hits", "Sleeps that spinning spared.", 1),
    ("doorbells_written", "tpc_doorbells_written", "System calls that woke another end.", 1),
    ("doorbells_saved", "tpc_doorbells_saved", "Batches whose reader was awake.", 1),
    ("frames", "tpc_frames", "Steps received from the scheduler.", 1),
    ("rows", "tpc_rows", "Rows of those steps that belong to the core.", 1),
    ("rows_stale", "tpc_rows_stale", "Rows of other cores, or of ended requests.", 1),
    ("malformed", "tpc_frames_malformed", "Frames of the scheduler that were rejected.", 1),
    ("sends", "tpc_sends", "Writes to sockets.", 1),
    ("bytes_out", "tpc_sent_bytes", "Bytes written to sockets.", 1),
    ("blocked", "tpc_sockets_blocked", "Times a socket was full.", 1),
    ("blocked_ns", "tpc_sockets_blocked_seconds", "How long sockets were full in all.", 1e9),
    ("accepted", "tpc_connections_accepted", "Connections accepted.", 1),
    ("requests", "tpc_http_requests", "HTTP requests dispatched.", 1),
    ("answers", "tpc_http_answers", "HTTP answers completed.", 1),
    ("errors", "tpc_http_errors", "HTTP answers that were errors.", 1),
    ("aborts", "tpc_requests_aborted", "Requests aborted by their clients.", 1),
    ("encoded", "tpc_texts_encoded", "Texts tokenized.", 1),
    ("resets", "tpc_core_restarts", "Times a core was rebuilt after an exception.", 1),
)
_GAUGES: Final = (
    ("connections", "tpc_connections", "Open connections."),
    ("inflight", "tpc_http_requests_inflight", "HTTP requests that are not answered yet."),
)


class OwnFamilies:
    """Of one server; `link` is its mesh."""

    def __init__(self, link: Any, words: Any) -> None:
        self._link = link
        self._words = words

    def counters(self) -> list[dict[str, int]]:
        """What every core published last."""
        return [snapshot(self._words, self._link.counters_at(c)) for c in range(self._link.n)]

    def __call__(self) -> Iterator[Any]:
        """The families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        cores = self.counters()
        for name, family, about, divisor in _COUNTERS:
            made = CounterMetricFamily(family, about, labels=["core"])
            for core, counters in enumerate(cores):
                made.add_metric([str(core)], counters[name] / divisor)
            yield made
        for name, family, about in _GAUGES:
            gauge = GaugeMetricFamily(family, about, labels=["core"])
            for core, counters in enumerate(cores):
                gauge.add_metric([str(core)], counters[name])
            yield gauge
        yield self._busy(cores)
        yield self._states(cores)
        yield from self._rings()
        words = self._words
        yield _total("tpc_pushes_blocked", "Pushes of the scheduler that found a ring full.",
                     words[mesh.PUSHES_BLOCKED])  # fmt: skip
        yield _total("tpc_pushes_blocked_seconds", "How long they waited for room.",
                     words[mesh.PUSHES_BLOCKED_NS] / 1e9)  # fmt: skip

    def _busy(self, cores: list[dict[str, int]]) -> Any:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(
            "tpc_loop_busy_seconds", "Time a core was awake.", labels=["core"]
        )
        for core, counters in enumerate(cores):
            alive = counters["heartbeat_ns"] - counters["started_ns"]
            family.add_metric([str(core)], max(0, alive - counters["waited_ns"]) / 1e9)
        return family

    def _states(self, cores: list[dict[str, int]]) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "tpc_live_requests", "Generations under way, by state.", labels=["core", "state"]
        )
        for core, counters in enumerate(cores):
            for state in ("tokenizing", "queued", "decoding"):
                family.add_metric([str(core), state], counters[state])
        return family

    def _rings(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        labels = ["from", "to", "lane"]
        used = GaugeMetricFamily("tpc_ring_used_bytes", "Bytes waiting in a ring.", labels=labels)
        size = GaugeMetricFamily("tpc_ring_size_bytes", "Size of a ring.", labels=labels)
        for lane in self._link.lanes():
            offset, capacity, _ = self._link.ring(lane)
            # Counts of bytes; the low bit of each says that its side is closed.
            tail = self._words[(offset + LINE_BYTES) >> 3] & ~1
            head = self._words[offset >> 3] & ~1
            kind = "aborts" if lane[2] == mesh.ABORTS else "data"
            values = [_end(lane[0]), _end(lane[1]), kind]
            used.add_metric(values, min(capacity, max(0, head - tail)))
            size.add_metric(values, capacity)
        yield from (used, size)


def _end(end: int) -> str:
    return {mesh.SCHEDULER: "scheduler", mesh.ALIEN: "control"}.get(end, str(end))


def _total(name: str, about: str, value: float) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, about, value=value)
