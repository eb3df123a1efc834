"""A tokenizer.json built from the vocabulary in GGUF metadata. Owner: the calling thread.

A GGUF file keeps a vocabulary as tokens, types, merges or scores, and names of the rest. Four kinds
are known here: ``gpt2`` (byte-level BPE, pre-tokenizer by name), ``llama`` (SentencePiece BPE,
merges rebuilt from scores the way Hugging Face's converter does), ``gemma4`` (BPE on text with
spaces marked) and ``bert`` (WordPiece). Anything else, an unknown pre-tokenizer name above all, is
refused with its name: a tokenizer that is almost right is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tpc_server.text.pretokenizers import BYTE_LEVEL, PreTokenizer

#: ``tokenizer.ggml.token_type``.
NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
BYTE: Final = 6

_MARK: Final = "\u2581"  # stands for a space in SentencePiece vocabularies

_MARK_DECODER: Final = [
    {"type": "Replace", "pattern": {"String": _MARK}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_BPE: Final = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


class VocabError(ValueError):
    """The metadata hold no vocabulary, a damaged one, or one of a kind that is not known here."""


def tokenizer_json(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json (as Python data) of these metadata; raises ``VocabError``."""
    kind = meta.get("tokenizer.ggml.model")
    vocab = _Vocab(meta)
    if kind == "gpt2":
        return _byte_level(vocab)
    if kind == "llama":
        return _sentencepiece(vocab)
    if kind == "gemma4":
        return _marked_bpe(vocab)
    if kind == "bert":
        return _wordpiece(vocab)
    if kind is None:
        raise VocabError("no tokenizer in the metadata (tokenizer.ggml.model is missing)")
    raise VocabError(
        f"tokenizer model {kind!r} is not known here (gpt2, llama, gemma4 and bert are)"
    )


def bos_eos(meta: Mapping[str, Any]) -> tuple[int | None, list[int], bool, bool]:
    """(bos id, ids that end a text, whether encoding adds bos, adds eos)."""
    vocab = _Vocab(meta)
    bos = meta.get("tokenizer.ggml.bos_token_id")
    ends: list[int] = []
    for name in ("eos_token_id", "eot_token_id", "eom_token_id"):
        end = meta.get(f"tokenizer.ggml.{name}")
        if end is not None and end not in ends:
            ends.append(int(end))
    return bos, ends, vocab.add_bos(), bool(meta.get("tokenizer.ggml.add_eos_token", False))


