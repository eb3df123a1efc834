"""Frontend processes that this scheduler started. Owner: the scheduler's thread.

A *seat* is what clients see: listening sockets that outlive every process. It has one process that
takes new connections, and for a while others that finish what they have (after a reload).
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

from ..metrics.area import MetricsArea
from . import protocol
from .awake import Awake
from .control import LEAVING, SERVING, STARTING
from .hub import Hub
from .link import START_S, Link, attached
from .messages import Channel, LinkClosed, text_of
from .process import Ending, StartError, child_environment, epitaph, hangups_wait, kill

_LONG_LIVED_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.1
_MOST_PAUSE_S: Final = 5.0
_KILL_S: Final = 2.0
# Until the place of one that a signal ends is filled: who ends the server tells all its processes.
_MOMENT_S: Final = 0.5
_GONE: Final = "a frontend process is gone ({}); its requests are aborted"
_LEAVES: Final = (
    "a frontend process was told to end by a signal: it finishes its requests, another one"
    " takes its place"
)
_HAS_LEFT: Final = "a frontend process that a signal told to end has ended ({})"
_TAKES_OVER: Final = (
    "reload: frontend process {} takes the connections, process {} finishes its requests"
)
_CUT_SHORT: Final = (
    "reload: the frontend process that was replaced is gone ({{}}); {} of its requests are aborted"
)
_FINISHED: Final = "reload: the frontend process that was replaced has ended ({})"
_ENDING: Final = "the server is ending"
_NOT_STARTED: Final = "a frontend process did not start: {}"
_NOT_REPLACED: Final = "no reload: the new frontend process is gone ({}), the old one stays"
SLOTS: Final = 8  # a seat's processes at most, and their places in the metrics


class Starting:
    """A process that has not said yet where its rings are."""

    def __init__(self, process: Any, channel: Channel, slot: int) -> None:
        self.process = process
        self.channel = channel
        self.slot = slot
        self.awake = Awake(time.monotonic_ns())  # since it was spoken to last


class Seat:
    """The listening sockets of one frontend, and the process that has them."""

    def __init__(
        self, hub: Hub, listeners: list[list[socket.socket]], config: dict[str, Any],
        command: list[str], stall_s: float, log: Callable[[str], None],
        metrics: MetricsArea | None = None, first_slot: int = 0, registry_fd: int = -1,
    ) -> None:  # fmt: skip
        """`metrics`: what all frontends count in, from `first_slot` on SLOTS are this seat's.
        `registry_fd`: of a prefill server, for all of them."""
        self.listeners = listeners
        self._hub = hub
        self._config = config
        self._command = command
        self._stall_s = stall_s
        self._log = log
        self._metrics = metrics
        self._first_slot = first_slot
        self._registry_fd = registry_fd
        self.link: Link | None = None
        self._starting: Starting | None = None
        self._retired: list[Link] = []
        self._dying: list[Ending] = []  # to be reaped
        self._pause_s = _FIRST_PAUSE_S
        self._retry_at = 0.0
        self._warm = False  # a process has had its warm-up answered
        self.reloading = False
        self.not_reloaded = ""  # why the last reload changed nothing, once that is known
        self.restarts = 0
        self.stopping = False

    # -- starting ----------------------------------------------------------------------

    def start(self) -> None:
        """Start a process; `tend` goes on from there. Raises StartError."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise StartError(f"no socket for a frontend process: {error}") from None
        with theirs:
            try:
                with hangups_wait():
                    process = subprocess.Popen(
                        [*self._command, "--sidecar", str(theirs.fileno())],
                        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                        start_new_session=True, env=child_environment(),
                    )  # fmt: skip
            except OSError as error:
                ours.close()
                raise StartError(f"{self._command[0]} does not start: {error}") from None
        channel = Channel(ours)
        channel.watch(process.pid)
        self._starting = Starting(process, channel, self._free_slot())
        self._hub.expect(channel)

    def _welcome(self, starting: Starting) -> None:
        """What a process is told once it has said who it is."""
        words: dict[str, Any] = {
            "config": self._next_config(),
            "listeners": [len(group) for group in self.listeners],
        }
        fds = [sock.fileno() for group in self.listeners for sock in group]
        if self._metrics is not None:
            area = self._metrics
            words["metrics"] = [area.region.size, area.slots, starting.slot, area.cores]
            fds.append(self._metrics.region.fd)
        if self._registry_fd >= 0:
            words["registry"] = True
            fds.append(self._registry_fd)
        starting.channel.post(words, fds)  # inside of a scheduler's call it may be, and read later
        starting.awake = Awake(time.monotonic_ns())

    def _next_config(self) -> dict[str, Any]:
        """Of the next process. It need not warm up a scheduler that has answered the one before,
        and health probes of clients must not fail meanwhile."""
        if not self._warm:
            return self._config
        return self._config | {"args": self._config["args"] | {"skip_server_warmup": True}}

    def _free_slot(self) -> int:
        """Of the metrics: one that no process counts in; what is counted there goes on."""
        taken = {link.slot for link in (*self._retired, self.link) if link is not None}
        # There is one: `reload` starts no process beyond.
        return min(set(range(self._first_slot, self._first_slot + SLOTS)) - taken)

    def wait_started(self, timeout_s: float = START_S) -> None:
        """The first start: until it takes connections. Raises StartError with its own words."""
        deadline = time.monotonic() + timeout_s
        while True:
            starting = self._starting
            if starting is not None:
                self._answer(starting, 0.05)
            link = self.link
            if link is not None:
                link.hear()
                if link.accepting:
                    return
                if link.gone:
                    raise StartError(link.failure or "the frontend process ended while it started")
                time.sleep(0.005)
            elif self._starting is None:
                raise StartError(self.failure or "the frontend process ended while it started")
            if time.monotonic() > deadline:
                raise StartError(f"the frontend process did not start in {timeout_s:.0f} s")

    failure = ""

    def _answer(self, starting: Starting, wait_s: float) -> None:
        """The process's first words, if they have come."""
        try:
            message = starting.channel.wait(wait_s) if wait_s else starting.channel.poll()
        except TimeoutError:
            message = None
        except LinkClosed:
            if wait_s:
                self.failure = epitaph(starting.process, 0.5)
                self._give_up(starting)
            else:
                self.failure = "it has ended"
                self._give_up(starting, _KILL_S, _NOT_STARTED)  # told when it is known how
            return
        if message is None:
            if starting.awake.look(time.monotonic_ns()) > START_S * 1e9:
                self.failure = "it did not answer"
                self._give_up(starting)
            return
        if "refused" in message:
            self.failure = text_of(message, "refused")
            self._give_up(starting)
            return
        if "hello" in message:
            why = protocol.refusal(message["hello"])
            if why:  # another package may lie there since we were started
                self.failure = why
                starting.channel.post({"refused": why})
                self._give_up(starting, _KILL_S)
            else:
                self._welcome(starting)
            return
        try:
            link = attached(starting.channel, message.get("mesh"), self._stall_s)
        except ValueError as error:
            self.failure = str(error)
            self._give_up(starting)
            return
        self._starting = None
        self._hub.forget(starting.channel)
        link.process = starting.process
        link.slot = starting.slot
        if self.link is not None:  # a reload: the old one goes on until the new one accepts
            self._retired.append(self.link)
        self.link = link
        self._hub.add(link)

    def _give_up(self, starting: Starting, patience_s: float = 0.0, line: str = "") -> None:
        self._starting = None
        self._hub.forget(starting.channel)
        starting.channel.close()
        line = "" if self.stopping else line
        self._dying.append(Ending(starting.process, line, patience_s))
        if self.reloading:
            self._not_reloaded(self.failure)
        if self.link is None:
            self._later()
        if not self.stopping and not line:
            self._log(_NOT_STARTED.format(self.failure))

    def _not_reloaded(self, why: str) -> None:
        self.reloading = False
        self.not_reloaded = _ENDING if self.stopping else f"the new process does not serve: {why}"

    def _unstarted(self, error: StartError) -> None:
        """Inside of a scheduler's call, which must not pay for what the machine lacks."""
        self.failure = str(error)
        if self.link is None:
            self._later()
        self._log(_NOT_STARTED.format(self.failure))

    def _later(self) -> None:
        self._retry_at = time.monotonic() + self._pause_s
        self._pause_s = min(_MOST_PAUSE_S, self._pause_s * 2)

    # -- life --------------------------------------------------------------------------

    def tend(self) -> None:
        """Go on with whatever is due; returns at once."""
        self._reap()
        starting = self._starting
        if starting is not None:
            self._answer(starting, 0)
        for one in [one for one in (*self._retired, self.link) if one is not None]:
            if one.leaving and not one.retired:
                self._let_go(one)
            if one.gone:
                self._bury(one)
        link = self.link
        if link is not None and link.ready:
            self._warm = True
        if link is not None and link.accepting and self._starting is None:
            for old in self._retired:
                if not old.retired:
                    old.retired = True
                    old.channel.post({"retire": self._config["options"]["retire_s"]})
                    if self.reloading:
                        self._log(_TAKES_OVER.format(link.process.pid, old.process.pid))
            self.reloading = False
        if link is not None and link.reload_asked:
            link.reload_asked = False
            if not self.reload():
                self._log(f"no reload: {self.busy}")
        idle = link is None and self._starting is None and not self.stopping
        if idle and time.monotonic() >= self._retry_at:
            self.restarts += 1
            try:
                self.start()
            except StartError as error:
                self._unstarted(error)

    @property
    def calm(self) -> bool:
        """Whether `tend` has nothing to do until a process says something, or is gone."""
        link = self.link
        under_way = self._starting or self._retired or self._dying or self.reloading
        return link is not None and link.accepting and not (under_way or self.stopping)

    @property
    def busy(self) -> str:
        """Why no other process may start now; "" when one may."""
        if self.stopping:
            return _ENDING
        if self._starting is not None or self.reloading:
            return "a process is starting already"
        if len(self._retired) + 2 > SLOTS:
            return (
                f"{len(self._retired)} processes that were replaced still have requests"
                " (TPC_RETIRE_TIMEOUT bounds how long)"
            )
        return ""

    def reload(self) -> bool:
        """Start another process; it takes over once it accepts. False where `busy` says why."""
        if self.busy:
            return False
        self.not_reloaded = ""
        try:
            self.start()
        except StartError as error:
            self._unstarted(error)
            self._not_reloaded(self.failure)
            return False
        self.reloading = True
        return True

    def _let_go(self, link: Link) -> None:
        """A signal told it to end: it finishes what it has, and another one takes its place."""
        link.retired = True
        if self.stopping:
            return
        self._log(_LEAVES)
        if link is self.link and len(self._retired) + 2 <= SLOTS:  # else once it has gone
            self._retired.append(link)
            self.link = None
            self._retry_at = time.monotonic() + _MOMENT_S

    def _bury(self, link: Link) -> None:
        lived = time.monotonic() - link.since
        aborted = self._hub.bury(link)
        # One that hung up ends by itself, and only its end says why; what is stuck does not.
        patience_s = 0.0 if link.failure else _KILL_S
        if link in self._retired:
            self._retired.remove(link)
            # One that the new process was to replace, and did not yet, served.
            if not link.retired:
                line = _GONE
            elif link.leaving:
                line = _HAS_LEFT
            else:
                line = _CUT_SHORT.format(aborted) if aborted else _FINISHED
            if link.failure and not self.stopping:
                self._log(line.format(link.failure))
            line = "" if self.stopping or link.failure else line
            self._dying.append(Ending(link.process, line, patience_s))
            return
        # One that was to be replaced, and was not told so yet, stays.
        serving = [old for old in self._retired if not old.retired and not old.gone]
        self.link = serving[-1] if serving else None
        if self.reloading and self._starting is None:  # else it died instead of the new one
            self._not_reloaded(link.failure or "it has ended, its server's log says how")
        if self._starting is None:  # else what was to replace it does so
            self.reloading = False
        if self.link is not None:
            self._retired.remove(self.link)
        elif lived > _LONG_LIVED_S:
            self._pause_s = _FIRST_PAUSE_S
            self._retry_at = 0.0
        else:
            self._later()
        line = _GONE if self.link is None else _NOT_REPLACED
        if link.leaving:
            line = _HAS_LEFT
        told = self.stopping or link.failure  # now
        self._dying.append(Ending(link.process, "" if told else line, patience_s))
        if link.failure and not self.stopping:
            self._log(line.format(link.failure))

    def _reap(self) -> None:
        """Never waits: a process takes its time to die, and this is a scheduler's."""
        self._dying = [one for one in self._dying if not one.over(self._log)]

    def states(self) -> dict[int, str]:
        """What each process does that runs, by its pid, the newest last. Any thread."""
        starting = self._starting  # before the links: one that has started is in one of the two
        found = {}
        for link in (*self._retired, self.link):
            if link is not None:
                leaves = link.retired or self.stopping
                state = LEAVING if leaves else SERVING if link.accepting else STARTING
                found[link.process.pid] = state
        if starting is not None:
            found.setdefault(starting.process.pid, STARTING)
        return found

    def processes(self) -> list[int]:
        """Pids of the processes that run, the newest last. Any thread."""
        return list(self.states())

    # -- ends --------------------------------------------------------------------------

    def finish(self, drain_s: float) -> None:
        """Tell every process to finish what it has; `tend` buries them when they have ended."""
        self.stopping = True
        if self._starting is not None:
            self._give_up(self._starting)
        for link in (*self._retired, self.link):
            if link is not None:
                link.channel.post({"drain": drain_s})

    def tell_stop(self) -> None:
        """Tell every process to end."""
        self.stopping = True
        if self._starting is not None:
            self._give_up(self._starting)
        for link in (*self._retired, self.link):
            if link is not None:
                link.channel.post({"stop": True})

    def stop(self) -> None:
        """After `tell_stop`: end what does not end by itself."""
        deadline = time.monotonic() + _KILL_S
        for link in [link for link in (*self._retired, self.link) if link is not None]:
            while not link.gone and time.monotonic() < deadline:
                link.hear()
                if link.process.poll() is not None:
                    break
                time.sleep(0.01)
            kill(link.process)
            self._hub.bury(link)
            link.process.wait()
        self._retired.clear()
        self.link = None
        for ending in self._dying:
            kill(ending.process)
            ending.process.wait()
