"""How far back the scheduler must look for stop strings and patterns. Owner: any thread.

The scheduler looks for a stop in the last N tokens of the output; N comes from here. Too small
loses matches, too large costs decoding.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any, Final, Protocol

# Python's own regular-expression parser: private by name, but what `re.compile` runs.
_parser: Any = re._parser  # type: ignore[attr-defined]
_constants: Any = re._constants  # type: ignore[attr-defined]

# Patterns are the clients': what a later Python may read otherwise in them is no news for whoever
# reads this server's output. Once and for all, because filters belong to the whole process.
warnings.filterwarnings("ignore", "Possible (nested set|set )", FutureWarning)

#: Of longer stops the bytes are counted: that never is too few, and takes no time.
COUNTED_CHARS: Final = 256

#: The length of a pattern without a bound.
UNBOUNDED: Final = 1 << 30

_ONE: Final = frozenset(
    (
        _constants.LITERAL,
        _constants.NOT_LITERAL,
        _constants.IN,
        _constants.ANY,
        _constants.RANGE,
        _constants.CATEGORY,
    )
)
_REPEATS: Final = frozenset(
    (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
)
_NO_END: Final = _constants.MAXREPEAT


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class Encodes(Protocol):
    """The part of ``tokenizers.Tokenizer`` that counting needs."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> _Encoding: ...


def count_stop_tokens(tokenizer: Encodes | None, stops: Iterable[str]) -> int:
    """``stop_str_max_len``: tokens of the longest stop, without special tokens; 0 without stops.

    A stop that does not encode, a long one, or any stop without a tokenizer, counts as its bytes: a
    byte is the least a token can be, so that is never too small.
    """
    longest = 0
    for stop in stops:
        try:
            if tokenizer is None or len(stop) > COUNTED_CHARS:
                raise ValueError
            count = len(tokenizer.encode(stop, add_special_tokens=False).ids)
        except Exception:
            count = len(stop.encode("utf-8", "surrogatepass"))
        longest = max(longest, count)
    return longest


def stop_regex_max_len(patterns: Iterable[str]) -> int:
    """Characters of the longest match of any pattern; ``UNBOUNDED`` and more when it has no end.

    Raises ``ValueError`` for a pattern that Python's ``re`` does not parse.
    """
    return max((_length(parse_pattern(pattern)) for pattern in patterns), default=0)


def parse_pattern(pattern: str) -> Any:
    """The parse tree of Python's own ``re``; ``ValueError`` when it does not take the pattern."""
    try:
        tree = _parser.parse(pattern)
        re.compile(pattern)  # look-behind widths and the like are checked only there
    except RecursionError:
        raise ValueError(f"stop pattern {pattern!r} is nested too deep") from None
    except (re.error, OverflowError, ValueError) as error:
        raise ValueError(f"stop pattern {pattern!r} is not valid: {error}") from None
    return tree


def _length(tree: Any) -> int:
    total = 0
    for op, arg in tree:
        if op in _ONE:
            total += 1
        elif op is _constants.AT:
            pass
        elif op in _REPEATS:
            _, most, body = arg
            total += UNBOUNDED if most == _NO_END else int(most) * _length(body)
        elif op is _constants.SUBPATTERN:
            total += _length(arg[3])
        elif op is _constants.BRANCH:
            total += max(_length(branch) for branch in arg[1])
        elif op is _constants.ATOMIC_GROUP:
            total += _length(arg)
        else:  # look-around, back-reference, conditional
            total += UNBOUNDED
    return total
