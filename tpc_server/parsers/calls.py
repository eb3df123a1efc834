"""The engine for tool calls: JSON objects, bare or between markers. Owner: the stream's core.

    content* (begin blank* (call | "[" call* "]") blank* end)*        call = {"name", "arguments"}

A pushdown automaton over the characters: each state's function takes what it can of a chunk and
says where the next one goes on, so a chunk that ends anywhere changes nothing. Every character is
attributed once (`_take`), which makes it linear in the length and complete:

- *held*: not decided yet; a list of pieces that becomes content, or falls away with a call;
- *call*: a known function whose arguments began; they are passed on as they are typed;
- *text*: an object that is no call; content as it comes, its strings not searched for markers.

Only the structure of arguments is followed (strings, brackets): a client sees what the model wrote.
A call whose structure breaks stays incomplete, and the text from there on is content.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from typing import Final

from .events import Event, partial
from .formats import ToolFormat

# Between objects.
_SCAN: Final = 0  # content, until a marker
_START: Final = 1  # the content begins: a bare call may
_OPEN: Final = 2  # behind a marker
_ITEM: Final = 3  # in an array
_AFTER: Final = 4  # behind an object, or an array
# Inside a call's object, one level deep.
_KEY: Final = 5
_COLON: Final = 6
_VALUE: Final = 7
_STRING: Final = 8  # a key or a value
_SCALAR: Final = 9
_FIRST: Final = 10  # the arguments' first character
_NEST: Final = 11  # an object or an array below
_NEXT: Final = 12

# What becomes of the characters that are read.
_HELD: Final = 0
_CALL: Final = 1
_TEXT: Final = 2

# Which part of the object they are.
_OTHER: Final = 0
_ARGUMENTS: Final = 1
_IS_KEY: Final = 2  # from here on: collected, and looked at as a whole
_IS_NAME: Final = 3
_QUOTED: Final = 4  # arguments that are no object: a string that holds one, or null

_CONTENT: Final = -1  # the channel; that of a call's arguments is its index
_SCALARS: Final = "-0123456789tfn"
_CLOSING: Final = {"}": "{", "]": "["}
_BLANK: Final = re.compile(r"\s*")
_GLUE: Final = re.compile(r"[\s,;]*")
_GLUE_IN_BLOCK: Final = re.compile(r"[\s,;}\]]*")  # models close one bracket too many
_SCALAR_END: Final = re.compile(r"[\s,}\]]")
_QUOTE: Final = re.compile(r'["\\]')
_BRACKET: Final = re.compile(r'["{}\[\]]')


def _loads(text: str) -> object:
    """A JSON value, control characters in strings allowed; None where it is none."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


