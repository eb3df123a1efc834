"""What the text of a core's tokens is made from. Owner: the detok core.

The tables of token pieces, the tokenizer's own decode where they cannot say it all, and what one
token or a whole prompt reads as. `rows.py` writes the streams' text with them.
"""

from __future__ import annotations

from typing import Any

from ..render import plan
from ..text.detok import Detok, decode_all
from ..text.escape import EscapedTable
from ..text.offsets import Offsets
from ..text.windowed import WindowedDetok
from .stream import Stream


class _Alone(dict[int, str]):
    """Texts of single ids, each made once: a prompt's logprobs ask for hundreds of thousands."""

    __slots__ = ("_decode", "_setup")

    def __init__(self, setup: Any) -> None:
        self._setup = setup
        self._decode: Any = None  # the tokenizer's own, where there is no table

    def __missing__(self, token: int) -> str:
        setup = self._setup
        if setup.pieces is not None:
            text = decode_all(setup.pieces, (token,), skip_special=False)
        else:
            if self._decode is None:
                self._decode = setup.decode()
            text = str(self._decode([token], False))
        if 0 <= token < setup.vocab_size:  # others could be any number of them
            self[token] = text
        return text


class _Labels(dict[int, str]):
    """Texts of single ids as keys: bytes that are no text by themselves are one character each
    where the vocabulary is one of bytes, so that halves of characters do not all look alike."""

    __slots__ = ("_alone", "_table")

    def __init__(self, table: Any, alone: _Alone) -> None:
        self._table = table
        self._alone = alone

    def __missing__(self, token: int) -> str:
        text = self._alone[token]
        table = self._table
        if table is None or not 0 <= token < table.vocab_size:
            return text
        if "\ufffd" in text and not table.fallback:
            raw = bytes(table.pieces[token])
            try:
                raw.decode()
            except UnicodeDecodeError:
                text = raw.decode("latin-1")
        self[token] = text
        return text


class TokenTexts:
    """Tables of one core, and texts from them."""

    def __init__(self, setup: Any) -> None:
        self.setup = setup
        self._decoder: Any = None  # the tokenizer's own decode, made when it is first needed
        table = setup.pieces
        self._table = table
        self._needs_context = setup.needs_context
        self._shown = EscapedTable(table, True, setup.vocab_size) if table else None
        self._all = EscapedTable(table, False, setup.vocab_size) if table else None
        # Text and id of a token in one piece. None: not made yet; False: takes the slow path.
        self._inc_shown: list[Any] = [None] * len(self._shown.frag) if self._shown else []
        self._inc_all: list[Any] = [None] * len(self._all.frag) if self._all else []
        alone = _Alone(setup)
        #: Text of one id alone, special tokens shown; half characters are U+FFFD.
        self.text_of = alone.__getitem__
        #: The same as a key: see `_Labels`.
        self.label_of = _Labels(table, alone).__getitem__

    def make_detok(self, stream: Stream) -> Any:
        """Incremental detokenizer of one stream."""
        wanted = stream.plan
        if self._table is not None:
            return Detok(
                self._table,
                wanted[plan.SKIP_SPECIAL],
                wanted[plan.SPACES_BETWEEN],
                stream.has_context,
                False,
            )
        return WindowedDetok(
            self._decode_of(), wanted[plan.SKIP_SPECIAL], stream.context, wanted[plan.STOPS]
        )

    def _decode_of(self) -> Any:
        if self._decoder is None:
            self._decoder = self.setup.decode()
        return self._decoder

    def decode_prompt(self, ids: list[int]) -> str:
        """The text of a prompt that was given as ids, special tokens hidden."""
        if self._table is None:
            return str(self._decode_of()(ids, True))
        return decode_all(self._table, ids)

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of one id alone, half characters too; None where only its text is known."""
        table = self._table
        if table is None or not 0 <= token < table.vocab_size:
            return None
        return bytes(table.pieces[token])

    def offsets_of(self, stream: Stream | None) -> Offsets:
        """Counts where a stream's tokens begin in its text; None: those of a prompt that is echoed,
        special tokens hidden."""
        if stream is not None:
            return Offsets(self.make_detok(stream))
        if self._table is None:
            return Offsets(WindowedDetok(self._decode_of(), True, (), False))
        return Offsets(Detok(self._table, True, True, False, False))
