"""Frontends that join a running scheduler from outside. Owner: the scheduler's thread.

The scheduler listens on a UNIX socket; a frontend connects, is told what it needs to know, and
hands over its rings. Each side may start first, and may be restarted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ..metrics.area import MetricsArea
from . import protocol
from .awake import Awake
from .hub import Hub
from .link import START_S, Link, attached
from .listening import Listener
from .messages import Channel, LinkClosed, text_of

_HELLO_S: Final = 10.0  # until somebody who connected says who it is
# Guests at most: places where metrics are counted, and cores that each may have.
GUESTS: Final = 16
GUEST_CORES: Final = 32
_FULL: Final = f"{GUESTS} frontends are attached or on their way, there is room for no more"
_REFUSED: Final = "a frontend could not be attached: {}"


class _Comer:
    """Somebody who connected, and what is waited for."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.slot = -1
        self.greeted = False
        self.wait_for(_HELLO_S)

    def wait_for(self, seconds: float) -> None:
        """Its next words, so long from now."""
        self._awake = Awake(time.monotonic_ns())
        self._limit_ns = seconds * 1e9

    def late(self) -> bool:
        """Whether they should have come."""
        return self._awake.look(time.monotonic_ns()) > self._limit_ns


class Guests:
    """The socket, and the links of those who came through it."""

    def __init__(
        self, hub: Hub, path: str, config: dict[str, Any], stall_s: float,
        log: Callable[[str], None], registry_fd: int = -1, metrics: MetricsArea | None = None,
        first_slot: int = 0,
    ) -> None:  # fmt: skip
        """`metrics`: what all frontends count in, from `first_slot` on GUESTS are for these.

        Raises OSError where it cannot listen, or another scheduler does.
        """
        self._hub = hub
        self._config = config
        self._stall_s = stall_s
        self._log = log
        self._registry_fd = registry_fd
        self._metrics = metrics
        self._slots = range(first_slot, first_slot + GUESTS)
        self._coming: list[_Comer] = []
        self.links: list[Link] = []
        self._finishing = False
        self._listener = Listener(path, log)

    def fileno(self) -> int:
        """For poll; -1 while it makes no sense."""
        return self._listener.fileno()

    def serve(self) -> None:
        """Let in who waits; they speak first."""
        for peer in self._listener.accept():
            channel = Channel(peer)
            if self._finishing:
                channel.close()
            elif len(self._coming) + len(self.links) >= GUESTS:
                channel.post({"refused": _FULL})
                channel.close()
            else:
                channel.watch()
                self._coming.append(_Comer(channel))
                self._hub.expect(channel)

    def _welcome(self, comer: _Comer) -> None:
        """Tell a guest what it needs to know."""
        words: dict[str, Any] = {"config": self._config, "listeners": []}
        fds = []
        taken = {link.slot for link in self.links} | {other.slot for other in self._coming}
        comer.slot = min(set(self._slots) - taken)  # there is one: `serve` lets in no more
        if self._metrics is not None:
            area = self._metrics
            words["metrics"] = [area.region.size, area.slots, comer.slot, area.cores]
            fds.append(area.region.fd)
        if self._registry_fd >= 0:
            words["registry"] = True
            fds.append(self._registry_fd)
        comer.channel.post(words, fds)  # inside of a scheduler's call, and who reads slowly may
        comer.greeted = True
        comer.wait_for(START_S)

    def tend(self) -> None:
        """Go on with whoever is coming or going; returns at once."""
        self.serve()
        for comer in self._coming[:]:
            self._hear(comer)
        for link in [one for one in self.links if one.gone]:
            self.links.remove(link)
            self._hub.bury(link)
            if not self._finishing:
                why = f" ({link.failure})" if link.failure else ""
                self._log(f"an attached frontend has left{why}; its requests are aborted")

    @property
    def calm(self) -> bool:
        """Whether `tend` has nothing to do until somebody comes, or is gone."""
        return not self._coming and all([link.accepting for link in self.links])

    def _hear(self, comer: _Comer) -> None:
        """What a comer says, or that it says nothing."""
        try:
            message = comer.channel.poll()
        except LinkClosed:
            # Before it said who it is: somebody who looked whether we listen.
            return self._turn_away(comer, "it left" if comer.greeted else "")
        if message is None:
            if comer.late():
                self._turn_away(comer, "silence")
        elif "hello" in message and not comer.greeted:
            why = protocol.refusal(message["hello"])
            if not why:
                return self._welcome(comer)
            comer.channel.post({"refused": why})
            self._turn_away(comer, why)
        elif "mesh" in message and comer.greeted:
            self._let_in(comer, message["mesh"])
        else:
            self._turn_away(comer, text_of(message, "refused") or protocol.refusal(None))

    def _let_in(self, comer: _Comer, about: Any) -> None:
        try:
            link = attached(comer.channel, about, self._stall_s)
        except ValueError as error:
            return self._turn_away(comer, str(error))
        self._forget(comer)
        link.slot = comer.slot
        self.links.append(link)
        self._hub.add(link)
        if self._finishing:
            link.channel.post({"drain": 0.0})

    def _turn_away(self, comer: _Comer, why: str) -> None:
        self._forget(comer)
        comer.channel.close()
        if why:
            self._log(_REFUSED.format(why))

    def _forget(self, comer: _Comer) -> None:
        self._coming.remove(comer)
        self._hub.forget(comer.channel)

    def finish(self, seconds: float) -> None:
        """Let nobody in any more, and tell all to finish what they have; `tend` buries them when
        they have hung up."""
        self._finishing = True
        for link in self.links:
            link.channel.post({"drain": seconds})

    def remove(self) -> None:
        """The path goes, before the process ends without a `close`. Any thread."""
        self._listener.remove()

    def close(self) -> None:
        """Hang up: they end their streams and wait for the next scheduler."""
        for link in self.links:
            self._hub.bury(link)
        self.links.clear()
        for comer in self._coming[:]:
            self._turn_away(comer, "")
        self._listener.close()
