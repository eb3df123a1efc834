"""A machine with x86-64 memory order for the shipped ring code. Owner: the explorer.

Every side has a FIFO store buffer: a store goes to its end, a load sees the side's own newest
buffered store before memory, a barrier waits for an empty buffer, and taking the oldest store
to memory is a step of its own that may happen at any time. (Sewell et al., x86-TSO.)

The shipped code runs unchanged over `SideMemory`. It cannot be suspended in the middle, so a
step re-runs the current operation from its start: the objects are put back to their state at
that moment, the results of the accesses already made are played back from a log, and the first
access beyond the log raises `Suspend`. An operation is deterministic in those results, so the
log stands for all its local variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

LOAD: Final = "load"
BARRIER: Final = "barrier"
EVENT_WRITE: Final = "event write"
EVENT_READ: Final = "event read"
EVENT_WAIT: Final = "event wait"
DONE: Final = "done"

WILD: Final = 4096
"""No record of a model run is this long: a copy of so many bytes followed a torn header."""

Action = tuple[str, int, int]
"""(kind, address or event number, bytes)"""
Store = tuple[int, bytes]


class Suspend(BaseException):
    """Raised at the first access whose result is not known yet; BaseException, so that no
    handler of the code under test takes it for an error of its own."""


class Recorder:
    """One side's view of the machine while its code is being re-run."""

    __slots__ = ("action", "log", "played", "stores", "writes")

    def __init__(self) -> None:
        self.log: tuple[Any, ...] = ()
        self.played = 0
        self.stores: list[Store] = []
        self.writes = 0
        self.action: Action = (DONE, 0, 0)

    def restart(self, log: tuple[Any, ...]) -> None:
        self.log = log
        self.played = 0
        self.writes = 0

    def access(self, kind: str, where: int, size: int) -> Any:
        if self.played < len(self.log):
            self.played += 1
            return self.log[self.played - 1]
        self.action = (kind, where, size)
        raise Suspend

    def store(self, address: int, data: bytes) -> None:
        # Stores before the end of the log were made when the log was that long.
        if self.played == len(self.log):
            self.stores.append((address, data))


class ModelWords:
    """`words` or `halves` of a mapping: one access per item."""

    __slots__ = ("recorder", "size")

    def __init__(self, recorder: Recorder, size: int) -> None:
        self.recorder = recorder
        self.size = size

    def __getitem__(self, index: int) -> int:
        data = self.recorder.access(LOAD, index * self.size, self.size)
        return int.from_bytes(data, "little")

    def __setitem__(self, index: int, value: int) -> None:
        self.recorder.store(index * self.size, value.to_bytes(self.size, "little"))


class ModelBytes:
    """`buf` of a mapping: a copy is one access per aligned word it touches, in order."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __getitem__(self, span: slice) -> bytes:
        return b"".join(self.recorder.access(LOAD, at, size) for at, size in _words_of(span))

    def __setitem__(self, span: slice, data: Any) -> None:
        flat = memoryview(data).cast("B")
        if flat.nbytes != span.stop - span.start:
            raise IndexError("slice assignment is wrong size")
        for at, size in _words_of(span):
            start = at - span.start
            self.recorder.store(at, bytes(flat[start : start + size]))


def _words_of(span: slice) -> list[tuple[int, int]]:
    if not 0 <= span.start <= span.stop <= span.start + WILD:
        raise IndexError(f"wild access to {span}")
    out: list[tuple[int, int]] = []
    at = span.start
    while at < span.stop:
        end = min((at | 7) + 1, span.stop)
        out.append((at, end - at))
        at = end
    return out


class SideMemory:
    """What the shipped code takes for a region and for its mapping."""

    __slots__ = ("buf", "halves", "recorder", "words")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.words = ModelWords(recorder, 8)
        self.halves = ModelWords(recorder, 4)
        self.buf = ModelBytes(recorder)

    def mapping(self) -> SideMemory:
        return self

    def event(self, number: int) -> ModelEvent:
        return ModelEvent(self.recorder, number)

    def barrier(self) -> ModelBarrier:
        return ModelBarrier(self.recorder)


class ModelBarrier:
    """A lock of one side: the acquire is the barrier."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def acquire(self) -> bool:
        self.recorder.access(BARRIER, 0, 0)
        return True

    def release(self) -> None:
        pass


class NoBarrier:
    """The mutation: a lock that orders nothing."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class ModelEvent:
    """An eventfd. Writing takes the kernel's spin lock, so it drains the store buffer."""

    __slots__ = ("number", "recorder")

    def __init__(self, recorder: Recorder, number: int) -> None:
        self.recorder = recorder
        self.number = number

    def write(self) -> None:
        self.recorder.writes += 1
        self.recorder.access(EVENT_WRITE, self.number, 0)

    def read(self) -> None:
        self.recorder.access(EVENT_READ, self.number, 0)

    def wait(self, timeout_ms: int) -> bool:
        # No time-out in the model: the protocol must not need its backstop.
        self.recorder.access(EVENT_WAIT, self.number, 0)
        return True

    def fileno(self) -> int:
        return -1


