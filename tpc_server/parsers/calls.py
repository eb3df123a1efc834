"""The engine for tool calls: JSON objects, bare or between markers. Owner: the stream's core.

    content* (begin blank* (call | "[" call* "]") blank* end)*        call = {"name", "arguments"}

A pushdown automaton over the characters: each state's function takes what it can of a chunk and
says where the next one goes on, so a chunk that ends anywhere changes nothing. Every character is
attributed once (`call_pieces.py`), which makes it linear in the length and complete.

Only the structure of arguments is followed (strings, brackets): a client sees what the model wrote.
A call whose structure breaks stays incomplete, and the text from there on is content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from .call_pieces import (
    AFTER,
    ARGUMENTS,
    CALL,
    COLON,
    CONTENT,
    FIRST,
    HELD,
    IS_KEY,
    IS_NAME,
    ITEM,
    KEY,
    NEST,
    NEXT,
    OPEN,
    OTHER,
    QUOTED,
    SCALAR,
    SCAN,
    STRING,
    VALUE,
    CallPieces,
)
from .events import Event, partial

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


class CallParser(CallPieces):
    """Splits calls from content."""

    __slots__ = ()

    def feed(self, text: str) -> list[Event]:
        """Events of a step's text."""
        if not text:
            return []
        if self._partial:
            text = self._partial + text
            self._partial = ""
        elif self._state == SCAN and not self._held:
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
        ended = self._last and (state in (ITEM, AFTER) or not self._partial)
        if not ended:
            self._put(CONTENT, "".join(self._held) + self._partial)
        self._held.clear()
        self._partial = ""
        return self._emitted()

    # Between objects.

    def _scan(self, text: str, at: int) -> int:
        begin = self._form.begin
        size = len(text)
        if not begin:
            self._flush()
            self._put(CONTENT, text[at:])
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
        self._state = OPEN
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
            self._state = ITEM if self._array else self._object()
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
                self._state = AFTER
            else:
                self._held.append(text[at:stop])
                self._flush()
                self._state = AFTER if self._close else SCAN
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
                self._state = SCAN
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
            self._part = IS_KEY
            self._state = STRING
        elif text[at] != "}":
            return self._fail(at)
        self._take(text[at])
        return at + 1 if self._state == STRING else self._finish(at + 1)

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
        self._part = OTHER
        self._state = COLON if part == IS_KEY else NEXT
        if part == OTHER:
            return
        value = _loads("".join(self._word))
        if part == IS_KEY:
            self._key = value if isinstance(value, str) else ""
        elif part == IS_NAME:
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
        self._state = VALUE
        return at + 1

    def _value(self, text: str, at: int) -> int:
        at = self._blank(text, at)
        if at == len(text):
            return at
        first = text[at]
        held = self._mode == HELD
        is_name = held and not self._name and self._key == self._form.name
        is_arguments = held and not self._arrived and self._key in self._form.arguments
        if first == '"':
            self._state = STRING
            self._part = IS_NAME if is_name else QUOTED if is_arguments else OTHER
        elif first == "{" or first == "[":
            self._state = NEST
            self._stack.append(first)
            if is_arguments and first == "{":
                self._state = FIRST
                self._part = ARGUMENTS
                self._arrived = True
            elif is_name or is_arguments:
                self._reject()
        elif first in _SCALARS:
            self._state = SCALAR
            self._part = QUOTED if is_arguments else OTHER
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
            self._state = NEST
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
                    if self._part == ARGUMENTS:
                        self._part = OTHER
                        self._complete = True
                        self.called = self.called or self._mode == CALL
                    self._state = NEXT
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
        self._state = KEY
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
