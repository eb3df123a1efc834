"""One pinned thread: its stages, its rings, its loop. Owner: the thread that runs `Core.run`.

The constructor takes plain data on the starting thread; every mutable object is built in `run`.
A turn of the loop: drain the rings, run the stages, flush what they posted, look at the
descriptors. With nothing to do: spin for a moment where that can help, raise the sleeping flag,
look again, wait.
"""

from __future__ import annotations

import copy
import os
import time
import traceback
from bisect import bisect_right
from collections import deque
from typing import Any, Final

from . import frame, mesh
from .affinity import pin
from .boundary import wire
from .build import StageSet
from .counters import Beat, Counters
from .mesh import ALIEN, SCHEDULER, Ends, Mesh
from .reactor import Reactor
from .ring import Record
from .stages.base import STAMP_BYTES, Outbox, RemotePort

TICK_NS: Final = 250_000_000
_BACKSTOP_S: Final = 0.25  # longest wait: the tick
_BACKLOG_S: Final = 0.002  # while a ring towards another end is full
_PUBLISH_NS: Final = 100_000_000
_DRAIN: Final = 256
_ALL: Final = 1 << 30  # records: a ring is drained to its end
_BUDGET: Final = 256
_DEATHS: Final = 3  # within _DEATH_WINDOW_NS: give up
_DEATH_WINDOW_NS: Final = 30_000_000_000
_STOP_GRACE_NS: Final = 2_000_000_000

CMD_DRAIN: Final = b"drain"
CMD_RETIRE: Final = b"retire"
CMD_STOP: Final = b"stop"
CMD_WARMUP: Final = b"warmup"
CMD_ACCEPT: Final = b"accept"
CMD_THROW: Final = b"throw"  # tests: die as a bug would make it die
CMD_STALL: Final = b"stall"  # tests: hang for the seconds in the payload


class CoreFault(Exception):
    """Raised on purpose by CMD_THROW."""


