"""Text to the inside of a JSON string, and escaped bytes per token. Owner: one core per table.

Standard library only: this module also runs where no third-party package imports.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Final

from tpc_server.text.pieces import BYTE, MISSING, SPECIAL, PieceTable

# ASCII that stands for itself in JSON.
_PLAIN: Final = bytes([c for c in range(0x20, 0x7F) if c not in b'"\\'])
_REPLACEMENT: Final = "\ufffd"


def json_escape(text: str) -> bytes:
    """UTF-8 of ``text`` as it stands between the quotes of a JSON string.

    Non-ASCII stays as it is, except U+0085, U+2028 and U+2029: they are escaped, because clients
    that split event streams on every Unicode newline would cut the line there.
    """
    body = encode_basestring(text)[1:-1].encode()
    # These two lead bytes are rare in most scripts' text, so the common case is two searches.
    if b"\xc2\x85" in body or b"\xe2\x80" in body:
        body = (
            body.replace(b"\xc2\x85", b"\\u0085")
            .replace(b"\xe2\x80\xa8", b"\\u2028")
            .replace(b"\xe2\x80\xa9", b"\\u2029")
        )
    return body


class EscapedTable:
    """``frag[id]``: the token's text, JSON-escaped, where it may be sent without any state.

    ``None`` means: not known yet (ask ``fill``) or not self-contained (take the slow path).
    A hidden or unknown id is ``b""``. Only to be used while ``Detok.clean`` is true. One instance
    per core and per value of ``skip_special``; ids from ``size`` on and negative ones must take
    the slow path (the last entry stays ``None``, so that ``frag[-1]`` does).
    """

    __slots__ = ("_kinds", "_odd", "_pieces", "_tried", "frag", "mask", "table")

    def __init__(self, table: PieceTable, skip_special: bool, size: int = 0) -> None:
        entries = max(size, table.vocab_size) + 1
        self.table = table
        self.mask = SPECIAL | MISSING if skip_special else MISSING
        self.frag: list[bytes | None] = [None] * entries
        self._tried = bytearray(entries)
        # At hand: a server's first thousands of tokens are mostly the first of their kind.
        self._kinds = table.kinds
        self._pieces = table.pieces
        self._odd = self.mask | BYTE

    def fill(self, token_id: int) -> bytes | None:
        """The entry of this id, computed when it was not; ``None`` sends it the slow way."""
        if not 0 <= token_id < len(self._tried) - 1:
            return None
        if self._tried[token_id]:
            return self.frag[token_id]
        self._tried[token_id] = 1
        pieces = self._pieces
        piece: bytes | None
        if token_id >= len(pieces) or self._kinds[token_id] & self._odd:
            piece = self._self_contained(token_id)
        else:
            piece = pieces[token_id]
            if piece.lstrip(_PLAIN):  # most have nothing to decode or to escape
                piece = self._self_contained(token_id)
        self.frag[token_id] = piece
        return piece

    def _self_contained(self, token_id: int) -> bytes | None:
        if token_id >= self.table.vocab_size:
            return b""
        kind = self.table.kinds[token_id]
        if kind & self.mask:
            return b""
        piece = self.table.pieces[token_id]
        if kind & BYTE and piece[0] >= 0x80:
            return None
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            return None
        if text.endswith(_REPLACEMENT):
            return None
        return json_escape(text)
