"""Ids to text through windows of a tokenizer's own ``decode``. Owner: the core of the request.

For decoders that do not compile to a piece table. Same interface and promises as ``Detok``: what
was sent is never taken back, and a token costs one ``decode`` of a bounded window, whatever the
ids. The window starts at the last settled tokens, which serve as left context: the decoder sees
them in both texts that are subtracted.

Standard library only: this module also runs where no third-party package imports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tpc_server.text.detok import Matched, find_printable, stop_cut

#: Unsettled ids after which the window is cut although its text is not settled.
MAX_PENDING: Final = 64
#: An unfinished character has at most 3 bytes, so the last ids of a cut window stay unsettled.
_KEEP_MIN: Final = 4
_KEEP_MAX: Final = 8
#: Prompt ids that are enough left context.
CONTEXT_IDS: Final = 5

Decode = Callable[[Sequence[int], bool], str]


class WindowedDetok:
    """One request's text over ``decode(ids, skip_special_tokens) -> str``.

    ``context``: the last prompt ids (at most ``CONTEXT_IDS`` are used). ``keep_text`` as in
    ``Detok``. ``clean`` is always false: every token needs the decoder.
    """

    __slots__ = ("_context", "_decode", "_parts", "_pending", "_prefix", "_sent", "_skip", "clean")

    def __init__(
        self, decode: Decode, skip_special: bool, context: Sequence[int], keep_text: bool
    ) -> None:
        self._decode = decode
        self._skip = skip_special
        self._context = list(context[-CONTEXT_IDS:])
        self._prefix = self._context
        self._pending: list[int] = []
        self._sent = 0  # characters of the unsettled text that were sent
        self._parts: list[str] | None = [] if keep_text else None
        self.clean = False

    def step(self, ids: Sequence[int]) -> str:
        """The text to send for a frame that is not the last; ``""`` when nothing may be sent."""
        self._pending += ids
        if not ids:
            return ""
        new = self._unsettled()
        if new and new[-1] != "\ufffd":
            return self._settle(new, len(self._pending))
        send = ""
        printable = len(find_printable(new))
        if printable > self._sent:
            send = new[self._sent : printable]
            self._sent = printable
        if len(self._pending) > MAX_PENDING:
            send += self._shorten(new)
        return send

    def waiting(self) -> int:
        """How many characters are complete and held back."""
        if not self._pending:
            return 0
        return len(self._unsettled()[self._sent :].rstrip("\ufffd"))

    def finish(
        self,
        ids: Sequence[int],
        matched: Matched = None,
        no_stop_trim: bool = False,
        history: Sequence[int] | None = None,
    ) -> str:
        """The text to send for the last frame; see ``Detok.finish``."""
        if ids and not no_stop_trim and type(matched) is int:
            ids = ids[:-1]
        self._pending += ids
        new = self._unsettled()
        unsent = new[self._sent :]
        if type(matched) is str:
            if self._parts is not None or history is not None:
                if self._parts is not None:
                    self._parts.append(new)
                    whole = "".join(self._parts)
                else:
                    whole = self._behind(self._context, [*(history or ()), *ids])
                end = stop_cut(whole, matched, no_stop_trim)
                unsent = whole[len(whole) - len(unsent) : end]
            else:
                unsent = unsent[: stop_cut(unsent, matched, no_stop_trim)]
        self._parts = None
        self._pending = []
        return unsent

    def _unsettled(self) -> str:
        """The text of the pending ids as it stands behind the prefix."""
        return self._behind(self._prefix, self._pending)

    def _behind(self, context: list[int], ids: list[int]) -> str:
        if not ids:
            return ""
        known = self._decode(context, self._skip) if context else ""
        return self._decode(context + ids, self._skip)[len(known) :]

    def _settle(self, text: str, count: int) -> str:
        """Makes the first ``count`` pending ids, whose text this is, the prefix of what follows."""
        send = text[self._sent :]
        self._sent = max(self._sent - len(text), 0)
        if self._parts is not None:
            self._parts.append(text)
        if text:  # without text they are no left context, and the old prefix stays
            self._prefix = self._pending[:count]
        del self._pending[:count]
        return send

    def _shorten(self, new: str) -> str:
        """Cuts a window that does not settle (half characters, ids without text)."""
        pending = self._pending
        known = len(self._decode(self._prefix, self._skip)) if self._prefix else 0
        for keep in range(_KEEP_MIN, _KEEP_MAX + 1):
            head = pending[: len(pending) - keep]
            text = self._decode(self._prefix + head, self._skip)[known:]
            if new.startswith(text):
                return self._settle(text, len(head))
        return self._settle(new, len(pending))
