"""The stage protocol and the ports between stages. Owner: the core that runs the stage.

A stage is a finite-state machine that is fed messages and polled; it does not know which
core runs it, nor where the stages it talks to run: it only holds ports.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, Protocol

from .. import frame
from ..boundary import wire
from ..mailbox import Sender

STAMP_BYTES: Final = 8  # of a message's time, big-endian, so that bytes compare as numbers do


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


class DirectPort:
    """Port to a stage on the same core that may be called inside of another's work.

    With nothing before it in the inbox a message is handled at once, in the same order. The sender
    must be done with what the receiver may touch. Only for work that is short: what runs long
    (encoding) is faster for all requests of a turn together, after everything before it.
    """

    __slots__ = ("_handle", "_inbox")
    backlog = 0

    def __init__(
        self, inbox: deque[frame.Message], handle: Callable[[frame.Message], None]
    ) -> None:
        self._inbox = inbox
        self._handle = handle

    def send(self, message: frame.Message) -> None:
        """Handled when it returns, or behind those that wait."""
        if self._inbox:
            self._inbox.append(message)
        else:
            self._handle(message)


class Outbox:
    """What one core sends to the others, in the order in which it was sent.

    A ring that is full holds back everything sent after it, to any core: a message can then not
    overtake one that it depends on by another way. Each carries the time at which it was
    published (`received` in `core.py` puts those of several cores in order).
    """

    __slots__ = ("_acquire", "_release", "spill")

    def __init__(self) -> None:
        lock = allocate_lock()
        self._acquire = lock.acquire
        self._release = lock.release
        # Bounded by the number of live requests: each sends a fixed number of messages.
        self.spill: deque[tuple[Sender, bytes]] = deque()

    def __len__(self) -> int:
        return len(self.spill)

    def send(self, sender: Sender, data: bytes) -> None:
        """Posts to the ring, or keeps it for `pump` when the ring is full."""
        if self.spill or not self._post(sender, data):
            self.spill.append((sender, data))

    def pump(self) -> None:
        """Moves what waits into the rings as far as it fits."""
        spill = self.spill
        while spill and self._post(*spill[0]):
            spill.popleft()

    def unsent(self) -> list[frame.Message]:
        """What no ring has taken."""
        return [frame.decode(data) for _, data in self.spill]

    def _post(self, sender: Sender, data: bytes) -> bool:
        # The barrier: what was published before is visible everywhere before the clock is read.
        self._acquire()
        self._release()
        return sender.post(wire.MESSAGE, monotonic_ns().to_bytes(STAMP_BYTES, "big"), (data,))


class RemotePort:
    """Port to all stages of one other core: one ring, one doorbell a turn."""

    __slots__ = ("_outbox", "_sender")

    def __init__(self, sender: Sender, outbox: Outbox) -> None:
        self._sender = sender
        self._outbox = outbox

    @property
    def backlog(self) -> int:
        """Messages of this core, to whichever other, that wait on this side of a ring."""
        return len(self._outbox)

    def send(self, message: frame.Message) -> None:
        """Never blocks."""
        self._outbox.send(self._sender, frame.encode(message))
