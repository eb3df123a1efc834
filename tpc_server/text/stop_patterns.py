"""Admission of stop patterns: which regular expressions may reach the scheduler. Owner: any thread.

The scheduler runs every pattern with Python's backtracking ``re`` on every step, so one pattern
that backtracks without bound stops all requests. A pattern is taken when each of its repeats has at
every point at most one way to go on with a given character (then nothing inside it is tried twice),
no endless repeat runs into a second one that takes the same characters, and the ways that are left
(where a repeat may end, which alternative is meant), multiplied, are few: so many times at most the
rest of a pattern is tried from one place of the text. The ways of a request's patterns are added.

The test builds the pattern's position automaton (Glushkov): positions are the single-character
parts, counted repeats written out; edges say which may follow which, and an edge found twice is two
ways. Characters are compared on a sample: ASCII, some of each kind beyond it, and the neighbours of
every literal in the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tpc_server.text.stops import parse_pattern

_constants: Any = re._constants  # type: ignore[attr-defined]
_compiler: Any = re._compiler  # type: ignore[attr-defined]
_parser: Any = re._parser  # type: ignore[attr-defined]

MAX_PATTERN_BYTES: Final = 256
#: Counted repeats around a character, multiplied.
MAX_REPEAT_PRODUCT: Final = 512
#: Size of the written-out automaton; keeps the test itself short.
MAX_EDGES: Final = 20_000
#: Ways from one place of the text: of a pattern, and of all patterns of a request together.
MAX_WAYS: Final = 1024
MAX_WAYS_TOGETHER: Final = 4096
_ENDLESS_WAYS: Final = 512  # to end an endless repeat; half, as skipping it counts besides
_REFERENCE_WAYS: Final = 16  # a back-reference compares a text of its own length

_CHARS: Final = frozenset(
    (_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY)
)
_REPEATS: Final = frozenset(
    (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
)
_SAMPLE: Final = (
    "".join(map(chr, range(128))) + "\u00a0\u00e9\u00df\u0130\u0660\u2003\u4e2d\U0001f600"
)

_TWO_WAYS: Final = "stop pattern: a repeat can take the same text in two ways; it may run too long"

#: (may be empty, positions it can start with, positions it can end with)
_Part = tuple[bool, list[int], list[int]]


def check_stop_regex(pattern: str) -> int:
    """Refuses (``ValueError``) a pattern that is too long, not valid, or may run too long.

    Returns its ways, for those of a request to be added.
    """
    size = len(pattern.encode("utf-8", "surrogatepass"))
    if size > MAX_PATTERN_BYTES:
        raise ValueError(f"stop pattern of {size} bytes; at most {MAX_PATTERN_BYTES} are allowed")
    tree = parse_pattern(pattern)
    _check_product(tree, 1)
    return _Positions(tree).check()


def _check_product(tree: Any, product: int) -> None:
    for op, arg in tree:
        inner = product
        if op in _REPEATS:
            least, most, _ = arg
            inner *= max(int(least) if most == _constants.MAXREPEAT else int(most), 1)
            if inner > MAX_REPEAT_PRODUCT:
                raise ValueError(
                    f"stop pattern repeats multiply to {inner}; at most {MAX_REPEAT_PRODUCT}"
                )
        for body in _bodies(op, arg):
            _check_product(body, inner)


def _bodies(op: Any, arg: Any) -> list[Any]:
    """The patterns inside one element."""
    if op in _REPEATS:
        return [arg[2]]
    if op is _constants.SUBPATTERN:
        return [arg[3]]
    if op is _constants.BRANCH:
        return list(arg[1])
    if op is _constants.ATOMIC_GROUP:
        return [arg]
    if op is _constants.ASSERT or op is _constants.ASSERT_NOT:
        return [arg[1]]
    if op is _constants.GROUPREF_EXISTS:
        return [body for body in arg[1:] if body is not None]
    return []


def _literals(tree: Any) -> Iterator[int]:
    """Code points named in the pattern."""
    for op, arg in tree:
        if op is _constants.LITERAL or op is _constants.NOT_LITERAL:
            yield arg
        elif op is _constants.RANGE:
            yield from arg
        elif op is _constants.IN:
            yield from _literals(arg)
        for body in _bodies(op, arg):
            yield from _literals(body)


class _Positions:
    """The position automaton of one pattern."""

    def __init__(self, tree: Any) -> None:
        near = {code + step for code in _literals(tree) for step in (-1, 0, 1)}
        extra = (chr(code) for code in near if 0 <= code < 0xD800 or 0xDFFF < code < 0x110000)
        self.sample = "".join(dict.fromkeys([*_SAMPLE, *extra]))
        self.state = tree.state
        self.tree = tree
        self.sets: list[frozenset[str]] = []
        self.follow: list[list[int]] = []
        self.loop: list[int] = []  # which outermost repeat a position is in, 0 for none
        self.most: list[int] = [0]  # by outermost repeat: its bound, 0 for endless
        self.inside = 0  # the outermost repeat being built, 0 for none
        self.ways = 1
        self.edges = 0
        self.known: dict[tuple[int, int, int], frozenset[str]] = {}

    def check(self) -> int:
        """The ways from one place; raises ``ValueError`` with the reason."""
        _, first, _ = self._sequence(self.tree, 0, 0)
        self._multiply(self._most_alike(first))
        exits: dict[int, int] = {}  # by outermost repeat: ways to end it
        for position, follow in enumerate(self.follow):
            here = self.loop[position]
            alike = self._most_alike(follow)
            if not here:
                self._multiply(alike)
                continue
            if self.most[here] == 0:
                self._check_exit(here, follow)
                if alike > 1:
                    exits[here] = _ENDLESS_WAYS * (alike - 1)
            elif alike > 1:
                exits[here] = exits.get(here, 1) + alike - 1
        for ways in exits.values():
            self._multiply(ways)
        return self.ways

    def _check_exit(self, here: int, follow: list[int]) -> None:
        stay = [y for y in follow if self.loop[y] == here]
        leave = [y for y in follow if self.loop[y] not in (0, here) and not self.most[self.loop[y]]]
        if any(self.sets[x] & self.sets[y] for x in stay for y in leave):
            raise ValueError(
                "stop pattern: two endless repeats in a row take the same characters; "
                "it may run too long"
            )

    def _multiply(self, ways: int) -> None:
        self.ways *= ways
        if self.ways > MAX_WAYS:
            raise ValueError("stop pattern leaves too many choices; it may run too long")

    def _most_alike(self, ways: list[int]) -> int:
        """How many of these positions take one and the same character, at most; at least 1."""
        if not self._overlap(ways):
            return 1
        counted: dict[str, int] = {}
        for position in ways:
            for char in self.sets[position]:
                counted[char] = counted.get(char, 0) + 1
        return max(counted.values())

    def _overlap(self, ways: list[int]) -> bool:
        """Whether some character has two ways to go."""
        seen: set[str] = set()
        for position in ways:
            if not seen.isdisjoint(self.sets[position]):
                return True
            seen |= self.sets[position]
        return False

    def _empty_twice(self) -> None:
        """A part can be empty in two ways: in a repeat each turn doubles the ways."""
        if self.inside:
            raise ValueError(_TWO_WAYS)
        self._multiply(2)

    def _sequence(self, tree: Any, add: int, drop: int) -> _Part:
        empty, first, last = True, list[int](), list[int]()
        for op, arg in tree:
            part = self._element(op, arg, add, drop)
            empty, first, last = self._join((empty, first, last), part)
        return empty, first, last

    def _join(self, left: _Part, right: _Part) -> _Part:
        self._connect(left[2], right[1])
        first = left[1] + right[1] if left[0] else left[1]
        last = left[2] + right[2] if right[0] else right[2]
        return left[0] and right[0], first, last

    def _connect(self, froms: list[int], tos: list[int]) -> None:
        self.edges += len(froms) * len(tos)
        if self.edges > MAX_EDGES:
            raise ValueError("stop pattern is too complex")
        for position in froms:
            self.follow[position].extend(tos)

    def _element(self, op: Any, arg: Any, add: int, drop: int) -> _Part:
        if op in _CHARS:
            return self._position(self._chars(op, arg, add, drop))
        if op in _REPEATS:
            return self._repeat(int(arg[0]), arg[1], arg[2], add, drop)
        if op is _constants.SUBPATTERN:
            return self._sequence(arg[3], (add | arg[1]) & ~arg[2], (drop | arg[2]) & ~arg[1])
        if op is _constants.ATOMIC_GROUP:
            return self._sequence(arg, add, drop)
        if op is _constants.BRANCH:
            return self._either(arg[1], add, drop)
        if op is _constants.GROUPREF_EXISTS:
            return self._either([body or [] for body in arg[1:]], add, drop)
        if op is _constants.ASSERT or op is _constants.ASSERT_NOT:
            self._sequence(arg[1], add, drop)
        elif op is _constants.GROUPREF:
            if self.inside:
                raise ValueError("stop pattern: a back-reference in a repeat may run too long")
            self._multiply(_REFERENCE_WAYS)
            return self._position(frozenset(self.sample))
        return True, [], []

    def _position(self, chars: frozenset[str]) -> _Part:
        self.sets.append(chars)
        self.follow.append([])
        self.loop.append(self.inside)
        position = len(self.sets) - 1
        return False, [position], [position]

    def _either(self, bodies: Sequence[Any], add: int, drop: int) -> _Part:
        parts = [self._sequence(body, add, drop) for body in bodies]
        if sum(part[0] for part in parts) > 1:
            self._empty_twice()
        return (
            any(part[0] for part in parts),
            [position for part in parts for position in part[1]],
            [position for part in parts for position in part[2]],
        )

    def _repeat(self, least: int, most: Any, body: Any, add: int, drop: int) -> _Part:
        endless = most == _constants.MAXREPEAT
        copies = max(least, 1) if endless else int(most)
        outermost = (endless or copies > 1) and not self.inside
        if outermost:
            self.most.append(0 if endless else copies)
            self.inside = len(self.most) - 1
        start = len(self.sets)
        whole: _Part = (True, [], [])
        ends: list[int] = []
        for number in range(copies):
            part = self._sequence(body, add, drop)
            if part[0]:
                # Left out, or there and empty; endless or repeated that is a way each turn.
                self._empty_twice()
            if endless and number == copies - 1:
                self._connect(part[2], part[1])
            if number >= least - 1:
                ends += part[2]
            if number == 0:
                whole = part
            else:  # a copy comes only behind the copy before it
                self._connect(whole[2], part[1])
                whole = (whole[0] and part[0], whole[1], part[2])
        if whole[1]:
            whole = (least == 0 or whole[0], whole[1], ends)
        if outermost:
            if self._overlap(whole[1]) or any(
                self._overlap(self.follow[position]) for position in range(start, len(self.sets))
            ):
                raise ValueError(_TWO_WAYS)
            self.inside = 0
        return whole

    def _chars(self, op: Any, arg: Any, add: int, drop: int) -> frozenset[str]:
        key = (id(arg) if op is _constants.IN else hash((op, arg)), add, drop)
        known = self.known.get(key)
        if known is None:
            one = _parser.SubPattern(self.state, [(op, arg)])
            if add or drop:
                one = _parser.SubPattern(
                    self.state, [(_constants.SUBPATTERN, (None, add, drop, one))]
                )
            matches = _compiler.compile(one).finditer(self.sample)
            known = frozenset(match.group() for match in matches)
            self.known[key] = known
        return known
