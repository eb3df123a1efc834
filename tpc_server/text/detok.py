"""Ids to text, frame by frame, for one request. Owner: the core that owns the request.

The text sent so far is always a prefix of the text of all ids, whatever the frames; a character
whose bytes are still arriving is not shown, and a finished request shows what is left of it as
U+FFFD. State is at most 3 unresolved bytes and ``MAX_HELD`` characters of held text, so the cost
of a token does not depend on those before it.

Held text: while the text ends in U+FFFD (unresolved bytes, or the real character), it is sent only
up to the last word border (``find_printable``), as SGLang does; the next text that ends otherwise
releases it.

Byte-fallback runs (SentencePiece ``<0xHH>`` tokens): a one-shot ``decode`` shows a run that is not
valid UTF-8 as a whole as one U+FFFD per byte, so a single late bad byte erases characters that
were good. Sent text cannot be taken back; here a complete character is shown when its last byte
arrives and every other byte is one U+FFFD. The two differ in exactly those runs that hold both
complete characters and bad bytes. ``decode_all`` follows the same rule, so streams and unary
answers agree.

Standard library only: this module also runs where no third-party package imports.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Final

from tpc_server.text.pieces import BYTE, MISSING, SPECIAL, PieceTable

#: Characters of held text after which everything resolved is sent.
MAX_HELD: Final = 64

Matched = int | str | Sequence[int] | None


class Detok:
    """One request's text.

    ``spaces_between`` is accepted for the contract; with ``tokenizers`` vocabularies it has no
    effect (in Hugging Face transformers only the slow tokenizers honour it). ``has_context``: see
    ``PieceTable.gives_context``. ``keep_text`` keeps all text, which a request with stop strings
    or patterns needs at its end.

    ``clean`` is true while the next self-contained token may be sent from ``EscapedTable`` without
    telling this object.
    """

    __slots__ = (
        "_context",
        "_first",
        "_mask",
        "_parts",
        "_strip",
        "_table",
        "_tail",
        "clean",
        "held",
    )

    def __init__(
        self,
        table: PieceTable,
        skip_special: bool,
        spaces_between: bool,
        has_context: bool,
        keep_text: bool,
    ) -> None:
        self._table = table
        self._mask = SPECIAL | MISSING if skip_special else MISSING
        self._context = has_context
        self._tail = b""
        self._parts: list[str] | None = [] if keep_text else None
        self.held = ""
        self._first = not has_context and bool(table.first)
        self._strip = 0 if has_context else table.strip_count
        self.clean = not keep_text and not self._first and not self._strip

    def step(self, ids: Sequence[int]) -> str:
        """The text to send for a frame that is not the last; ``""`` when nothing may be sent."""
        text = self._take(ids)
        tail = self._tail
        held = self.held
        if self._parts is not None:
            self._parts.append(text)
        if not text:
            send = ""
        elif not tail and text[-1] != "\ufffd":
            send = held + text
            held = self.held = ""
        else:
            send = self._send_printable(text)
            held = self.held
        self.clean = not (tail or held or self._parts is not None or self._first or self._strip)
        return send

    @property
    def tail(self) -> bytes:
        """Bytes of a character that is not complete."""
        return self._tail

    @property
    def fallback(self) -> bool:
        """Whether each byte of an incomplete character is a replacement character."""
        return self._table.fallback

    def take(self, ids: Sequence[int]) -> str:
        """The characters that these ids complete, nothing held back; instead of `step`."""
        return self._take(ids)

    def finish(
        self,
        ids: Sequence[int],
        matched: Matched = None,
        no_stop_trim: bool = False,
        history: Sequence[int] | None = None,
    ) -> str:
        """The text to send for the last frame, stop trimmed; what was sent is never taken back.

        ``matched``: the finish reason's value. An id (0 too) is dropped from the end of ``ids``
        before decoding; a string cuts the whole text at its first occurrence (with
        ``no_stop_trim`` right after it); a list or ``None`` changes nothing.

        The whole text is known with ``keep_text``, or from ``history``: all ids before this frame.
        Whoever keeps those may take the fast path in spite of stop strings.
        """
        if ids and not no_stop_trim and type(matched) is int:
            ids = ids[:-1]
        text = self._take(ids) + self._flush()
        unsent = self.held + text
        self.held = ""
        self.clean = False
        if type(matched) is str:
            if self._parts is not None or history is not None:
                if self._parts is not None:
                    self._parts.append(text)
                    whole = "".join(self._parts)
                else:
                    whole = self._again([*(history or ()), *ids])
                end = stop_cut(whole, matched, no_stop_trim)
                unsent = whole[len(whole) - len(unsent) : end]
            else:
                unsent = unsent[: stop_cut(unsent, matched, no_stop_trim)]
        self._parts = None
        return unsent

    def _again(self, ids: Sequence[int]) -> str:
        """The whole text of these ids, as this request's text began."""
        state = Detok(self._table, self._mask != MISSING, True, self._context, False)
        return state.finish(ids)

    def _send_printable(self, text: str) -> str:
        """Adds ``text``, which ends in U+FFFD or before unresolved bytes, and takes what may go.

        This is ``find_printable`` of all text since the last settled one: what was sent of it has
        no say, because only the character before the last U+FFFD and the last space count.
        """
        rest = ""
        if not self._tail:
            text, rest = text[:-1], "\ufffd"
        held = self.held + text
        border = 0
        if held:
            border = len(held) if is_cjk(held[-1]) else held.rfind(" ") + 1
        if len(held) - border > MAX_HELD:
            border = len(held)
        self.held = held[border:] + rest
        return held[:border]

    def _take(self, ids: Sequence[int]) -> str:
        """Decodes ids; characters that are not complete stay in the tail."""
        table = self._table
        if table.fallback:
            text = self._take_fallback(ids)
        else:
            text = self._take_joined(ids)
        if self._strip and text:
            text = self._strip_start(text)
        return text

    def _take_joined(self, ids: Sequence[int]) -> str:
        table = self._table
        pieces = table.pieces
        kinds = table.kinds
        size = table.vocab_size
        mask = self._mask
        data = self._tail
        if self._first or len(ids) != 1:
            parts = [data]
            for i in ids:
                if 0 <= i < size and not kinds[i] & mask:
                    piece = pieces[i]
                    if self._first:
                        self._first = False
                        piece = table.first.get(i, piece)
                    parts.append(piece)
            data = b"".join(parts)
        else:
            i = ids[0]
            if 0 <= i < size and not kinds[i] & mask:
                data += pieces[i]
        if not data:
            return ""
        # Without `final` an unfinished character at the end is left, at most 3 bytes.
        text, used = utf_8_decode(data, "replace", False)
        self._tail = data[used:]
        return text

    def _take_fallback(self, ids: Sequence[int]) -> str:
        table = self._table
        pieces = table.pieces
        kinds = table.kinds
        size = table.vocab_size
        mask = self._mask
        tail = self._tail
        parts = []
        for i in ids:
            if not 0 <= i < size or kinds[i] & mask:
                continue
            if not kinds[i] & BYTE:
                if tail:
                    parts.append("\ufffd" * len(tail))
                    tail = b""
                parts.append(pieces[i].decode())
                continue
            data = tail + pieces[i]
            text, used = utf_8_decode(data, "replace", False)
            if tail and used and text[0] == "\ufffd" and data != b"\xef\xbf\xbd":
                # The new byte does not continue the tail: each tail byte is bad by itself (the
                # codec shows one U+FFFD for them together), and the byte starts afresh.
                parts.append("\ufffd" * len(tail))
                data = pieces[i]
                text, used = utf_8_decode(data, "replace", False)
            parts.append(text)
            tail = data[used:]
        self._tail = tail
        return "".join(parts)

    def _flush(self) -> str:
        tail = self._tail
        if not tail:
            return ""
        self._tail = b""
        if self._table.fallback:
            return "\ufffd" * len(tail)
        # One for a character cut short; two for the start of a UTF-16 surrogate, which the codec
        # holds back as well although nothing can complete it.
        return utf_8_decode(tail, "replace", True)[0]

    def _strip_start(self, text: str) -> str:
        strip_first = self._table.strip_first
        content = strip_first.decode() if strip_first else ""
        at = 0
        while self._strip and at < len(text):
            if text[at] != content:
                self._strip = 0
                break
            at += 1
            self._strip -= 1
        return text[at:]


