"""Programs of producers and consumers over the shipped classes. Owner: one explorer each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

from tests.interleave.explore import Explorer
from tests.interleave.tso import Recorder, Side, SideMemory
from tpc_server import mailbox as shipped_mailbox
from tpc_server import ring as shipped_ring
from tpc_server import ring_reader as shipped_ring_reader

CAPACITY: Final = 64
STRIDE: Final = 3 * 128
"""Ring header, 64 bytes of data, rounded up to where the next ring may start."""
POISON: Final = 0xEE
"""What record memory holds before anything is written: no header, no payload looks like it."""

Message = tuple[int, bytes, tuple[bytes, ...]]
BarrierOf = Callable[[str], Callable[[], Any] | None]


def message(number: int, payload: int, key: int = 0) -> Message:
    """Message `number`: every byte of it tells it from its neighbours."""
    body = bytes((16 * (number + 1) + at % 16) & 0xFF for at in range(payload))
    return number, bytes([0xA0 + number]) * key, (body,)


def never() -> bool:
    return False


class World:
    """Memory of some rings and doorbells, the code under test, and the sides that run it.

    `ring`, `ring_reader` and `mailbox` are the shipped modules or mutated copies; `barriers` may
    replace the barrier of the doorbell ends it is asked about, by name ("arm", "ring",
    "arm space", "ring space").
    """

    def __init__(
        self,
        rings: int,
        doorbells: int,
        ring: Any = shipped_ring,
        ring_reader: Any = shipped_ring_reader,
        mailbox: Any = shipped_mailbox,
        barriers: BarrierOf = lambda name: None,
    ) -> None:
        self.ring = ring
        self.ring_reader = ring_reader
        self.mailbox = mailbox
        self.barriers = barriers
        self.rings = rings
        data = bytes(256) + bytes([POISON]) * (STRIDE - 256)
        self.memory = data * rings + bytes(128) * doorbells
        self.sides: list[Side] = []

    def doorbell(self, memory: SideMemory, number: int, end: str) -> Any:
        barrier = self.barriers(end) or memory.barrier
        offset = STRIDE * self.rings + 128 * number
        return self.mailbox.Doorbell(memory, offset, memory.event(number), barrier)

    def sender(self, memory: SideMemory, ring: int, doorbell: int, cap_records: int) -> Any:
        producer = self.ring.Producer(memory, ring * STRIDE, CAPACITY, cap_records)
        return self.mailbox.Sender(
            producer, self.mailbox.Bell(self.doorbell(memory, doorbell, "ring"))
        )

    def receiver(self, memory: SideMemory, ring: int, space: int | None) -> Any:
        consumer = self.ring_reader.Consumer(memory, ring * STRIDE, CAPACITY)
        bell = None
        if space is not None:
            bell = self.mailbox.Bell(self.doorbell(memory, space, "ring space"), space=True)
        return self.mailbox.Receiver(consumer, bell)

    def add_poller(
        self,
        ring: int,
        doorbell: int,
        messages: Sequence[Message],
        batch: int = 1,
        cap_records: int = 64,
        close: bool = True,
    ) -> None:
        """A producer that posts in batches and tries again when there is no room."""
        recorder = Recorder()
        state = SimpleNamespace(
            sender=self.sender(SideMemory(recorder), ring, doorbell, cap_records),
            sent=0,
            batched=0,
        )

        def post(s: Any) -> str | None:
            if s.sent == len(messages):
                return "flush" if s.batched else "close"
            if not s.sender.post(*messages[s.sent]):
                return "flush"
            s.sent += 1
            s.batched += 1
            return "flush" if s.batched == batch else "post"

        def flush(s: Any) -> str | None:
            s.batched = 0
            return "post" if s.sender.flush() else "flush"

        def end(s: Any) -> str | None:
            if close:
                assert s.sender.close()
            return None

        operations = {"post": post, "flush": flush, "close": end}
        once = frozenset({"flush", "close"})
        name = f"producer {ring}"
        self.sides.append(Side(name, recorder, state, operations, "post", once))

    def add_urgent(self, ring: int, doorbell: int, messages: Sequence[Message]) -> None:
        """A producer whose records must never be refused, whatever room the ring has."""
        recorder = Recorder()
        sender = self.sender(SideMemory(recorder), ring, doorbell, cap_records=1)
        state = SimpleNamespace(sender=sender)

        def post(s: Any) -> str | None:
            for number, key, parts in messages:
                s.sender.post_urgent(number, key, parts)
            return "flush"

        def flush(s: Any) -> str | None:
            return "close" if s.sender.flush() else "flush"

        def end(s: Any) -> str | None:
            assert s.sender.close()
            return None

        operations = {"post": post, "flush": flush, "close": end}
        once = frozenset(operations)
        self.sides.append(Side("urgent", recorder, state, operations, "post", once))

    def add_blocker(
        self,
        rings: Sequence[int],
        doorbells: Sequence[int],
        space: int,
        messages: Sequence[Message],
        cap_records: int = 64,
    ) -> None:
        """A producer that puts every message into all its rings, sleeping for space."""
        recorder = Recorder()
        memory = SideMemory(recorder)
        pairs = zip(rings, doorbells, strict=True)
        state = SimpleNamespace(
            senders=tuple(self.sender(memory, ring, bell, cap_records) for ring, bell in pairs),
            waiter=self.mailbox.SpaceWaiter(self.doorbell(memory, space, "arm space")),
            sent=0,
        )
        broadcast = self.mailbox.broadcast

        def send(s: Any) -> str | None:
            if s.sent == len(messages):
                return "close"
            assert broadcast(s.senders, *messages[s.sent], never, s.waiter)
            s.sent += 1
            return "send"

        def end(s: Any) -> str | None:
            for sender in s.senders:
                assert sender.close()
            return None

        operations = {"send": send, "close": end}
        self.sides.append(Side("producer", recorder, state, operations, "send"))

    def add_consumer(
        self,
        rings: Sequence[int],
        doorbell: int,
        expected: Sequence[Sequence[Message]],
        space: int | None = None,
        max_records: int = 2,
        sleeps: bool = True,
        quits_after: int = -1,
    ) -> None:
        """A consumer of some rings that sleeps when all are empty, and ends when all closed.

        `sleeps=False`: it spins instead. `quits_after`: it closes its first ring unread once
        it has that many records, and ends.
        """
        recorder = Recorder()
        memory = SideMemory(recorder)
        sleeper = self.mailbox.Sleeper(self.doorbell(memory, doorbell, "arm"))
        state = SimpleNamespace(
            receivers=tuple(self.receiver(memory, ring, space) for ring in rings),
            sleeper=sleeper,
            got=[0] * len(rings),
            closed=[0] * len(rings),
            turn=0,
            idle=0,
        )
        wanted = [
            [(kind, key, b"".join(parts)) for kind, key, parts in messages] for messages in expected
        ]

        def drain(s: Any) -> str | None:
            turn = s.turn
            out = s.receivers[turn].drain(max_records)
            first = s.got[turn]
            s.got[turn] += len(out)
            assert out == wanted[turn][first : first + len(out)], f"torn or out of order: {out}"
            s.idle = 0 if out else s.idle + 1
            s.closed[turn] = int(s.receivers[turn].closed)
            s.turn = (turn + 1) % len(rings)
            if 0 <= quits_after <= s.got[0]:
                s.receivers[0].close()
                return None
            if all(s.closed):
                assert s.got == [len(messages) for messages in wanted], "records lost"
                return None
            if s.idle >= len(rings):
                s.idle = 0
                return "rest" if sleeps else "drain"
            return "drain"

        def rest(s: Any) -> str | None:
            return "sleep" if s.sleeper.try_sleep(s.receivers) else "drain"

        def sleep(s: Any) -> str | None:
            s.sleeper.wait(-1)
            return "drain"

        operations = {"drain": drain, "rest": rest, "sleep": sleep}
        name = f"consumer {doorbell}"
        self.sides.append(Side(name, recorder, state, operations, "drain"))

    def explore(self, max_states: int = 3_000_000, lazy: bool = True) -> Explorer:
        explorer = Explorer(self.sides, self.memory, max_states, lazy)
        explorer.run()
        return explorer
