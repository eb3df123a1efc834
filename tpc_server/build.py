"""The stages of one core and their ports. Owner: the core's thread."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from . import frame, mesh
from .affinity.plan import route
from .counters import CONNECTIONS, Counters
from .live import Count, OpeningPort
from .mesh import Ends, Mesh
from .metrics.http import HttpMeter, make_layout
from .metrics.recorder import Recorder
from .reactor import IN, Reactor
from .routes.router import Router
from .stages.accept import Loads
from .stages.base import DirectPort, LocalPort, Outbox, Port, RemotePort, Stage
from .stages.detok import DetokStage
from .stages.egress import EgressStage
from .stages.ingress import KEY_BITS, IngressStage
from .stages.tokenize import TokenizeStage
from .stages.writers import RemoteWriter, gone_writer


class StageSet:
    """What one core runs, in the order of a request's life."""

    def __init__(
        self, index: int, link: Mesh, setup: Any, counters: Counters, poller: Reactor,
        ends: Ends, ports: dict[int, RemotePort], outbox: Outbox, to_scheduler: Any, aborts: Any,
        listeners: list[socket.socket], generation: int,
    ) -> None:  # fmt: skip
        plan = link.plan
        self.index = index
        self._plan = plan
        self._setup = setup
        self._ports = ports
        self._words = ends.words
        self.ingress: IngressStage | None = None
        self.tokenize: TokenizeStage | None = None
        self.detok: Any = None
        self.egress: EgressStage | None = None
        mine = plan.cores[index].stages
        ingress_cores = plan.stage_cores("ingress")
        self._inboxes: dict[str, deque[frame.Message]] = {}

        http_meter = recorder = None
        setup.layout = make_layout(setup.metrics)
        if setup.layout is not None:
            assert link.metrics is not None
            words = link.metrics.words()
            block = link.metrics.take(index, words)
            recorder = Recorder(setup.layout, words, block, setup.is_prefill)
            setup.http_meter = http_meter = HttpMeter(setup.layout, words, block)

        if "ingress" in mine:
            router = Router(index, setup, counters, link, ends.words, generation)
            self.ingress = IngressStage(
                index, generation, setup, counters, poller, listeners, router
            )
            self.ingress.http_meter = http_meter
            router.helper_hook = self._watch_helper
            self._inboxes["ingress"] = self.ingress.inbox
        if "egress" in mine:
            detok_of = [
                route(plan, "detok", c) if c in ingress_cores else index
                for c in range(len(plan.cores))
            ]
            self.egress = EgressStage(poller, counters, setup.write_timeout_ns)
            self._inboxes["egress"] = self.egress.inbox
        if "detok" in mine:
            self.detok = DetokStage(setup, counters, self._writer_of)
            self.detok.ready_hook = self._warm
            self.detok.health_hook = self._probed
            self.detok.recorder = recorder
            self.detok.http_meter = http_meter
            if len(plan.stage_cores("detok")) > 1:
                self.detok.ended = Count(ends.words, link.ended_at(index))
            self._inboxes["detok"] = self.detok.inbox
        if "tokenize" in mine:
            self.tokenize = TokenizeStage(index, setup, counters, outbox, to_scheduler, aborts)
            self.tokenize.helper_hook = self._watch_helper
            self._inboxes["tokenize"] = self.tokenize.inbox
        self._reactor = poller

        # Ports can be made once all inboxes of this core exist.
        if self.egress is not None:
            self.egress.connect(
                [self._port("ingress", c) for c in range(len(plan.cores))],
                [None if d == index else self._port("detok", d) for d in detok_of],
                self.detok,
            )
        if self.detok is not None:
            self.detok.connect(
                {c: self._port("tokenize", c) for c in plan.stage_cores("tokenize")},
                {c: self._port("ingress", c) for c in ingress_cores},
            )
        # By ingress core: where its connections are written, None for this core.
        self._egress_ports: dict[int, Port | None] = {}
        for c in ingress_cores:
            egress_core = route(plan, "egress", c)
            self._egress_ports[c] = None if egress_core == index else ports[egress_core]
        if self.tokenize is not None:
            self.tokenize.connect(
                {c: self._port("detok", c, self.detok) for c in plan.stage_cores("detok")}
            )
        if self.ingress is not None:
            self._connect_ingress(link, ends)
        self.polled: list[Stage] = [
            s for s in (self.ingress, self.tokenize, self.detok, self.egress) if s is not None
        ]

    def _connect_ingress(self, link: Mesh, ends: Ends) -> None:
        stage = self.ingress
        assert stage is not None
        plan, index = self._plan, self.index
        egress_core = route(plan, "egress", index)
        stage.egress_stage = self.egress if egress_core == index else None
        stage.egress_port = self._port("egress", egress_core)
        stage.detok_port = self._port("detok", route(plan, "detok", index), self.detok)
        if len(plan.stage_cores("detok")) > 1:
            opened = Count(ends.words, link.opened_at(index))
            stage.detok_port = OpeningPort(stage.detok_port, opened)
        ingress_cores = plan.stage_cores("ingress")
        at = {c: link.counters_at(c) + CONNECTIONS for c in ingress_cores}
        stage.acceptor.loads = Loads(ends.words, at, index)
        stage.acceptor.peers = {c: self._port("ingress", c) for c in ingress_cores if c != index}
        tok_core = route(plan, "tokenize", index)
        stage.router.connect(
            stage, self._port("tokenize", tok_core), tok_core, route(plan, "detok", index),
            [self._port("detok", c, self.detok) for c in plan.stage_cores("detok")],
        )  # fmt: skip

    # -- ports -----------------------------------------------------------------------

    def _port(self, stage: str, core: int, direct: Any = None) -> Port:
        """`direct`: the stage, should it be this core's, may be called by who sends."""
        if core == self.index:
            inbox = self._inboxes.get(stage)
            if direct is not None and inbox is not None:
                return DirectPort(inbox, direct.on_message)
            return LocalPort(inbox if inbox is not None else deque())
        return self._ports[core]

    def inbox_of(self, kind: int) -> deque[frame.Message]:
        """Where a message of another core goes."""
        return self._inboxes[frame.STAGE_OF_KIND[kind]]

    def _writer_of(self, key: int) -> Any:
        """What the streams of a connection write to."""
        port = self._egress_ports[key >> KEY_BITS]
        if port is not None:
            return RemoteWriter(key, port, self.detok.held_up, self.detok.handed)
        egress = self.egress
        assert egress is not None
        writer = egress.writers.get(key)
        if writer is None:
            # The connection of another core may have come with the same messages as its request.
            egress.poll(len(egress.inbox))
            writer = egress.writers.get(key)
        return writer or gone_writer(key, self.detok.handed)

    def _watch_helper(self, fd: int, handler: Any) -> None:
        self._reactor.register(fd, IN, handler)

    # -- commands --------------------------------------------------------------------

    def start_accepting(self) -> None:
        """Watch the listening sockets."""
        if self.ingress is not None:
            self.ingress.acceptor.start()

    def warm_up(self) -> None:
        """Send the warm-up request."""
        if self.ingress is not None:
            self.ingress.router.warm_up()

    @property
    def warming(self) -> bool:
        """Whether a warm-up request of this core is on its way."""
        return self.ingress is not None and self.ingress.router.warming

    def _warm(self, answered: bool) -> None:
        if answered:
            self._words[mesh.READY] = 1
        elif not self._words[mesh.STOPPED]:
            self._words[mesh.FAILED] = 1
            self._setup.log("error", "the warm-up request was not answered", core=self.index)
        self._setup.wake_main()

    def _probed(self, well: bool) -> None:
        self._words[mesh.SILENT] = 0 if well else 1

    def retire(self) -> None:
        """No new connections: another process takes them; the others close as they are answered."""
        if self.ingress is not None:
            self.ingress.retire()

    def drain(self) -> None:
        """No new connections; the others close at their next answer."""
        if self.ingress is not None:
            self.ingress.stop_accepting()

    def stop(self, message: str) -> None:
        """End what is left with an error, for good."""
        self.drain()
        if self.ingress is not None:
            self.ingress.router.refuse_bodies(message)
        if self.detok is not None:
            self.detok.refusal = message
            self.detok.fail_all(message)

    def busy(self) -> bool:
        """Whether answers are still on their way out, or requests to the scheduler."""
        if self.detok is not None and self.detok.groups:
            return True
        if self.egress is not None and self.egress.busy:
            return True
        if self.tokenize is not None and self.tokenize.busy:
            return True
        if self.ingress is not None and self.ingress.router.beside:
            return True
        return any(s.pure_poll() for s in self.polled)

    def stalled(self) -> bool:
        """Whether something waits for room that nobody will announce."""
        return self.tokenize is not None and self.tokenize.stalled

    def pending(self) -> bool:
        """Whether any stage could do something now."""
        return any([stage.pure_poll() for stage in self.polled])

    # -- deaths ----------------------------------------------------------------------

    def bury(self, message: str) -> None:
        """End this core's streams and jobs with an error after an exception."""
        if self.tokenize is not None:
            self.tokenize.bury(message)
        if self.detok is not None:
            # What is in the inbox was opened by other stages and would be forgotten.
            self.detok.poll_messages()
            self.detok.fail_all(message)
        # What the two lines above told the stages of this same core.
        if self.tokenize is not None:
            self.tokenize.poll_aborts()
        if self.egress is not None:
            self.egress.poll(1 << 20)
            self.egress.flush_once()

    def leftover(self) -> list[frame.Message]:
        """Messages that no stage has looked at: the next stages take them."""
        return [message for inbox in self._inboxes.values() for message in inbox]

    def abandon(self) -> None:
        """Close what the old stages own."""
        if self.tokenize is not None:
            self.tokenize.close()
        if self.ingress is not None:
            self.ingress.abandon()
            self.ingress.router.end_helpers()
        if self.egress is not None:
            self.egress.abandon()

    def core_reset(self, core: int) -> None:
        """Another core lost its state: let go of what depended on it."""
        for stage in self.polled:  # what it, or others because of it, sent before
            if stage is not self.detok:
                stage.poll(1 << 30)
        if self.detok is not None:
            # Not the scheduler's frames: openings they depend on may still be undelivered.
            self.detok.poll_messages()
        if self.ingress is not None:
            egress_lost = route(self._plan, "egress", self.index) == core
            detok_lost = route(self._plan, "detok", self.index) == core
            if egress_lost or detok_lost:
                self.ingress.partner_lost(egress_lost)
        if self.egress is not None:
            self.egress.ingress_lost(core)
        if self.detok is not None:
            self.detok.ingress_lost(core)