class CallParser:
    """Splits calls from content."""

    __slots__ = (
        "_arguments", "_array", "_arrived", "_channel", "_close", "_complete", "_escaped",
        "_events", "_form", "_held", "_index", "_key", "_last", "_mode", "_name", "_names",
        "_parallel", "_part", "_partial", "_pieces", "_quoted", "_sign", "_stack", "_state",
        "_word", "called",
    )  # fmt: skip

    def __init__(self, form: ToolFormat, names: Iterable[str], parallel: bool) -> None:
        self._form = form
        self._sign = form.begin[:1]  # no marker without it
        self._names = frozenset(names) - {""}
        self._parallel = parallel
        self._state = _START if form.bare else _SCAN
        self._partial = ""  # the end of the last chunk, where it could begin a marker
        self._held: list[str] = []
        self._index = -1  # of the last call
        self.called = False
        # What this feed emits; neighbours of one channel are joined.
        self._events: list[Event] = []
        self._channel = _CONTENT
        self._pieces: list[str] = []
        # The block.
        self._close = ""  # its end marker
        self._array = False
        self._last = False  # its last object was a call, and no content came since
        # The object.
        self._mode = _HELD
        self._part = _OTHER
        self._key = ""
        self._name = ""
        self._arrived = False  # the arguments began
        self._complete = False  # and ended
        self._arguments: list[str] = []  # as far as they came before the name
        self._word: list[str] = []
        self._stack: list[str] = []  # brackets open in a value
        self._quoted = False  # in a string of such a value
        self._escaped = False

    def feed(self, text: str) -> list[Event]:
        """Events of a step's text."""
        if not text:
            return []
        if self._partial:
            text = self._partial + text
            self._partial = ""
        elif self._state == _SCAN and not self._held:
            # The usual step of an answer: nothing in it could belong to a call.
            sign = self._sign
            if not sign or (sign not in text and not text[-1].isspace()):
                self._last = False
                return [("content", text)]
        at, size = 0, len(text)
        while at < size:
            at = _STEPS[self._state](self, text, at)
        return self._emitted()

    def end(self, finish_type: str) -> list[Event]:
        """What was held back and is no call."""
        state = self._state
        # Behind a call white space is the call's, and in its block the rest of the block too.
        ended = self._last and (state in (_ITEM, _AFTER) or not self._partial)
        if not ended:
            self._put(_CONTENT, "".join(self._held) + self._partial)
        self._held.clear()
        self._partial = ""
        return self._emitted()

    # Output.

    def _put(self, channel: int, text: str) -> None:
        if not text:
            return
        if channel != self._channel:
            self._join()
            self._channel = channel
        self._pieces.append(text)

    def _join(self) -> None:
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            if self._channel == _CONTENT:
                self._events.append(("content", text))
            else:
                self._events.append(("arguments", self._channel, text))

    def _emitted(self) -> list[Event]:
        self._join()
        events = self._events
        self._events = []
        return events

    def _content(self, text: str) -> None:
        """Content between blocks; white space at its end may belong to a call."""
        rest = text.rstrip()
        if rest:
            self._flush()
            self._put(_CONTENT, rest)
        if len(rest) < len(text):
            self._held.append(text[len(rest) :])

    def _flush(self) -> None:
        """What is held is content."""
        self._last = False
        self._put(_CONTENT, "".join(self._held))
        self._held.clear()

    def _take(self, text: str) -> None:
        """Characters of the object."""
        part = self._part
        if self._mode == _HELD:
            self._held.append(text)
            if part == _ARGUMENTS:
                self._arguments.append(text)
        elif self._mode == _TEXT:
            self._put(_CONTENT, text)
        elif part == _ARGUMENTS:
            self._put(self._index, text)
        if part >= _IS_KEY:
            self._word.append(text)

    # Decisions.

    def _object(self) -> int:
        """A new object: its opening bracket was read and is held."""
        self._last = False
        self._mode = _HELD
        self._part = _OTHER
        self._name = ""
        self._arrived = self._complete = self._quoted = self._escaped = False
        self._arguments.clear()
        self._stack.clear()
        return _KEY

    def _commit(self) -> None:
        """It is a call."""
        self._index += 1
        self._join()
        identity = "call_" + os.urandom(12).hex()
        self._events.append(("call", self._index, identity, self._name, ""))
        self._held.clear()
        self._mode = _CALL
        if not self._arrived:
            self._arguments.append("{}")
            self._complete = True
        self._put(self._index, "".join(self._arguments))
        self._arguments.clear()
        if self._complete:
            self.called = True

    def _reject(self) -> None:
        """It is no call."""
        self._flush()
        self._mode = _TEXT
        self._part = _OTHER
        self._arguments.clear()

    def _fail(self, at: int) -> int:
        """The structure breaks here."""
        self._part = _OTHER
        if self._mode == _CALL and self._complete:
            # Models forget the last bracket; the call is whole.
            self._last = True
            self._state = _ITEM if self._array else _AFTER
        else:
            self._leave("")
        return at

    def _finish(self, at: int) -> int:
        """The object is closed."""
        if self._mode == _HELD:
            if self._name:
                self._commit()
            else:
                self._reject()
        self._last = self._mode == _CALL
        if self._array:
            self._state = _ITEM
        elif self._last or self._close:
            self._state = _AFTER
        else:
            self._state = _SCAN
        return at

    def _leave(self, text: str) -> None:
        """What is held, and this, are no block, or not any more."""
        text = "".join(self._held) + text
        self._held.clear()
        self._state = _SCAN
        self._last = self._last and not text.strip()
        self._content(text)

    # Between objects.

    def _scan(self, text: str, at: int) -> int:
        begin = self._form.begin
        size = len(text)
        if not begin:
            self._flush()
            self._put(_CONTENT, text[at:])
            return size
        found = text.find(begin, at)
        if found < 0:
            cut = size - partial(text, begin, at)
            self._partial = text[cut:]
            self._content(text[at:cut])
            return size
        self._content(text[at:found])
        self._held.append(begin)
        self._close = self._form.end
        self._array = self._last = False
        self._state = _OPEN
        return found + len(begin)

    def _open(self, text: str, at: int) -> int:
        """At the start of a block; also of the content."""
        stop = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        if stop == len(text):
            self._held.append(text[at:])
            return stop
        first = text[stop]
        if first == "{" or first == "[":
            stop += 1
            self._held.append(text[at:stop])
            self._array = first == "["
            self._state = _ITEM if self._array else self._object()
        else:
            self._leave(text[at:stop])
        return stop

    def _item(self, text: str, at: int) -> int:
        stop = _GLUE.match(text, at).end()  # type: ignore[union-attr]
        if stop == len(text):
            self._held.append(text[at:])
            return stop
        first = text[stop]
        if first == "{":
            stop += 1
            self._held.append(text[at:stop])
            self._state = self._object()
        elif first == "]":
            stop += 1
            self._array = False
            if self._last:
                self._held.clear()
                self._state = _AFTER
            else:
                self._held.append(text[at:stop])
                self._flush()
                self._state = _AFTER if self._close else _SCAN
        else:
            self._leave(text[at:stop])
        return stop

    def _after(self, text: str, at: int) -> int:
        close = self._close
        glue = _GLUE_IN_BLOCK if close else _GLUE
        size = len(text)
        stop = glue.match(text, at).end()  # type: ignore[union-attr]
        if stop == size:
            self._held.append(text[at:])
            return size
        if text[stop] == "{":
            stop += 1
            self._held.append(text[at:stop])
            self._state = self._object()
            return stop
        if close:
            if text.startswith(close, stop):
                stop += len(close)
                self._state = _SCAN
                if self._last:
                    self._held.clear()
                else:
                    self._held.append(text[at:stop])
                    self._flush()
                return stop
            if size - stop < len(close) and close.startswith(text[stop:]):
                self._held.append(text[at:stop])
                self._partial = text[stop:]
                return size
        self._leave(text[at:stop])
        return stop

    # Inside the object.

    def _blank(self, text: str, at: int) -> int:
        """Take white space; where the next character is."""
        stop = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        if stop > at:
            self._take(text[at:stop])
        return stop

    def _before_key(self, text: str, at: int) -> int:
        at = self._blank(text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._word.clear()
            self._part = _IS_KEY
            self._state = _STRING
        elif text[at] != "}":
            return self._fail(at)
        self._take(text[at])
        return at + 1 if self._state == _STRING else self._finish(at + 1)

    def _string(self, text: str, at: int) -> int:
        seek = at + 1 if self._escaped else at
        self._escaped = False
        size = len(text)
        while (found := _QUOTE.search(text, seek)) is not None:
            seek = found.end()
            if found.group() == '"':
                self._take(text[at:seek])
                self._ended()
                return seek
            if seek == size:
                self._escaped = True
                break
            seek += 1
        self._take(text[at:])
        return size

    def _ended(self) -> None:
        """A key or a value is whole."""
        part = self._part
        self._part = _OTHER
        self._state = _COLON if part == _IS_KEY else _NEXT
        if part == _OTHER:
            return
        value = _loads("".join(self._word))
        if part == _IS_KEY:
            self._key = value if isinstance(value, str) else ""
        elif part == _IS_NAME:
            one_more = self._parallel or self._index < 0
            if isinstance(value, str) and value in self._names and one_more:
                self._name = value
                if self._arrived:
                    self._commit()
            else:
                self._reject()
        elif isinstance(value, str) and isinstance(_loads(value), dict):
            self._arguments.append(value)
            self._arrived = self._complete = True
            if self._name:
                self._commit()
        elif value is not None or "".join(self._word) != "null":
            self._reject()

    def _colon(self, text: str, at: int) -> int:
        at = self._blank(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._take(":")
        self._state = _VALUE
        return at + 1

    def _value(self, text: str, at: int) -> int:
        at = self._blank(text, at)
        if at == len(text):
            return at
        first = text[at]
        held = self._mode == _HELD
        is_name = held and not self._name and self._key == self._form.name
        is_arguments = held and not self._arrived and self._key in self._form.arguments
        if first == '"':
            self._state = _STRING
            self._part = _IS_NAME if is_name else _QUOTED if is_arguments else _OTHER
        elif first == "{" or first == "[":
            self._state = _NEST
            self._stack.append(first)
            if is_arguments and first == "{":
                self._state = _FIRST
                self._part = _ARGUMENTS
                self._arrived = True
            elif is_name or is_arguments:
                self._reject()
        elif first in _SCALARS:
            self._state = _SCALAR
            self._part = _QUOTED if is_arguments else _OTHER
            if is_name:
                self._reject()
        else:
            return self._fail(at)
        self._word.clear()
        self._take(first)
        return at + 1

    def _scalar(self, text: str, at: int) -> int:
        found = _SCALAR_END.search(text, at)
        stop = found.start() if found else len(text)
        if stop > at:
            self._take(text[at:stop])
        if found:
            self._ended()
        return stop

    def _first(self, text: str, at: int) -> int:
        """Arguments are an object: a key, or the end, must come."""
        at = self._blank(text, at)
        if at < len(text):
            self._state = _NEST
            if text[at] != '"' and text[at] != "}":
                self._reject()
            elif self._name:
                self._commit()
        return at

    def _nest(self, text: str, at: int) -> int:
        size = len(text)
        seek = at + 1 if self._escaped else at
        self._escaped = False
        stack = self._stack
        while (found := (_QUOTE if self._quoted else _BRACKET).search(text, seek)) is not None:
            seek = found.end()
            char = found.group()
            if char == "\\":
                if seek == size:
                    self._escaped = True
                    break
                seek += 1
            elif char == '"':
                self._quoted = not self._quoted
            elif char == "{" or char == "[":
                stack.append(char)
            elif stack[-1] != _CLOSING[char]:
                if seek - 1 > at:
                    self._take(text[at : seek - 1])
                return self._fail(seek - 1)
            else:
                stack.pop()
                if not stack:
                    self._take(text[at:seek])
                    if self._part == _ARGUMENTS:
                        self._part = _OTHER
                        self._complete = True
                        self.called = self.called or self._mode == _CALL
                    self._state = _NEXT
                    return seek
        self._take(text[at:])
        return size

    def _next(self, text: str, at: int) -> int:
        at = self._blank(text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            self._take("}")
            return self._finish(at + 1)
        if text[at] != ",":
            return self._fail(at)
        self._take(",")
        self._state = _KEY
        return at + 1


#: By state. Functions, not bound methods: a record that ends must hold no cycle.
_STEPS: Final[tuple[Callable[[CallParser, str, int], int], ...]] = (
    CallParser._scan,
    CallParser._open,
    CallParser._open,
    CallParser._item,
    CallParser._after,
    CallParser._before_key,
    CallParser._colon,
    CallParser._value,
    CallParser._string,
    CallParser._scalar,
    CallParser._first,
    CallParser._nest,
    CallParser._next,
)
