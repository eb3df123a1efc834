"""The stage protocol and the ports between stages. Owner: the core that runs the stage.

A stage is a finite-state machine that is fed messages and polled; it does not know which
core runs it, nor where the stages it talks to run: it only holds ports.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from .. import frame
from ..boundary import wire
from ..mailbox import Sender


class Port(Protocol):
    """Where a stage sends messages for another stage."""

    def send(self, message: frame.Message) -> None:
        """Never blocks, never drops; order is kept per target core."""

    @property
    def backlog(self) -> int:
        """Messages that did not fit into the ring yet (admission control looks at it)."""


class Stage(Protocol):
    """One FSM step; `poll` does bounded work and says how much it did."""

    name: str
    inbox: deque[frame.Message]

    def poll(self, budget: int) -> int:
        """Handle up to `budget` messages or events; units done."""

    def pure_poll(self) -> bool:
        """Whether there is something to do; no side effects."""

    def on_tick(self, now_ns: int) -> None:
        """Coarse clock, CLOCK_MONOTONIC in nanoseconds."""


class LocalPort:
    """Port to a stage on the same core."""

    __slots__ = ("_append",)
    backlog = 0

    def __init__(self, inbox: deque[frame.Message]) -> None:
        self._append = inbox.append

    def send(self, message: frame.Message) -> None:
        """Appends to the stage's inbox; handled in the same turn of the loop."""
        self._append(message)


class RemotePort:
    """Port to all stages of one other core: one ring, one doorbell a turn."""

    __slots__ = ("_sender", "_spill")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        # Bounded by the number of live requests: each sends a fixed number of messages.
        self._spill: deque[bytes] = deque()

    @property
    def backlog(self) -> int:
        """Messages waiting on this side of the ring."""
        return len(self._spill)

    def send(self, message: frame.Message) -> None:
        """Posts to the ring, or keeps it for `pump` when the ring is full."""
        data = frame.encode(message)
        if self._spill or not self._sender.post(wire.MESSAGE, b"", (data,)):
            self._spill.append(data)

    def pump(self) -> None:
        """Moves what waits into the ring as far as it fits."""
        spill = self._spill
        while spill and self._sender.post(wire.MESSAGE, b"", (spill[0],)):
            spill.popleft()
