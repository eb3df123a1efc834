"""Pre-tokenizers by the names GGUF files give them. Owner: any thread (constants only).

A GGUF file names its pre-tokenizer (``tokenizer.ggml.pre``) and does not describe it. What stands
here restates, per name, the normalizer and pre-tokenizer of the models' own tokenizer.json files.
Only names whose definition is certain are listed: a near miss would tokenize almost right, which is
worse than a refusal.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN2: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN35: Final = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _SPACES
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?"
    + _UPPER
    + "*"
    + _LOWER
    + r"+|[^\r\n\p{L}\p{N}]?"
    + _UPPER
    + "+"
    + _LOWER
    + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _SPACES
)
_GPT4O: Final = (
    r"[^\r\n\p{L}\p{N}]?"
    + _UPPER
    + "*"
    + _LOWER
    + "+"
    + _CONTRACTIONS
    + "?"
    + r"|[^\r\n\p{L}\p{N}]?"
    + _UPPER
    + "+"
    + _LOWER
    + "*"
    + _CONTRACTIONS
    + "?"
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _SPACES
)
#: Cased letters as DeepSeek's first tokenizer spells them out.
_DEEPSEEK_LETTERS: Final = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_PUNCTUATION: Final = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"
_DEEPSEEK_CJK: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3: Final = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    + "|[^\r\n"
    + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n"
    + r"]*|\s*["
    + "\r\n"
    + r"]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(*patterns: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in patterns
    )


def _digits(individual: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": individual}


class PreTokenizer(NamedTuple):
    """What a name stands for. ``steps``: tokenizer.json pre-tokenizers, run in order.

    ``add_bos``: whether such a model wants its BOS when the file does not say.
    """

    steps: tuple[dict[str, Any], ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_PLAIN: Final = _byte_level(False)
_GPT2: Final = _byte_level(True)
_SINGLE_DIGITS: Final = (_digits(True), _GPT2)
_LLAMA3_BPE: Final = PreTokenizer((*_split(_LLAMA3), _PLAIN), ignore_merges=True, add_bos=True)

#: ``tokenizer.ggml.pre`` of byte-level BPE vocabularies.
BYTE_LEVEL: Final[dict[str, PreTokenizer]] = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "phi-2": PreTokenizer((_GPT2,)),
    "mpt": PreTokenizer((_GPT2,), nfc=True),
    "starcoder": PreTokenizer(_SINGLE_DIGITS),
    "refact": PreTokenizer(_SINGLE_DIGITS),
    "smollm": PreTokenizer(_SINGLE_DIGITS),
    "command-r": PreTokenizer(_SINGLE_DIGITS, nfc=True),
    "llama-bpe": _LLAMA3_BPE,
    "llama3": _LLAMA3_BPE,
    "llama-v3": _LLAMA3_BPE,
    "smaug-bpe": PreTokenizer((*_split(_LLAMA3), _PLAIN)),
    "qwen2": PreTokenizer((*_split(_QWEN2), _PLAIN), nfc=True),
    "qwen35": PreTokenizer((*_split(_QWEN35), _PLAIN), nfc=True),
    "falcon": PreTokenizer(
        (
            {"type": "Punctuation", "behavior": "Contiguous"},
            _GPT2,
            _digits(False),
            *_split("[0-9][0-9][0-9]"),
        )
    ),
    "deepseek-llm": PreTokenizer(
        (
            *_split(
                "[\r\n]",
                r"\s?[" + _DEEPSEEK_LETTERS + "]+",
                r"\s?" + _DEEPSEEK_PUNCTUATION + "+",
                r"\s+$",
                _DEEPSEEK_CJK,
            ),
            _digits(True),
            _PLAIN,
        )
    ),
    "deepseek-coder": PreTokenizer(
        (
            *_split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK),
            _digits(True),
            _PLAIN,
        )
    ),
    "deepseek-v3": PreTokenizer(
        (*_split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3), _PLAIN)
    ),
    "tekken": PreTokenizer((*_split(_TEKKEN), _PLAIN), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer((*_split(_GPT4O), _PLAIN)),
    "llama4": PreTokenizer((*_split(_GPT4O), _PLAIN)),
}
