"""`Server`: the whole contract with a scheduler. Owner: the scheduler's thread (see each method).

In-process mode: the cores are threads of this process. The constructor returns once every core
runs and the port is open; the scheduler then drains requests and pushes frames.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from .affinity import sglang_rules
from .affinity.plan import CorePlan
from .boundary import wire
from .boundary.port import RECV_MAX, IngressRequest, SchedulerPort
from .boundary.server_args import ServerArgs
from .config import Options
from .frontend import Frontend, ServerError, load_texts, make_mesh
from .listen import Bound, bind
from .log import LogWriter
from .server_checks import check_arguments

__all__ = ["Server", "ServerError"]

_SETTLE_S: Final = 0.3


def default_plan(args: ServerArgs, cores: Sequence[int] | None) -> CorePlan:
    """The plan of a server whose scheduler named CPUs, or none."""
    return sglang_rules.plan_for_server(
        cores, args.tokenizer_worker_num, args.detokenizer_worker_num,
        allowed_cpus=len(os.sched_getaffinity(0)),
    )  # fmt: skip


class Server(Frontend):
    """A frontend for one scheduler.

    cores: None leaves the threads unpinned; a list names the CPUs they may be pinned to.
    frontends: one, here: several are processes (sidecar mode).
    The caps count requests (towards the scheduler), frames (from it) and messages (between
    cores); bytes are bounded besides. `bound`: sockets that listen already, one list a core with an
    ingress stage; the server closes them in the end. Raises TypeError on bad arguments,
    `text.load.TokenizerError`, `text.chat_prompt.ChatTemplateError` and `listen.ListenError` when
    the tokenizer, its chat template or the port cannot be had.
    """

    def __init__(
        self, server_args: ServerArgs, port_offset: int | None = None,
        to_scheduler_cap: int = 8192, from_scheduler_cap: int = 8192,
        stage_channel_cap: int = 8192, cores: Sequence[int] | None = None, *,
        options: Options | None = None, frontends: int = 1, bound: Bound | None = None,
    ) -> None:  # fmt: skip
        check_arguments(
            server_args, port_offset, to_scheduler_cap, from_scheduler_cap, stage_channel_cap, cores
        )
        options = options or Options()
        if frontends != 1 or options.attach is not None:
            asked = f"frontends={frontends}" if frontends != 1 else "options.attach"
            raise TypeError(f"{asked}: the cores are threads of this process, nobody joins them;"
                            " TPC_MODE=sidecar runs them in processes of their own")  # fmt: skip
        texts = load_texts(server_args)
        plan = options.plan or default_plan(server_args, cores)
        ingress = plan.stage_cores("ingress")
        self._bound = bound or bind(
            server_args.host, server_args.port + (port_offset or 0), options.uds, len(ingress),
            options.backlog,
        )  # fmt: skip
        self.http_port = self._bound.port
        # Nothing before this line leaves anything behind when it raises.
        log = LogWriter(server_args.log_level, options.log_format)
        link = make_mesh(server_args, plan, to_scheduler_cap, from_scheduler_cap, stage_channel_cap)
        self.port = SchedulerPort(link)
        listeners = dict(zip(ingress, self._bound.groups, strict=True))
        super().__init__(server_args, options, link, listeners, texts, log)

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
        if not self._closed and self.port.step(header, data_cols):
            return True
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

    # -- ends ------------------------------------------------------------------------

    def leave(self) -> None:
        """After a drain: this process ends now, without a `shutdown`; no path of ours is left."""
        self._bound.close()

    def drain(self, seconds: float) -> None:
        """Stop accepting, let requests finish within the limit; returns when they have, or it is
        over. From any thread but the scheduler's, which goes on; `shutdown` is to follow."""
        if self._closed:
            return
        self.start_drain()
        begun = time.monotonic()
        while (taken := time.monotonic() - begun) < seconds:
            # Counters are published a little late: zero counts once it had time to be true.
            if taken > _SETTLE_S and not self.inflight():
                return
            time.sleep(0.02)

    def _close_listeners(self) -> None:
        self._bound.close()

    def _close_link(self) -> None:
        self.port.close()
        super()._close_link()
