"""`Server`: the whole contract with a scheduler. Owner: the scheduler's thread (see each method).

In-process mode: the cores are threads of this process. The constructor returns once every core
runs and the port is open; the scheduler then drains requests and pushes frames.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from . import core as cores_
from . import mesh
from .affinity import sglang_rules
from .affinity.plan import CorePlan
from .boundary import wire
from .boundary.port import RECV_MAX, IngressRequest, SchedulerPort
from .boundary.server_args import ServerArgs
from .config import Options
from .core import Core
from .counters import snapshot
from .info import ServerInfo
from .listen import bind_tcp, bind_uds
from .log import LogWriter
from .mailbox import EventFd
from .mesh import ALIEN, Ends, Mesh
from .metrics.http import make_layout
from .monitor import Monitor
from .parsers.formats import check_names
from .setup import CoreSetup
from .text.chat_source import chat_source
from .text.load import load_tokenizer

_JOIN_S: Final = 8.0
_START_S: Final = 60.0
SHUTTING_DOWN: Final = "the server is shutting down"


class ServerError(Exception):
    """The server cannot start or go on; the text says why."""


def _check_numbers(to_cap: int, from_cap: int, stage_cap: int, cores: Any) -> None:
    named = {
        "to_scheduler_cap": to_cap,
        "from_scheduler_cap": from_cap,
        "stage_channel_cap": stage_cap,
    }
    for name, value in named.items():
        if type(value) is not int or value < 1:
            raise TypeError(f"{name} must be a positive int, got {value!r}")
    if cores is not None and not all(type(c) is int and c >= 0 for c in cores):
        raise TypeError(f"cores must be None or a list of CPU numbers, got {cores!r}")


class Server:
    """A frontend for one scheduler.

    cores: None leaves the threads unpinned; a list names the CPUs they may be pinned to.
    The caps count requests (towards the scheduler), frames (from it) and messages (between
    cores); bytes are bounded besides. Raises TypeError on bad arguments,
    `text.load.TokenizerError`, `text.chat_prompt.ChatTemplateError` and `listen.ListenError` when
    the tokenizer, its chat template or the port cannot be had.
    """

    def __init__(
        self, server_args: ServerArgs, port_offset: int | None = None,
        to_scheduler_cap: int = 8192, from_scheduler_cap: int = 8192,
        stage_channel_cap: int = 8192, cores: Sequence[int] | None = None, *,
        options: Options | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(server_args, ServerArgs):
            raise TypeError(f"server_args must be ServerArgs, got {type(server_args).__name__}")
        try:
            check_names(server_args.reasoning_parser, server_args.tool_call_parser)
        except ValueError as error:
            raise TypeError(f"ServerArgs: {error}") from None
        _check_numbers(to_scheduler_cap, from_scheduler_cap, stage_channel_cap, cores)
        if not 0 <= server_args.port + (port_offset or 0) <= 65535:
            raise TypeError(f"port_offset {port_offset}: the port would be outside 0 to 65535")
        self.options = options = options or Options()
        self.server_args = server_args
        tokenizer = template = None
        if not server_args.skip_tokenizer_init:
            path = server_args.tokenizer_path or server_args.model_path
            tokenizer = load_tokenizer(path, server_args.revision)
            template = chat_source(
                tokenizer, server_args.chat_template, server_args.default_chat_template_kwargs
            )
        self.plan = options.plan or self._plan(server_args, cores)
        self.mode = "in-process"
        ingress = self.plan.stage_cores("ingress")
        if options.uds is not None:
            self._listeners = bind_uds(options.uds, len(ingress), options.backlog)
            self.http_port = 0
        else:
            port = server_args.port + (port_offset or 0)
            self._listeners, self.http_port = bind_tcp(
                server_args.host, port, len(ingress), options.backlog
            )
        # Nothing before this line leaves anything behind when it raises.
        self._log = LogWriter(server_args.log_level, options.log_format)
        layout = make_layout(server_args.metrics)
        self._mesh = Mesh(
            self.plan, to_scheduler_cap, from_scheduler_cap, stage_channel_cap,
            layout.words if layout is not None else 0,
        )  # fmt: skip
        self._ends = Ends(self._mesh)
        self._words = self._ends.words
        self._wake = EventFd()
        info = ServerInfo(server_args, self.plan, self.mode, "native")
        self.setup = CoreSetup(
            server_args, options, tokenizer, info, self._log.log, self._wake.write, self._mesh,
            self._words, template,
        )  # fmt: skip
        self.port = SchedulerPort(self._mesh)
        # Signals, drains and warm-ups come from whatever thread asks; one ring end per core.
        self._alien_lock = threading.Lock()
        self._alien = [self._ends.sender(ALIEN, c) for c in range(self._mesh.n)]
        self._closed = False
        self._start(dict(zip(ingress, self._listeners, strict=True)))

    def _start(self, listeners: dict[int, Any]) -> None:
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
        self.command(cores_.CMD_ACCEPT)
        if self.server_args.skip_server_warmup:
            self._words[mesh.READY] = 1
        else:
            self.command(cores_.CMD_WARMUP, only=self.plan.stage_cores("ingress")[0])

    @staticmethod
    def _plan(args: ServerArgs, cores: Sequence[int] | None) -> CorePlan:
        return sglang_rules.plan_for_server(
            cores, args.tokenizer_worker_num, args.detokenizer_worker_num,
            allowed_cpus=len(os.sched_getaffinity(0)),
        )  # fmt: skip

    # -- scheduler -------------------------------------------------------------------

    def recv_requests(self, max: int = RECV_MAX) -> list[IngressRequest]:
        """Messages for the scheduler, oldest first; never blocks. `max` ≤ 0: the own cap."""
        if self._closed:
            return []
        return self.port.recv(max if max > 0 else RECV_MAX)

    def wait_request(self, timeout_ms: int = 1000) -> bool:
        """Park until a message comes or the time is up; whether one may be there."""
        if self._closed:
            return False
        return self.port.wait(timeout_ms)

    def push_decode_result_batch(self, header: Any, data_cols: Sequence[Any]) -> bool:
        """One step's columnar frame. Blocks while a core's ring is full; False on shutdown."""
        return self._push(wire.BATCH, b"", wire.frame_parts(header, list(data_cols)))

    def push_control_result(self, rid: str, payload: Any) -> bool:
        """The answer (msgpack) to a control request."""
        return self._push(wire.CONTROL_RESULT, rid.encode(), (payload,))

    def push_error(self, rid: str, message: str) -> bool:
        """A request that could not be read: its client gets 400 with this message."""
        return self._push(wire.ERROR, rid.encode(), (message.encode("utf-8", "replace"),))

    def push_health_ack(self) -> bool:
        """The scheduler is alive; answers every waiting health probe."""
        return self._push(wire.HEALTH_ACK, b"", ())

    push_batch = push_decode_result_batch
    push_result = push_control_result

    def _push(self, kind: int, key: bytes, parts: Sequence[Any]) -> bool:
        if self._closed:
            return False
        return self.port.push(kind, key, parts)

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

    def start_drain(self) -> None:
        """Stop accepting; connections close at their next answer."""
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

    def shutdown(self) -> None:
        """End what is left with an error, stop the cores, close everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._words[mesh.STOPPED] = 1
        self.command(cores_.CMD_STOP, SHUTTING_DOWN.encode())
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        monitor = getattr(self, "monitor", None)
        if monitor is not None:
            monitor.stop()
        for group in self._listeners:
            for sock in group:
                sock.close()
        if self.options.uds is not None:
            try:
                os.unlink(self.options.uds)
            except OSError:
                pass
        for core, thread in zip(self.cores, self._threads, strict=True):
            if not thread.is_alive():
                core.close()
        if not any(thread.is_alive() for thread in self._threads):
            self.port.close()
            self._mesh.close()
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
