"""Bytes per token, compiled once from a tokenizer.json. Owner: the core that built or copied it.

A tokenizer's decoder is a pipeline over token strings. For the decoders of language models the
pipeline is a function of each token alone, up to three rules that are kept as data: the first
shown token may render differently (Metaspace, WordPiece), leading characters of the whole text
may be stripped (SentencePiece), and byte-fallback tokens stand for one raw byte each. A pipeline
outside that form is refused (``compile_pieces`` returns ``None``) and detokenized through windows
of ``decode`` instead (``windowed.py``).

Standard library only: this module also runs where no third-party package imports.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

#: Bits of ``PieceTable.kinds``.
SPECIAL: Final = 1  # hidden when skip_special_tokens is set
BYTE: Final = 2  # a byte-fallback token: its piece is one raw byte
MISSING: Final = 4  # the vocabulary has no token of this id


class Uncompilable(Exception):
    """This decoder is not a function of each token alone; the text says which stage."""


class PieceTable:
    """What the decoder emits for each id.

    ``pieces[id]`` are raw bytes (not always whole characters); ``kinds[id]`` the bits above;
    ``first[id]`` what the id emits as the first shown token of a text where that differs;
    ``strip_first`` the one character (UTF-8) of which up to ``strip_count`` are dropped at the
    start of a text that has no left context, or ``None``; ``fallback`` says that bytes come from
    byte-fallback tokens, where every byte of an unfinished character is a replacement character
    of its own and any other token ends the run.
    """

    __slots__ = ("fallback", "first", "kinds", "pieces", "strip_count", "strip_first", "vocab_size")

    def __init__(
        self,
        pieces: list[bytes],
        kinds: bytearray,
        first: dict[int, bytes],
        strip_first: bytes | None,
        strip_count: int,
        fallback: bool,
    ) -> None:
        self.pieces = pieces
        self.kinds = kinds
        self.first = first
        self.strip_first = strip_first
        self.strip_count = strip_count
        self.fallback = fallback
        self.vocab_size = len(pieces)

    def gives_context(self, ids: Sequence[int], skip_special: bool) -> bool:
        """Whether these last prompt ids are left context: what follows is then not a text's start.

        Ids outside the vocabulary (image placeholders) count as id 0, as SGLang maps them.
        """
        mask = SPECIAL | MISSING if skip_special else MISSING
        kinds = self.kinds
        shown = False
        for raw in ids:
            i = raw if 0 <= raw < self.vocab_size else 0
            if i >= self.vocab_size or kinds[i] & mask:
                continue
            shown = True
            if self.strip_first is None or self.pieces[i]:
                return True
        return shown and self.strip_first is None


def compile_pieces(tokenizer_json: Mapping[str, Any]) -> PieceTable | None:
    """The table of this parsed tokenizer.json, or ``None`` where its decoder does not compile."""
    try:
        return _Compiler(tokenizer_json).table()
    except Uncompilable:
        return None


def token_strings(tokenizer_json: Mapping[str, Any]) -> tuple[dict[int, str], set[str]]:
    """(id -> token, contents of the special tokens) as ``tokenizers`` resolves the file.

    Added tokens take the model's id when the model knows their text, else the next free id: the
    id written in the file is only a hint, and a wrong hint must not shift the table.
    """
    model = tokenizer_json["model"]
    vocab = model.get("vocab") or {}
    by_text: dict[str, int]
    if isinstance(vocab, Mapping):
        by_text = dict(vocab)
    else:  # Unigram: a list of (token, score)
        by_text = {}
        for index, entry in enumerate(vocab):
            by_text[entry[0]] = index
    size = len(vocab)
    tokens = (
        {index: entry[0] for index, entry in enumerate(vocab)}
        if not isinstance(vocab, Mapping)
        else {index: text for text, index in vocab.items()}
    )
    added: dict[str, int] = {}
    specials: set[str] = set()
    highest = -1
    for entry in tokenizer_json.get("added_tokens") or ():
        text = entry["content"]
        if not text:
            continue
        if entry.get("special"):
            specials.add(text)
        index = added.get(text, by_text.get(text, -1))
        if index < 0:
            index = highest + 1 if highest >= size or (size == 0 and highest >= 0) else size
        added[text] = index
        tokens[index] = text
        highest = max(highest, index)
    return tokens, specials


def byte_alphabet() -> str:
    """The 256 characters that stand for the bytes 0 to 255 in byte-level vocabularies.

    Printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards in order.
    """
    chars: list[str] = []
    spare = 0x100
    for value in range(256):
        if 0x21 <= value <= 0x7E or 0xA1 <= value <= 0xAC or 0xAE <= value <= 0xFF:
            chars.append(chr(value))
        else:
            chars.append(chr(spare))
            spare += 1
    return "".join(chars)


class _Compiler:
    """Runs the decoder's stages over the whole vocabulary, one stage at a time."""

    def __init__(self, tokenizer_json: Mapping[str, Any]) -> None:
        tokens, specials = token_strings(tokenizer_json)
        self.size = max(tokens, default=-1) + 1
        self.ids = sorted(tokens)
        self.texts: list[str] = [tokens[i] for i in self.ids]
        self.firsts: dict[int, str] = {}  # position in ids -> text
        self.raw: list[bytes] | None = None  # set once a stage turned texts into bytes
        self.bytes_at: set[int] = set()  # positions that are byte-fallback tokens
        self.fallback = False
        self.fused = False
        self.strip: tuple[str, int] | None = None
        self.specials = specials
        self.special_at = [at for at, text in enumerate(self.texts) if text in specials]
        decoder = tokenizer_json.get("decoder")
        if decoder is None:
            self._join_with_spaces()
        else:
            self._stage(decoder)

    def table(self) -> PieceTable:
        pieces = [b""] * self.size
        kinds = bytearray([MISSING]) * self.size
        raw = self.raw if self.raw is not None else [text.encode() for text in self.texts]
        for i, piece in zip(self.ids, raw, strict=True):
            pieces[i] = piece
            kinds[i] = 0
        for at in self.bytes_at:
            pieces[self.ids[at]] = bytes([int(self.texts[at][3:5], 16)])
            kinds[self.ids[at]] = BYTE
        for at in self.special_at:
            kinds[self.ids[at]] |= SPECIAL
        first = {
            self.ids[at]: text.encode()
            for at, text in self.firsts.items()
            if text.encode() != pieces[self.ids[at]]
        }
        strip, count = self.strip if self.strip is not None else ("", 0)
        return PieceTable(pieces, kinds, first, strip.encode() or None, count, self.fallback)

    def _stage(self, decoder: Mapping[str, Any]) -> None:
        kind = decoder.get("type")
        if kind == "Sequence":
            for inner in decoder["decoders"]:
                self._stage(inner)
        elif kind == "Fuse":
            self.fused = True
        elif kind == "Strip":
            self._strip(decoder["content"], int(decoder["start"]), int(decoder["stop"]))
        elif self.fused or self.fallback or self.raw is not None:
            # These stages look at token borders; after bytes were joined there are none left.
            raise Uncompilable(f"{kind} after tokens were joined")
        elif kind == "ByteLevel":
            self._byte_level()
        elif kind == "ByteFallback":
            self._byte_fallback()
        elif kind == "Replace":
            self._replace(decoder["pattern"], decoder["content"])
        elif kind == "Metaspace":
            self._metaspace(decoder)
        elif kind == "WordPiece":
            self._wordpiece(decoder["prefix"], bool(decoder["cleanup"]))
        else:
            raise Uncompilable(f"decoder {kind}")

    def _map(self, change: Callable[[str], str]) -> None:
        self.texts = [change(text) for text in self.texts]
        for at, text in self.firsts.items():
            self.firsts[at] = change(text)

    def _join_with_spaces(self) -> None:
        self.firsts = dict(enumerate(self.texts))
        self.texts = [" " + text for text in self.texts]

    def _replace(self, pattern: Mapping[str, str], content: str) -> None:
        old = pattern.get("String")
        if not old:
            raise Uncompilable("Replace with a regular expression")
        # One replace over the joined vocabulary is far cheaper than one per token; the separator
        # must be in neither the vocabulary nor the pattern, and split() proves that it was not.
        joined = "\x00\x00".join(self.texts).replace(old, content).split("\x00\x00")
        if len(joined) == len(self.texts) and "\x00" not in old and "\x00" not in content:
            self.texts = joined
        else:
            self.texts = [text.replace(old, content) for text in self.texts]
        for at, text in self.firsts.items():
            self.firsts[at] = text.replace(old, content)

    def _byte_fallback(self) -> None:
        if self.firsts:
            raise Uncompilable("ByteFallback after a first-token rule")
        self.fallback = True
        for at, text in enumerate(self.texts):
            if text.startswith("<0x") and _is_byte_token(text):
                self.bytes_at.add(at)

    def _byte_level(self) -> None:
        alphabet = codecs.charmap_build(byte_alphabet())
        encode = codecs.charmap_encode
        raw: list[bytes] = []
        for text in self.texts:
            try:
                raw.append(encode(text, "strict", alphabet)[0])
            except UnicodeEncodeError:
                raw.append(text.encode())  # an added token: its own text
        if self.firsts:
            raise Uncompilable("ByteLevel after a first-token rule")
        self.raw = raw

    def _strip(self, content: str, start: int, stop: int) -> None:
        if self.fused or self.raw is not None:
            if stop or self.strip is not None:
                raise Uncompilable("Strip at the end of the text")
            if start:
                self.strip = (content, start)
        elif self.fallback:
            raise Uncompilable("Strip of byte runs")
        else:
            self._map(lambda text: _strip_token(text, content, start, stop))

    def _metaspace(self, decoder: Mapping[str, Any]) -> None:
        mark = decoder.get("replacement", "\u2581")
        scheme = decoder.get("prepend_scheme")
        if scheme is None:
            scheme = "always" if decoder.get("add_prefix_space", True) else "never"
        if self.firsts:
            raise Uncompilable("Metaspace after a first-token rule")
        if scheme != "never":
            for at, text in enumerate(self.texts):
                if mark in text:
                    self.firsts[at] = text.replace(mark, "")
        self.texts = [text.replace(mark, " ") for text in self.texts]

    def _wordpiece(self, prefix: str, cleanup: bool) -> None:
        if self.firsts:
            raise Uncompilable("WordPiece after a first-token rule")
        firsts = self.texts
        self.texts = [
            text.replace(prefix, "", 1) if text.startswith(prefix) else " " + text
            for text in self.texts
        ]
        self.firsts = dict(enumerate(firsts))
        if cleanup:
            self._map(_clean_up)


#: What WordPiece's ``cleanup`` replaces in each token, in this order.
_CLEAN_UP: Final = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def _clean_up(text: str) -> str:
    for old, new in _CLEAN_UP:
        text = text.replace(old, new)
    return text


def _strip_token(text: str, content: str, start: int, stop: int) -> str:
    begin = 0
    while begin < min(start, len(text)) and text[begin] == content:
        begin += 1
    end = len(text)
    while len(text) - end < stop and end > begin and text[end - 1] == content:
        end -= 1
    return text[begin:end]


def _is_byte_token(text: str) -> bool:
    """``<0xHH>``; a plus sign before one digit also counts, as Rust's number parser takes it."""
    if len(text) != 6 or not text.isascii() or text[5] != ">":
        return False
    digits = text[3:5]
    if digits[0] == "+":
        digits = digits[1:]
    return all(c in "0123456789abcdefABCDEF" for c in digits)
