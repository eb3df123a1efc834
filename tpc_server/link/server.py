"""`Server` where the scheduler's process has a GIL: the cores run in a child. Owner: its thread.

Same constructor and methods as the one in `tpc_server.server`. This process has rings, a socket
and the listening sockets, and no thread of ours; the child may crash or be replaced, and the
scheduler goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from .. import registry
from ..affinity import sglang_rules
from ..boundary import wire
from ..boundary.port import RECV_MAX, IngressRequest
from ..boundary.server_args import DisaggregationMode, ServerArgs
from ..config import Options
from ..counters import snapshot
from ..listen import Bound, bind
from ..metrics.area import MetricsArea
from ..server_checks import check_arguments
from ..tell import tell
from . import plain
from .children import SLOTS, Seat
from .control import RELOADING, ControlError, ControlSocket, state_of
from .guests import GUEST_CORES, GUESTS, Guests
from .hub import Hub
from .process import StartError, child_command

_LEAVE_S: Final = 3.0


class ServerError(Exception):
    """The frontend cannot start; the text says why."""


class SidecarServer:
    """A frontend for one scheduler, in processes of its own.

    frontends  how many processes share the port; 0 with `options.attach`, where all come by
               themselves and listen by themselves
    Raises what `tpc_server.server.Server` raises for its arguments, and ServerError when the
    process cannot start.
    """

    mode = "sidecar"

    def __init__(
        self, server_args: ServerArgs, port_offset: int | None = None,
        to_scheduler_cap: int = 8192, from_scheduler_cap: int = 8192,
        stage_channel_cap: int = 8192, cores: Sequence[int] | None = None, *,
        options: Options | None = None, frontends: int = 1,
    ) -> None:  # fmt: skip
        check_arguments(
            server_args, port_offset, to_scheduler_cap, from_scheduler_cap, stage_channel_cap, cores
        )
        self.options = options = options or Options()
        self.server_args = server_args
        mask = sorted(os.sched_getaffinity(0))
        plan = options.plan or sglang_rules.plan_for_server(
            cores, server_args.tokenizer_worker_num, server_args.detokenizer_worker_num,
            allowed_cpus=len(mask),
        )  # fmt: skip
        self.plan = plan
        try:
            command = child_command() if frontends else []
        except StartError as error:
            raise ServerError(str(error)) from None
        self.hub = Hub(self._tend)
        self.seats: list[Seat] = []
        self.guests: Guests | None = None
        self._control: ControlSocket | None = None
        self._closed = False
        self.draining = False
        ingress = len(plan.stage_cores("ingress"))
        self._bound = Bound([], server_args.port + (port_offset or 0))
        if frontends:
            self._bound = bind(
                server_args.host, self._bound.port, options.uds, ingress,
                options.backlog,
            )  # fmt: skip
        self.http_port = self._bound.port
        config = {
            "args": plain.args_to_plain(server_args) | {"port": self.http_port},
            "options": plain.options_to_plain(options),
            "plan": plain.plan_to_plain(plan),
            "caps": [to_scheduler_cap, from_scheduler_cap, stage_channel_cap],
            "mask": mask,
            "mode": self.mode,
            "alone": frontends == 1 and options.attach is None,
        }
        self._registry_fd = -1
        if server_args.disaggregation_mode == DisaggregationMode.Prefill:
            self._registry_fd = registry.create()
        self._metrics = None
        if server_args.metrics is not None:
            joined = options.attach is not None
            self._metrics = _area(
                server_args, max(len(plan.cores), GUEST_CORES * joined),
                frontends * SLOTS + GUESTS * joined,
            )  # fmt: skip
        for k in range(frontends):
            # All have the same sockets: connections of one that is gone go to the others at once.
            seat = Seat(
                self.hub, self._bound.groups, config, command, options.stall_s * 2, _log,
                self._metrics, k * SLOTS, self._registry_fd,
            )  # fmt: skip
            self.seats.append(seat)
        try:
            if options.attach is not None:
                self._open_attach(options, config, port_offset or 0)
            self._open_control()
            for seat in self.seats:
                seat.start()
            for seat in self.seats:
                seat.wait_started()
        except StartError as error:
            self.shutdown()
            raise ServerError(str(error)) from None

    def _open_attach(self, options: Options, config: dict[str, Any], leader: int) -> None:
        """`leader`: of data parallel attention, where each has a socket of its own."""
        path = f"{options.attach}.{leader}" if leader else str(options.attach)
        try:
            guests = Guests(
                self.hub, path, config | {"mode": "attached"}, options.stall_s * 2, _log,
                self._registry_fd, self._metrics, len(self.seats) * SLOTS,
            )  # fmt: skip
        except OSError as error:
            raise StartError(f"cannot listen for frontends at {path}: {error}") from None
        self.guests = guests
        self.hub.extra.append(guests)

    def _open_control(self) -> None:
        """Operators' socket; a server without one serves as well."""
        if not self.http_port:
            return
        try:
            control = ControlSocket(self.http_port, self._command, _log)
        except (OSError, ControlError) as error:
            _log(f"no control socket (`tpc-server reload` will not work): {error}")
            return
        self._control = control
        self.hub.extra.append(control)

    def _command(self, word: str) -> dict[str, Any]:
        if word == "reload":
            why = next((seat.busy for seat in self.seats if seat.busy), "")
            if not self.seats:
                why = "the frontends of this server are attached: each is restarted by itself"
            done = bool(self.seats) and self.reload()
            if not done and not why:
                why = next((seat.not_reloaded for seat in self.seats if seat.not_reloaded), "")
            answer = {"ok": done, "pids": self.processes()}
            return answer | {"error": why} if why else answer
        if word == RELOADING:
            why = next((seat.not_reloaded for seat in self.seats if seat.not_reloaded), "")
            running = any([seat.reloading for seat in self.seats])
            answer = {"ok": not why, "running": running, "pids": self.processes()}
            return answer | {"error": why} if why else answer
        if word == "status":
            states = {pid: state for seat in self.seats for pid, state in seat.states().items()}
            return {"ok": True, **state_of(self, states)}
        return {"ok": False, "error": f"unknown command {word[:64]!r}"}

    # -- scheduler -------------------------------------------------------------------

    def recv_requests(self, max: int = RECV_MAX) -> list[IngressRequest]:
        """Messages for the scheduler, oldest first; never blocks. `max` ≤ 0: the own cap."""
        if self._closed:
            return []
        return self.hub.recv(max if max > 0 else RECV_MAX)

    def wait_request(self, timeout_ms: int = 1000) -> bool:
        """Park until a message comes or the time is up; whether one may be there."""
        if self._closed:
            return False
        return self.hub.wait(timeout_ms)

    def push_decode_result_batch(self, header: Any, data_cols: Sequence[Any]) -> bool:
        """One step's columnar frame. Blocks while a core's ring is full; False on shutdown."""
        links = self.hub.links
        if len(links) == 1 and links[0].frame(header, data_cols):
            return True
        return self.hub.push(wire.BATCH, b"", wire.frame_parts(header, list(data_cols)))

    def push_control_result(self, rid: str, payload: Any) -> bool:
        """The answer (msgpack) to a control request."""
        return self.hub.push(wire.CONTROL_RESULT, rid.encode(), (payload,))

    def push_error(self, rid: str, message: str) -> bool:
        """A request that could not be read: its client gets 400 with this message."""
        text = message.encode("utf-8", "replace")
        return self.hub.push(wire.ERROR, rid.encode(), (text,))

    def push_health_ack(self) -> bool:
        """The scheduler is alive; answers every waiting health probe."""
        return self.hub.push(wire.HEALTH_ACK, b"", ())

    push_batch = push_decode_result_batch
    push_result = push_control_result

    # -- operator --------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether every frontend has had its warm-up answered, and there is one."""
        links = [seat.link for seat in self.seats]
        links += self.guests.links if self.guests is not None else []
        return bool(links) and all([link is not None and link.ready for link in links])

    @property
    def failed(self) -> bool:
        """A sidecar that fails is replaced: never."""
        return False

    def processes(self) -> list[int]:
        """Pids of the frontends that run."""
        return [pid for seat in self.seats for pid in seat.processes()]

    def reload(self) -> bool:
        """Replace every process by a new one; no request is lost. False where one may not be
        replaced now: it has just started, or too many still finish their requests."""
        with self.hub.lock:  # any thread may ask
            return all([seat.reload() for seat in self.seats])

    def counters(self) -> list[dict[str, int]]:
        """Counters of every core of every link, as published last."""
        return [
            snapshot(link.words, link.mesh.counters_at(core))
            for link in self.hub.links
            for core in range(link.mesh.n)
        ]

    def inflight(self) -> int:
        """HTTP requests that are not answered yet, as published last."""
        return sum(c["inflight"] for c in self.counters())

    def drain(self, seconds: float) -> None:
        """Stop accepting, let requests finish within the limit; returns when the processes ended
        and guests have let go.

        From any thread but the scheduler's, which goes on and tends the processes meanwhile;
        nothing is let go of before `shutdown`.
        """
        with self.hub.lock:
            if self._closed:
                return
            self.draining = True
            self.hub.stir()
            for seat in self.seats:
                seat.finish(seconds)
            if self.guests is not None:
                self.guests.finish(seconds)
            self._bound.close()  # else connections would wait in queues that nobody serves
        deadline = time.monotonic() + seconds + _LEAVE_S
        while time.monotonic() < deadline:
            if not self.processes() and (self.guests is None or not self.guests.links):
                return
            time.sleep(0.02)

    def leave(self) -> None:
        """This process ends now, without a `shutdown`: no path of ours is left. Any thread."""
        for one in (self._control, self.guests):
            if one is not None:
                one.remove()

    def shutdown(self) -> None:
        """End what is left with an error, end the processes, close everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.hub.close()
        for seat in self.seats:
            seat.tell_stop()
        for seat in self.seats:
            seat.stop()
        self.hub.extra.clear()
        if self.guests is not None:
            self.guests.close()
        if self._control is not None:
            self._control.close()
        self._bound.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._registry_fd >= 0:
            os.close(self._registry_fd)

    def _tend(self) -> bool:
        """As `Hub` wants it."""
        for seat in self.seats:
            seat.tend()
        guests, control = self.guests, self._control
        if guests is not None:
            guests.tend()
        if control is not None:
            control.serve()  # may start a process
        return (
            all([seat.calm for seat in self.seats])
            and (guests is None or guests.calm)
            and (control is None or not control.hurried)
        )

    def __enter__(self) -> SidecarServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


def _area(args: ServerArgs, cores: int, slots: int) -> MetricsArea:
    """What the processes count in, all together, so that whichever is asked shows them all."""
    from ..metrics.http import make_layout

    layout = make_layout(args.metrics)
    assert layout is not None
    return MetricsArea.create(layout.words, cores, slots)


def _log(message: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    tell(f"{stamp} tpc-server: {message}")