class Core:
    """The life of one core."""

    def __init__(self, index: int, link: Mesh, setup: Any, listeners: list[Any]) -> None:
        self.index = index
        self.link = link
        self._shared_setup = setup
        self._listeners = listeners
        self.native_id = 0

    # -- thread ----------------------------------------------------------------------

    def run(self) -> None:
        """Body of the thread: returns when the server stops."""
        import threading

        self.native_id = threading.get_native_id()
        spec = self.link.plan.cores[self.index]
        pin.name_thread(f"tpc-core-{self.index}")
        setup = self.setup = copy.copy(self._shared_setup)
        if spec.cpus:
            pinned = pin.try_pin(spec.cpus)
            if pinned.reason:
                setup.log("warning", "core is not pinned as planned", core=self.index,
                          cpus=spec.cpus, reason=pinned.reason)  # fmt: skip
        self.ends = Ends(self.link)
        self.counters = Counters()
        self.counters.started_ns = time.monotonic_ns()
        self._counters_at = self.link.counters_at(self.index)
        setup.beat = Beat(self.ends.words, self._counters_at)
        self._connect()
        deaths: list[int] = []
        self._accepting = False
        self._stopping_ns = 0
        # Drained from a ring and not yet with a stage: survives a death.
        self._undelivered: deque[Record] = deque()
        self._later: list[Record] = []
        self._leftover: list[frame.Message] = []
        self._frames_left: deque[Record] = deque()
        self._warm_again = False
        generation = 0
        while True:
            try:
                generation += 1
                self._build(generation)
                self._loop()
                return
            except Exception as error:
                if not hasattr(self, "stages"):
                    # Nothing ran yet, so there is nothing to bury, and it would fail again. What
                    # the machine lacks is not a fault with a stack.
                    fault = {} if isinstance(error, OSError) else {"stack": traceback.format_exc()}
                    setup.log("error", f"a core could not start: {error}", core=self.index, **fault)
                    self.ends.words[mesh.FAILED] = 1
                    setup.wake_main()
                    return
                now = time.monotonic_ns()
                deaths = [t for t in deaths if now - t < _DEATH_WINDOW_NS] + [now]
                for_good = len(deaths) >= _DEATHS or bool(self._stopping_ns)
                # Told before anything else is tried, once, and with its stack.
                setup.log(
                    "error", "core died for good" if for_good else "core died and is rebuilt",
                    core=self.index, stack=traceback.format_exc(),
                )  # fmt: skip
                self.counters.resets += 1
                if not self._bury() or for_good:
                    self.ends.words[mesh.FAILED] = 1
                    self.counters.publish(self.ends.words, self._counters_at)
                    setup.wake_main()
                    return

    def _connect(self) -> None:
        """Ring ends live as long as the thread: their positions survive a rebuild."""
        ends = self.ends
        plan = self.link.plan
        index = self.index
        self._sleeper = ends.sleeper(index)
        others = [c for c in range(self.link.n) if c != index]
        self._mail = [ends.receiver(c, index) for c in others]
        self._alien = ends.receiver(ALIEN, index)
        detok = index in plan.stage_cores("detok")
        self._frames = ends.receiver(SCHEDULER, index) if detok else None
        self._sources = [*self._mail, self._alien, *([self._frames] if self._frames else [])]
        self._senders = {c: ends.sender(index, c) for c in others}
        self._outbox = Outbox()
        self._ports = {c: RemotePort(s, self._outbox) for c, s in self._senders.items()}
        self._to_scheduler = self._aborts = None
        if index in plan.stage_cores("tokenize"):
            self._to_scheduler = ends.sender(index, SCHEDULER)
            self._aborts = ends.sender(index, SCHEDULER, mesh.ABORTS)
        self._all_senders = [
            s for s in (*self._senders.values(), self._to_scheduler, self._aborts) if s is not None
        ]

    def _build(self, generation: int) -> None:
        self.reactor = Reactor(self._sleeper.fileno())
        self.stages = StageSet(
            self.index, self.link, self.setup, self.counters, self.reactor, self.ends,
            self._ports, self._outbox, self._to_scheduler, self._aborts, self._listeners,
            generation,
        )  # fmt: skip
        if self._accepting:
            self.stages.start_accepting()
        for message in self._leftover:
            self.stages.inbox_of(message[0]).append(message)
        self._leftover = []
        if self._warm_again:
            self._warm_again = False
            self.stages.warm_up()
        if self.stages.detok is not None:
            # Of streams whose opening is still to be delivered: they lived through the death.
            self.stages.detok.records.extend(self._frames_left)
        if generation > 1:
            for port in self._ports.values():
                port.send((frame.C_RESET, self.index))

    def _bury(self) -> bool:
        """After a death: end what can be ended, let go of the rest, free rids.

        False when not even that went well, or nothing was built that could be let go of.
        """
        try:
            try:
                self.stages.bury("internal error: a core was restarted")
            except Exception:
                self.setup.log(
                    "error", "a dead core could not end its streams", core=self.index,
                    stack=traceback.format_exc(),
                )  # fmt: skip
            self._let_go()
        except Exception:
            self.setup.log(
                "error", "a dead core could not be buried", core=self.index,
                stack=traceback.format_exc(),
            )  # fmt: skip
            return False
        return True

    def _let_go(self) -> None:
        self._leftover = self.stages.leftover()
        self._warm_again = self.stages.warming and not self.ends.words[mesh.READY]
        if self.stages.detok is not None:
            self._frames_left = self.stages.detok.records
        self.stages.abandon()
        for sender in self._all_senders:
            sender.flush()
        self.reactor.close()

    # -- loop ------------------------------------------------------------------------

    def _loop(self) -> None:
        counters = self.counters
        words = self.ends.words
        frames = self._frames
        mail = self._mail
        alien = self._alien
        outbox = self._outbox
        stages = self.stages
        polled = stages.polled
        reactor_poll = self.reactor.poll
        detok = stages.detok
        senders = self._all_senders
        clock = time.monotonic_ns
        next_tick = next_publish = 0
        while True:
            # The scheduler's ring is read before the others: a stream's opening was posted
            # before its request, so it is in one of them by now (stages.detok.poll).
            work = 0
            if frames is not None:
                records = frames.drain(_DRAIN)
                if records:
                    detok.records.extend(records)
                    work = len(records)
            if mail:
                work += self._receive(clock().to_bytes(STAMP_BYTES, "big"))
            commands = alien.drain(_DRAIN)
            if commands:
                work += len(commands)
                self._undelivered.extend(commands)
            if self._undelivered:
                self._deliver()
            for stage in polled:
                work += stage.poll(_BUDGET)
            backlog = False
            if outbox:
                outbox.pump()
                backlog = bool(outbox)
            for sender in senders:
                if not sender.flush():
                    backlog = True
            counters.loops += 1
            now = clock()
            if now >= next_tick:
                next_tick = now + TICK_NS
                for stage in polled:
                    stage.on_tick(now)
                if self._stopping_ns and self._may_stop(now):
                    return
            if now >= next_publish:
                next_publish = now + _PUBLISH_NS
                self._publish(now, words)
            if work:
                reactor_poll(0)
            else:
                self._sleep(backlog, next_tick, now, words, reactor_poll)

    def _sleep(
        self, backlog: bool, next_tick: int, now: int, words: Any, reactor_poll: Any
    ) -> None:
        """Nothing to do: announce the sleep, look again, wait for a descriptor or the bell."""
        if self.setup.spin_ns and self._spin():
            self.counters.spin_hits += 1
            return
        sleeper = self._sleeper
        self._publish(now, words)
        if not sleeper.try_sleep(self._sources):
            return
        if self.stages.pending():
            sleeper.disarm()
            return
        if backlog or self.stages.stalled():
            wait = _BACKLOG_S
        else:
            wait = min(_BACKSTOP_S, max(0.0, (next_tick - now) / 1e9))
        self.counters.waits += 1
        _, rang = reactor_poll(wait)
        self.counters.waited_ns += time.monotonic_ns() - now
        sleeper.disarm()
        if rang:
            sleeper.clear()
            self.counters.wakeups += 1

    def _spin(self) -> bool:
        until = time.monotonic_ns() + self.setup.spin_ns
        sources = self._sources
        while time.monotonic_ns() < until:
            for receiver in sources:
                if receiver.pure_poll():
                    return True
        return False

    def _publish(self, now: int, words: Any) -> None:
        counters = self.counters
        counters.heartbeat_ns = now
        bells = self.ends.bells
        counters.doorbells_written = sum([bell.written for bell in bells])
        counters.doorbells_saved = sum([bell.saved for bell in bells])
        counters.publish(words, self._counters_at)

    def _receive(self, now: bytes) -> int:
        """Messages of other cores, in the order of their times; how many are at hand.

        Rings are read one after the other, so a message can be found whose cause was posted into
        a ring that had been read by then. A cause is always older than its effect: all that are
        older than `now`, which is before the first ring was read, are here with their causes.
        The rest waits for the next turn.
        """
        found = self._later
        for receiver in self._mail:
            records = receiver.drain(_ALL)
            if records:
                found += records
        if not found:
            return 0
        count = len(found)
        found.sort(key=_stamp)
        known = bisect_right(found, now, key=_stamp)
        self._undelivered.extend(found[:known])
        del found[:known]
        return count

    def _deliver(self) -> None:
        stages = self.stages
        records = self._undelivered
        while records:
            kind, key, payload = records.popleft()
            if kind == wire.MESSAGE:
                message = frame.decode(payload)
                if message[0] == frame.C_RESET:
                    stages.core_reset(message[1])
                else:
                    stages.inbox_of(message[0]).append(message)
            elif kind == wire.COMMAND:
                self._command(key, payload)

    def _command(self, name: bytes, payload: bytes) -> None:
        if name == CMD_ACCEPT:
            self._accepting = True
            self.stages.start_accepting()
        elif name == CMD_WARMUP:
            self.stages.warm_up()
        elif name == CMD_RETIRE:
            self._accepting = False
            self.stages.retire()
        elif name == CMD_DRAIN:
            self._accepting = False
            self.stages.drain()
        elif name == CMD_STOP:
            self._accepting = False
            self._stopping_ns = time.monotonic_ns()
            self.stages.stop(payload.decode())
        elif name == CMD_THROW:
            raise CoreFault("asked to throw")
        elif name == CMD_STALL:
            time.sleep(float(payload))

    def close(self) -> None:
        """Any thread, after the core's has ended: descriptors it held, or that were sent to it."""
        stages = getattr(self, "stages", None)
        if stages is None:
            return
        stages.abandon()
        self.reactor.close()
        for receiver in self._mail:
            self._later += receiver.drain(_ALL)
        left = [*self._undelivered, *self._later]
        for message in (
            *stages.leftover(),
            *self._leftover,
            *self._outbox.unsent(),
            *[frame.decode(payload) for kind, _, payload in left if kind == wire.MESSAGE],
        ):
            fd = _descriptor_of(message)
            if fd >= 0:
                os.close(fd)

    def _may_stop(self, now: int) -> bool:
        """Everything is flushed, or the grace is over."""
        unsent = bool(self._outbox) or any(s.backlog for s in self._all_senders)
        quiet = not self.stages.busy() and not unsent
        # Streams of other cores may still end through this one: a short pause for their messages.
        settled = now - self._stopping_ns > 2 * TICK_NS // 5
        return (quiet and settled) or now - self._stopping_ns > _STOP_GRACE_NS


def _stamp(record: Record) -> bytes:
    return record[1]


def _descriptor_of(message: frame.Message) -> int:
    """The descriptor that a message hands over, or -1."""
    if message[0] == frame.E_ATTACH:
        return int(message[2])
    return int(message[1]) if message[0] == frame.I_HANDOVER else -1