class Side:
    """One thread's program over shipped objects.

    `state` holds them (and plain counters) as attributes; `operations` maps a name to a
    function of that state that returns the next name, or None at the end. A function may
    assert what it likes. `once` names operations that may write an event once at most.
    """

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        state: Any,
        operations: Mapping[str, Callable[[Any], str | None]],
        first: str,
        once: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.recorder = recorder
        self.state = state
        self.operations = operations
        self.once = once
        self._slots = _plain_slots(state)
        self._nodes: dict[Any, int] = {}
        self._keys: list[tuple[str | None, Any, tuple[Any, ...]]] = []
        self.actions: list[Action] = []
        self._next: dict[tuple[int, Any], tuple[tuple[Store, ...], int]] = {}
        self.first = self._run(first, self._freeze(), ())

    def step(self, node: int, result: Any) -> tuple[tuple[Store, ...], int]:
        """What the side does after its pending action gave `result`: (stores, next node)."""
        known = self._next.get((node, result))
        if known is None:
            pc, frozen, log = self._keys[node]
            assert pc is not None
            known = self._next[node, result] = self._run(pc, frozen, (*log, result))
        return known

    def _run(self, pc: str, frozen: Any, log: tuple[Any, ...]) -> tuple[tuple[Store, ...], int]:
        recorder = self.recorder
        recorder.stores = []
        self._thaw(frozen)
        while True:
            recorder.restart(log)
            try:
                following = self.operations[pc](self.state)
            except Suspend:
                return tuple(recorder.stores), self._node(pc, frozen, log, recorder.action)
            assert recorder.played == len(log), "an operation is not deterministic"
            if pc in self.once:
                assert recorder.writes <= 1, f"{pc}: {recorder.writes} doorbells in one batch"
            frozen = self._freeze()
            if following is None:
                return tuple(recorder.stores), self._node(None, frozen, (), (DONE, 0, 0))
            pc = following
            log = ()

    def _node(self, pc: str | None, frozen: Any, log: tuple[Any, ...], action: Action) -> int:
        key = (pc, frozen, log)
        number = self._nodes.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
            self.actions.append(action)
        return number

    def _freeze(self) -> Any:
        return tuple([_freeze(getattr(owner, slot)) for owner, slot in self._slots])

    def _thaw(self, frozen: Any) -> None:
        for (owner, slot), value in zip(self._slots, frozen, strict=True):
            setattr(owner, slot, _thaw(value))

    def result(self, node: int) -> tuple[int, ...]:
        """The list `seen` of the side's state at this node, for programs that keep one."""
        self._thaw(self._keys[node][1])
        return tuple(self.state.seen)

    def place(self, node: int) -> tuple[Any, ...]:
        """What the node's number stands for; equal in two searches of one program."""
        return self._keys[node]

    def describe(self, node: int) -> str:
        pc, _, log = self._keys[node]
        if pc is None:
            return f"{self.name} has ended"
        kind, where, _ = self.actions[node]
        return f"{self.name} in {pc} after {len(log)} accesses, next: {kind} {where}"


# Counters that no decision reads: leaving them out merges states that behave alike.
UNREAD: Final = frozenset({"written", "saved"})


def _plain_slots(root: Any) -> list[tuple[Any, str]]:
    """Every (object, attribute) below `root` that holds plain data, each object once."""
    found: list[tuple[Any, str]] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        owner = todo.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        names = [slot for cls in type(owner).__mro__ for slot in getattr(cls, "__slots__", ())]
        names += list(getattr(owner, "__dict__", ()))
        for name in sorted(names):
            value = getattr(owner, name)
            if isinstance(value, (int, bytes, str, list, dict)) or value is None:
                if name not in UNREAD:
                    found.append((owner, name))
            elif isinstance(value, tuple):
                todo.extend(value)
            elif type(value).__module__ != __name__ and not callable(value):
                todo.append(value)
    return found


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return ("list", *[_freeze(item) for item in value])
    if isinstance(value, dict):
        return ("dict", *[(key, _freeze(item)) for key, item in value.items()])
    if isinstance(value, memoryview):
        return ("view", bytes(value))
    return value


def _thaw(value: Any) -> Any:
    if isinstance(value, tuple) and value and value[0] in ("list", "dict", "view"):
        if value[0] == "list":
            return [_thaw(item) for item in value[1:]]
        if value[0] == "dict":
            return {key: _thaw(item) for key, item in value[1:]}
        return memoryview(value[1])
    return value