def decode_all(
    table: PieceTable,
    ids: Sequence[int],
    skip_special: bool = True,
    spaces_between: bool = True,
    has_context: bool = False,
    matched: Matched = None,
    no_stop_trim: bool = False,
) -> str:
    """The whole text of a unary request; the stop is cut from the whole text."""
    state = Detok(table, skip_special, spaces_between, has_context, False)
    return state.finish(ids, matched, no_stop_trim)


def stop_cut(text: str, stop: str, keep_stop: bool) -> int:
    """Where ``text`` ends once ``stop`` is cut at its first occurrence; its length without one."""
    at = text.find(stop)
    if at < 0:
        return len(text)
    return at + len(stop) if keep_stop else at


def find_printable(text: str) -> str:
    """The part of ``text`` that may be shown although its end is not settled.

    Ends in a newline: all. Last character CJK: all. Second-last CJK: all but the last character.
    Otherwise up to and including the last space.
    """
    if text.endswith("\n"):
        return text
    if text and is_cjk(text[-1]):
        return text
    if len(text) > 1 and is_cjk(text[-2]):
        return text[:-1]
    return text[: text.rfind(" ") + 1]


def is_cjk(char: str) -> bool:
    """Ideographs only: kana, Hangul, CJK punctuation and emoji are not counted."""
    code = ord(char)
    if code < 0x3400:
        return False
    return (
        0x4E00 <= code <= 0x9FFF
        or code <= 0x4DBF
        or 0xF900 <= code <= 0xFAFF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0x2F800 <= code <= 0x2FA1F
    )