class _Vocab:
    """Checked access to the metadata keys."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self.meta = meta
        self.tokens: list[str] = self._list("tokens", str)
        types = self.get("token_type")
        self.types: list[int] = [NORMAL] * len(self.tokens) if types is None else list(types)
        if len(self.types) != len(self.tokens):
            raise VocabError(f"{len(self.tokens)} tokens but {len(self.types)} token types")

    def get(self, name: str, default: Any = None) -> Any:
        return self.meta.get(f"tokenizer.ggml.{name}", default)

    def token(self, name: str) -> str | None:
        """The text of the token whose id is under ``name``."""
        index = self.get(name)
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise VocabError(f"tokenizer.ggml.{name} is {index}, outside {len(self.tokens)} tokens")
        return self.tokens[int(index)]

    def merges(self) -> list[str] | list[tuple[str, str]]:
        """As a tokenizer.json takes them: ``"a b"``, or pairs where a token has a space in it."""
        merges: list[str] = self._list("merges", str)
        if all(merge.count(" ") == 1 and merge[0] != " " != merge[-1] for merge in merges):
            return merges
        pairs: list[tuple[str, str]] = []
        for merge in merges:
            # A token may be a space itself, so the border is the first space after its start.
            border = merge.find(" ", 1)
            if border < 0 or border == len(merge) - 1:
                raise VocabError(f"a merge without two sides: {merge!r}")
            pairs.append((merge[:border], merge[border + 1 :]))
        return pairs

    def scores(self) -> list[float]:
        scores: list[float] = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise VocabError(f"{len(self.tokens)} tokens but {len(scores)} scores")
        return scores

    def pre_tokenizer(self) -> PreTokenizer:
        name = self.get("pre")
        if name is None:
            raise VocabError("the pre-tokenizer is not named (tokenizer.ggml.pre is missing)")
        known = BYTE_LEVEL.get(name)
        if known is None:
            raise VocabError(
                f"pre-tokenizer {name!r} is not known here (known: {', '.join(sorted(BYTE_LEVEL))})"
            )
        return known

    def add_bos(self) -> bool:
        said = self.get("add_bos_token")
        if said is not None:
            return bool(said)
        if self.get("model") == "gpt2":
            known = BYTE_LEVEL.get(self.get("pre", ""))
            return known is not None and known.add_bos
        return self.get("model") in ("llama", "bert")

    def _list(self, name: str, kind: type) -> list[Any]:
        values = self.get(name)
        if not isinstance(values, list) or not values or not isinstance(values[0], kind):
            raise VocabError(
                f"tokenizer.ggml.{name} is missing or is not a list of {kind.__name__}"
            )
        return values


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    """Token -> id; of equal tokens the first keeps the text (a tokenizer can hold it once)."""
    ids: dict[str, int] = {}
    for index, token in enumerate(tokens):
        ids.setdefault(token, index)
    return ids


def _added(vocab: _Vocab, tokens: Sequence[str]) -> list[dict[str, Any]]:
    """Control tokens become special tokens, user-defined ones added tokens."""
    strips = _strips_right(vocab)
    added: list[dict[str, Any]] = []
    for index, kind in enumerate(vocab.types):
        if kind in (CONTROL, USER_DEFINED, UNKNOWN):
            token = tokens[index]
            added.append(
                {
                    "id": index,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": strips and token not in ("<unk>", "<s>", "<|endoftext|>"),
                    "normalized": False,
                    "special": kind != USER_DEFINED,
                }
            )
    return added


def _strips_right(vocab: _Vocab) -> bool:
    """Phi-3's chat tokens swallow white space behind them; GGUF has no field that says so."""
    name = str(vocab.meta.get("general.name", "")).lower()
    return vocab.get("model") == "llama" and ("phi-3" in name or "phi3" in name)


def _template(vocab: _Vocab, bos: str | None, eos: str | None) -> dict[str, Any] | None:
    if bos is None and eos is None:
        return None
    ids = _ids(vocab.tokens)
    single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    pair: list[dict[str, Any]] = [{"Sequence": {"id": "B", "type_id": 1}}]
    if bos is not None:
        single.insert(0, {"SpecialToken": {"id": bos, "type_id": 0}})
        pair.insert(0, {"SpecialToken": {"id": bos, "type_id": 1}})
    if eos is not None:
        single.append({"SpecialToken": {"id": eos, "type_id": 0}})
        pair.append({"SpecialToken": {"id": eos, "type_id": 1}})
    tokens = {token: ids[token] for token in (bos, eos) if token is not None}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single + pair,
        "special_tokens": {
            token: {"id": token, "ids": [index], "tokens": [token]}
            for token, index in tokens.items()
        },
    }


def _bos_eos_template(vocab: _Vocab) -> dict[str, Any] | None:
    bos = eos = None
    if vocab.add_bos():
        bos = vocab.token("bos_token_id")
        if bos is None:
            raise VocabError("a BOS is to be added, but tokenizer.ggml.bos_token_id is missing")
    if vocab.get("add_eos_token", False):
        eos = vocab.token("eos_token_id")
    return _template(vocab, bos, eos)


