"""The cores of one link and what watches them. Owner: the thread that starts them.

`Server` is one in the scheduler's own process; a sidecar is one in a process of its own, on a
mesh whose other end the scheduler's process holds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from . import core as cores_
from . import mesh, registry
from .affinity.plan import CorePlan
from .boundary import wire
from .boundary.server_args import DisaggregationMode, ServerArgs
from .config import Options
from .core import Core
from .counters import snapshot
from .eventfd import EventFd
from .info import ServerInfo
from .log import LogWriter
from .mesh import ALIEN, Ends, Mesh
from .metrics.area import MetricsArea
from .metrics.exposition import load
from .metrics.http import make_layout
from .monitor import Monitor
from .setup import CoreSetup
from .shm import Region
from .text.chat_source import ChatSource, chat_source
from .text.load import LoadedTokenizer, load_tokenizer

_JOIN_S: Final = 8.0
_START_S: Final = 60.0
SHUTTING_DOWN: Final = "the server is shutting down"


class ServerError(Exception):
    """The server cannot start or go on; the text says why."""


def load_texts(args: ServerArgs) -> tuple[LoadedTokenizer | None, ChatSource | None]:
    """The tokenizer and the chat template that the arguments name. Raises TokenizerError and
    ChatTemplateError."""
    if args.skip_tokenizer_init:
        return None, None
    tokenizer = load_tokenizer(args.tokenizer_path or args.model_path, args.revision)
    return tokenizer, chat_source(tokenizer, args.chat_template, args.default_chat_template_kwargs)


def make_mesh(
    args: ServerArgs, plan: CorePlan, to_scheduler_cap: int, from_scheduler_cap: int,
    stage_cap: int, shared: Sequence[int] = (),
) -> Mesh:  # fmt: skip
    """The rings of a plan, with room for the metrics that the arguments ask for: in a region of
    its own, or in one that is shared (descriptor, size in bytes, slots, own slot, cores a slot has
    room for). Raises ValueError where the plan has more."""
    layout = make_layout(args.metrics)
    area = None
    if layout is not None and shared:
        fd, size, slots, slot, cores = shared
        if len(plan.cores) > cores:
            raise ValueError(f"{len(plan.cores)} cores: with metrics there is room for {cores}")
        area = MetricsArea(Region.attach(fd, size), layout.words, cores, slots, slot)
    elif layout is not None:
        area = MetricsArea.create(layout.words, len(plan.cores))
    return Mesh(plan, to_scheduler_cap, from_scheduler_cap, stage_cap, area)


class Frontend:
    """Runs the cores of `link`; its ports are open once the constructor has returned."""

    mode = "in-process"
    alone = True  # see `CoreSetup`

    def __init__(
        self, args: ServerArgs, options: Options, link: Mesh, listeners: Mapping[int, Any],
        texts: tuple[LoadedTokenizer | None, ChatSource | None], log: LogWriter,
        registry_fd: int = -1,
    ) -> None:  # fmt: skip
        """`registry_fd`: what other frontends of a prefill server share; taken over. Without one
        it has its own."""
        if args.metrics is not None:
            load()
        self.options = options
        self.server_args = args
        self.plan = link.plan
        self._log = log
        self._mesh = link
        self._ends = Ends(link)
        self._words = self._ends.words
        self._wake = EventFd()
        if registry_fd < 0 and args.disaggregation_mode == DisaggregationMode.Prefill:
            registry_fd = registry.create()
        self._registry_fd = registry_fd
        if texts[1] is not None:
            from .text.chat_template import warnings  # imports jinja2

            for warning in warnings(texts[1], args.tool_call_parser):
                log.log("warning", warning)
        info = ServerInfo(args, link.plan, self.mode, "native")
        self.setup = CoreSetup(
            args, options, texts[0], info, log.log, self._wake.write, link, self._words, texts[1],
            registry_fd,
        )  # fmt: skip
        self.setup.alone = self.alone
        # Signals, drains and warm-ups come from whatever thread asks; one ring end per core.
        self._alien_lock = threading.Lock()
        self._alien = [self._ends.sender(ALIEN, c) for c in range(link.n)]
        self._closed = False
        self.draining = False
        self._start(listeners)

    def _start(self, listeners: Mapping[int, Any]) -> None:
        self.cores = [
            Core(i, self._mesh, self.setup, listeners.get(i, [])) for i in range(self._mesh.n)
        ]
        self._threads = [
            threading.Thread(target=c.run, name=f"tpc-core-{c.index}", daemon=True)
            for c in self.cores
        ]
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + _START_S
        heartbeats = [self._mesh.counters_at(c) for c in range(self._mesh.n)]
        while not all(self._words[at] for at in heartbeats):
            if self._words[mesh.FAILED] or time.monotonic() > deadline:
                self.shutdown()
                raise ServerError("a core could not start; its error is in the log")
            self._wake.wait(5)
        self.monitor = Monitor(self)
        self.monitor.start()
        if self.server_args.skip_server_warmup:
            self._words[mesh.READY] = 1
        self.command(cores_.CMD_ACCEPT)
        if not self.server_args.skip_server_warmup:
            self.command(cores_.CMD_WARMUP, only=self.plan.stage_cores("ingress")[0])

    # -- operator --------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the warm-up request has been answered."""
        return bool(self._words[mesh.READY])

    @property
    def failed(self) -> bool:
        """Whether cores died too often to go on."""
        return bool(self._words[mesh.FAILED])

    def counters(self) -> list[dict[str, int]]:
        """Counters of every core, as published last."""
        return [snapshot(self._words, self._mesh.counters_at(c)) for c in range(self._mesh.n)]

    def command(self, name: bytes, payload: bytes = b"", only: int | None = None) -> None:
        """Send a command to all cores or one. Any thread."""
        with self._alien_lock:
            for core, sender in enumerate(self._alien):
                if only is None or only == core:
                    sender.post_urgent(wire.COMMAND, name, (payload,))
                    sender.flush()

    def start_retiring(self) -> None:
        """Accept no more, and keep the connections there are until their next answer."""
        self.command(cores_.CMD_RETIRE)

    def wake_fileno(self) -> int:
        """What `wait_event` waits for."""
        return self._wake.fileno()

    def start_drain(self) -> None:
        """Stop accepting; connections close at their next answer."""
        self.draining = True
        self.command(cores_.CMD_DRAIN)

    def inflight(self) -> int:
        """HTTP requests that are not answered yet, as published last."""
        return sum(c["inflight"] for c in self.counters())

    def wait_event(self, timeout_ms: int) -> bool:
        """Main thread: sleep until something worth a look happened (ready, a core's death)."""
        rang = self._wake.wait(timeout_ms)
        if rang:
            self._wake.read()
        return rang

    def shutdown(self, *, message: str = SHUTTING_DOWN) -> None:
        """End what is left with an error, stop the cores, close everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._words[mesh.STOPPED] = 1
        self.command(cores_.CMD_STOP, message.encode())
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        monitor = getattr(self, "monitor", None)
        if monitor is not None:
            monitor.stop()
        self._close_listeners()
        for core, thread in zip(self.cores, self._threads, strict=True):
            if not thread.is_alive():
                core.close()
        if not any(thread.is_alive() for thread in self._threads):
            self._close_link()
            if self._registry_fd >= 0:
                os.close(self._registry_fd)
        if monitor is not None:
            self._log.log("info", "stopped")
        self._log.close()

    def _close_listeners(self) -> None:
        """Close the sockets that it owns, if it does."""

    def _close_link(self) -> None:
        """No core uses the rings any more."""
        self._mesh.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
