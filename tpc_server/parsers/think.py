"""The engine for reasoning: one tagged block at the start of the output. Owner: the stream's core.

    blank* [open*] reasoning close content

Where the output starts inside the block the opening tag is optional. A block that holds the
beginning of a call is settled at its closing tag, or at the end of the text: only then is it known
whether the model wrote about a call or forgot to close before one. Linear in the length: a chunk is
searched once, together with at most a marker's length of held text.
"""

from __future__ import annotations

from typing import Final

from .events import Event, add, partial
from .formats import ThinkFormat

_START: Final = 0  # nothing but white space and opening tags so far
_INSIDE: Final = 1
_CALL: Final = 2  # inside, behind the beginning of a call: held
_DONE: Final = 3  # the rest is content


class ThinkParser:
    """Splits reasoning from content."""

    __slots__ = ("_form", "_held", "_inside", "_partial", "_pieces", "_state", "_stream")

    called = False

    def __init__(self, form: ThinkFormat, force: bool, stream: bool) -> None:
        self._form = form
        self._stream = stream
        self._inside = force or form.always
        self._state = _START
        self._partial = ""  # the end of the last chunk, where it could begin a marker
        self._held: list[str] = []  # leading white space; text from the beginning of a call on
        self._pieces: list[str] = []  # reasoning that comes in one piece

    @property
    def done(self) -> bool:
        """What follows is content."""
        return self._state == _DONE

    def feed(self, text: str) -> list[Event]:
        """Events of a step's text."""
        if self._state == _DONE:
            return [("content", text)] if text else []
        if not text:
            return []
        text = self._partial + text
        self._partial = ""
        events: list[Event] = []
        if self._state == _START:
            text = self._start(text)
        if self._state == _INSIDE:
            text = self._reason(text, events)
        if self._state == _CALL:
            text = self._hold(text, events)
        if text and self._state == _DONE:
            add(events, "content", text)
        return events

    def end(self, finish_type: str) -> list[Event]:
        """What was held back: a half marker is text, an open call ends the reasoning."""
        events: list[Event] = []
        held = "".join(self._held) + self._partial
        self._held.clear()
        self._partial = ""
        if self._state == _CALL or not self._inside:
            self._close(events)
        elif held:
            self._reasoning(events, held)
            held = ""
        self._close(events)
        if held:
            add(events, "content", held)
        return events

    def _start(self, text: str) -> str:
        """Leave out opening tags; what follows, with the white space before, is what is left."""
        tag = self._form.open
        at, size = 0, len(text)
        while at < size:
            blank = at
            while at < size and text[at].isspace():
                at += 1
            if blank < at:
                self._held.append(text[blank:at])
            if text.startswith(tag, at):
                self._inside = True
                at += len(tag)
            elif size - at < len(tag) and tag.startswith(text[at:]):
                self._partial = text[at:]
                break
            else:
                self._state = _INSIDE if self._inside else _DONE
                rest = "".join(self._held) + text[at:]
                self._held.clear()
                return rest
        return ""

    def _reason(self, text: str, events: list[Event]) -> str:
        form = self._form
        close = text.find(form.close)
        tool = text.find(form.tool, 0, close if close >= 0 else len(text)) if form.tool else -1
        if tool >= 0:
            self._reasoning(events, text[:tool])
            self._state = _CALL
            return text[tool:]
        if close >= 0:
            self._reasoning(events, text[:close])
            self._close(events)
            return text[close + len(form.close) :]
        keep = partial(text, form.close)
        if form.tool:
            keep = max(keep, partial(text, form.tool))
        cut = len(text) - keep
        self._partial = text[cut:]
        self._reasoning(events, text[:cut])
        return ""

    def _hold(self, text: str, events: list[Event]) -> str:
        """Everything waits for the closing tag."""
        close = text.find(self._form.close)
        if close < 0:
            cut = len(text) - partial(text, self._form.close)
            self._held.append(text[:cut])
            self._partial = text[cut:]
            return ""
        self._held.append(text[:close])
        self._reasoning(events, "".join(self._held))
        self._held.clear()
        self._close(events)
        return text[close + len(self._form.close) :]

    def _reasoning(self, events: list[Event], text: str) -> None:
        if not text:
            return
        if self._stream:
            add(events, "reasoning", text)
        else:
            self._pieces.append(text)

    def _close(self, events: list[Event]) -> None:
        self._state = _DONE
        if self._pieces:
            add(events, "reasoning", "".join(self._pieces))
            self._pieces.clear()