def _assemble(
    added: list[dict[str, Any]],
    normalizer: Any,
    pre_tokenizer: Any,
    post_processor: Any,
    decoder: Any,
    model: dict[str, Any],
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def _byte_level(vocab: _Vocab) -> dict[str, Any]:
    pre = vocab.pre_tokenizer()
    tokens = vocab.tokens
    model = _BPE | {
        "ignore_merges": pre.ignore_merges,
        "vocab": _ids(tokens),
        "merges": vocab.merges(),
    }
    return _assemble(
        _added(vocab, tokens),
        {"type": "NFC"} if pre.nfc else None,
        {"type": "Sequence", "pretokenizers": list(pre.steps)},
        _bos_eos_template(vocab),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model,
    )


def _sentencepiece(vocab: _Vocab) -> dict[str, Any]:
    if vocab.get("precompiled_charsmap"):
        raise VocabError("a SentencePiece normalizer table is not supported")
    tokens = _plain_spaces(vocab)
    prefix = bool(vocab.get("add_space_prefix", True))
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
    steps = [{"type": "Prepend", "prepend": _MARK}, mark] if prefix else [mark]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    model = _BPE | {
        "unk_token": vocab.token("unknown_token_id"),
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": _ids(tokens),
        "merges": merges_of_scores(tokens, vocab.types, vocab.scores()),
    }
    return _assemble(
        _added(vocab, tokens),
        {"type": "Sequence", "normalizers": steps},
        None,
        _bos_eos_template(vocab),
        {"type": "Sequence", "decoders": _MARK_DECODER + strip},
        model,
    )


def _plain_spaces(vocab: _Vocab) -> list[str]:
    """Tokens as the text they match: user-defined ones match before spaces are marked."""
    return [
        token.replace(_MARK, " ") if kind == USER_DEFINED else token
        for token, kind in zip(vocab.tokens, vocab.types, strict=True)
    ]


def merges_of_scores(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """BPE merges of a SentencePiece vocabulary: each way to join two pieces into a third.

    Best score of the joined piece first; then, as Hugging Face's converter orders equals, the
    longer left side and the longer right side first.
    """
    pieces = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == NORMAL
    }
    found: list[tuple[float, int, int, int, int, str, str]] = []
    for token, index in pieces.items():
        score = -scores[index]
        for border in range(1, len(token)):
            left = pieces.get(token[:border])
            if left is None:
                continue
            right = pieces.get(token[border:])
            if right is not None:
                sizes = -border, border - len(token)
                found.append((score, *sizes, index, left, token[:border], token[border:]))
    found.sort()
    return [merge[5:] for merge in found]


def _marked_bpe(vocab: _Vocab) -> dict[str, Any]:
    model = _BPE | {
        "unk_token": vocab.token("unknown_token_id"),
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": _ids(vocab.tokens),
        "merges": vocab.merges(),
    }
    return _assemble(
        _added(vocab, vocab.tokens),
        {"type": "Replace", "pattern": {"String": " "}, "content": _MARK},
        {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        _bos_eos_template(vocab),
        {"type": "Sequence", "decoders": _MARK_DECODER},
        model,
    )


def _wordpiece(vocab: _Vocab) -> dict[str, Any]:
    # Cased and uncased vocabularies carry the same model name; only this name says which.
    if vocab.get("pre") != "bert-bge":
        raise VocabError(f"pre-tokenizer {vocab.get('pre')!r} of a bert vocabulary is not known")
    tokens = [
        token[1:] if token.startswith(_MARK) else token if _bracketed(token) else "##" + token
        for token in vocab.tokens
    ]
    model = {
        "type": "WordPiece",
        "unk_token": vocab.token("unknown_token_id") or "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": _ids(tokens),
    }
    return _assemble(
        _added(vocab, tokens),
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        {"type": "BertPreTokenizer"},
        _template(vocab, vocab.token("cls_token_id"), vocab.token("seperator_token_id")),
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        model,
    )


def _bracketed(token: str) -> bool:
    return token.startswith("[") and token.endswith("]")
