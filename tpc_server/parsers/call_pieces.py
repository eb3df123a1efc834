"""What becomes of the characters of a possible call. Owner: the stream's core.

Every character is attributed once (`_take`):

- *held*: not decided yet; a list of pieces that becomes content, or falls away with a call;
- *call*: a known function whose arguments began; they are passed on as they are typed;
- *text*: an object that is no call; content as it comes, its strings not searched for markers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from .events import Event
from .formats import ToolFormat

# Between objects.
SCAN: Final = 0  # content, until a marker
START: Final = 1  # the content begins: a bare call may
OPEN: Final = 2  # behind a marker
ITEM: Final = 3  # in an array
AFTER: Final = 4  # behind an object, or an array
# Inside a call's object, one level deep.
KEY: Final = 5
COLON: Final = 6
VALUE: Final = 7
STRING: Final = 8  # a key or a value
SCALAR: Final = 9
FIRST: Final = 10  # the arguments' first character
NEST: Final = 11  # an object or an array below
NEXT: Final = 12

# What becomes of the characters that are read.
HELD: Final = 0
CALL: Final = 1
TEXT: Final = 2

# Which part of the object they are.
OTHER: Final = 0
ARGUMENTS: Final = 1
IS_KEY: Final = 2  # from here on: collected, and looked at as a whole
IS_NAME: Final = 3
QUOTED: Final = 4  # arguments that are no object: a string that holds one, or null

CONTENT: Final = -1  # the channel; that of a call's arguments is its index


class CallPieces:
    """One stream's text, as far as it is attributed."""

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
        self._state = START if form.bare else SCAN
        self._partial = ""  # the end of the last chunk, where it could begin a marker
        self._held: list[str] = []
        self._index = -1  # of the last call
        self.called = False
        # What this feed emits; neighbours of one channel are joined.
        self._events: list[Event] = []
        self._channel = CONTENT
        self._pieces: list[str] = []
        # The block.
        self._close = ""  # its end marker
        self._array = False
        self._last = False  # its last object was a call, and no content came since
        # The object.
        self._mode = HELD
        self._part = OTHER
        self._key = ""
        self._name = ""
        self._arrived = False  # the arguments began
        self._complete = False  # and ended
        self._arguments: list[str] = []  # as far as they came before the name
        self._word: list[str] = []
        self._stack: list[str] = []  # brackets open in a value
        self._quoted = False  # in a string of such a value
        self._escaped = False

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
            if self._channel == CONTENT:
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
            self._put(CONTENT, rest)
        if len(rest) < len(text):
            self._held.append(text[len(rest) :])

    def _flush(self) -> None:
        """What is held is content."""
        self._last = False
        self._put(CONTENT, "".join(self._held))
        self._held.clear()

    def _take(self, text: str) -> None:
        """Characters of the object."""
        part = self._part
        if self._mode == HELD:
            self._held.append(text)
            if part == ARGUMENTS:
                self._arguments.append(text)
        elif self._mode == TEXT:
            self._put(CONTENT, text)
        elif part == ARGUMENTS:
            self._put(self._index, text)
        if part >= IS_KEY:
            self._word.append(text)

    # Decisions.

    def _object(self) -> int:
        """A new object: its opening bracket was read and is held."""
        self._last = False
        self._mode = HELD
        self._part = OTHER
        self._name = ""
        self._arrived = self._complete = self._quoted = self._escaped = False
        self._arguments.clear()
        self._stack.clear()
        return KEY

    def _commit(self) -> None:
        """It is a call."""
        self._index += 1
        self._join()
        identity = "call_" + os.urandom(12).hex()
        self._events.append(("call", self._index, identity, self._name, ""))
        self._held.clear()
        self._mode = CALL
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
        self._mode = TEXT
        self._part = OTHER
        self._arguments.clear()

    def _fail(self, at: int) -> int:
        """The structure breaks here."""
        self._part = OTHER
        if self._mode == CALL and self._complete:
            # Models forget the last bracket; the call is whole.
            self._last = True
            self._state = ITEM if self._array else AFTER
        else:
            self._leave("")
        return at

    def _finish(self, at: int) -> int:
        """The object is closed."""
        if self._mode == HELD:
            if self._name:
                self._commit()
            else:
                self._reject()
        self._last = self._mode == CALL
        if self._array:
            self._state = ITEM
        elif self._last or self._close:
            self._state = AFTER
        else:
            self._state = SCAN
        return at

    def _leave(self, text: str) -> None:
        """What is held, and this, are no block, or not any more."""
        text = "".join(self._held) + text
        self._held.clear()
        self._state = SCAN
        self._last = self._last and not text.strip()
        self._content(text)
