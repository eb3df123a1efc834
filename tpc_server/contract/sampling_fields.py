"""Sampling parameters of a request, declared once. Owner: stateless.

SAMPLING_TABLE is the contract: name, JSON kind, bounds, default, and the text of a value outside
its bounds. `sampling.py` decodes by it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from .values import HUGE, I64_MAX, I64_MIN

# JSON kinds of a sampling parameter; null stands for the default everywhere.
INT: Final = 1
FLOAT: Final = 2
BOOL: Final = 3
STR: Final = 4
STRINGS: Final = 5  # a string or a list of strings
INTS: Final = 6
BIAS: Final = 7
CUSTOM: Final = 8
WATERMARK: Final = 9
CHOICE: Final = 10

_TINY: Final = 5e-324  # the least positive number: an open lower bound of 0
NO_TOP_K: Final = 1 << 30
MAX_STOPS: Final = 32
MAX_STOP_BYTES: Final = 4096  # of all stop strings together: a scheduler looks for each every step
MAX_REGEX_BYTES: Final = 256
SEED: Final = "of the draws; the samples of one request all get it, as in SGLang, and are alike"


class SamplingField(NamedTuple):
    """One parameter. `text` tells of a value outside [low, high]; `about` is for the docs."""

    name: str
    kind: int
    default: Any
    low: Any = None
    high: Any = None
    text: str = ""
    about: str = ""


# In the order in which an unknown name is answered. `top_k` and the relation of the token counts
# are checked once all parameters are known.
SAMPLING_TABLE: Final = (
    SamplingField(
        "max_new_tokens", INT, None, 0, I64_MAX, "max_new_tokens must be at least 0, got {}.",
        "tokens to generate at most; null: as many as the context holds",
    ),
    SamplingField("stop", STRINGS, None, about="strings that end the text"),
    SamplingField("stop_token_ids", INTS, None, about="token ids that end the text"),
    SamplingField("stop_regex", STRINGS, None, about="patterns that end the text"),
    SamplingField(
        "temperature", FLOAT, 1.0, 0.0, HUGE,
        "temperature must be a non-negative finite number, got {}.",
        "0 takes the likeliest token",
    ),
    SamplingField(
        "top_p", FLOAT, 1.0, _TINY, 1.0, "top_p must be in (0, 1], got {}.",
        "sample from the likeliest tokens of this probability together",
    ),
    SamplingField(
        "top_k", INT, NO_TOP_K, I64_MIN, I64_MAX,
        about="sample from so many of the likeliest tokens; -1 is all; 0 (taken where temperature"
        " is 0) is none",
    ),
    SamplingField(
        "min_p", FLOAT, 0.0, 0.0, 1.0, "min_p must be in [0, 1], got {}.",
        "least probability of a token, relative to the likeliest one's",
    ),
    SamplingField(
        "frequency_penalty", FLOAT, 0.0, -2.0, 2.0, "frequency_penalty must be in [-2, 2], got {}.",
        "against tokens by how often they occurred",
    ),
    SamplingField(
        "presence_penalty", FLOAT, 0.0, -2.0, 2.0, "presence_penalty must be in [-2, 2], got {}.",
        "against tokens that occurred",
    ),
    SamplingField(
        "repetition_penalty", FLOAT, 1.0, _TINY, 2.0,
        "repetition_penalty must be in (0, 2] (1.0 = no penalty), got {}.",
        "above 1: against tokens that occurred, the prompt's included",
    ),
    SamplingField(
        "min_new_tokens", INT, 0, 0, I64_MAX,
        "min_new_tokens must be in [0, max_new_tokens], got {}.",
        "no end before so many tokens",
    ),
    SamplingField(
        "n", INT, 1, 1, I64_MAX, "n must be at least 1, got {}.",
        "samples of each prompt; above 1 the answer is a list",
    ),
    SamplingField("json_schema", STR, None, about="the answer is JSON of this schema (as text)"),
    SamplingField("regex", STR, None, about="the answer matches this pattern"),
    SamplingField("ebnf", STR, None, about="the answer follows this grammar"),
    SamplingField("structural_tag", STR, None, about="parts of the answer follow a grammar"),
    SamplingField("ignore_eos", BOOL, False, about="go on after the end token"),
    SamplingField("skip_special_tokens", BOOL, True, about="leave special tokens out of the text"),
    SamplingField(
        "spaces_between_special_tokens", BOOL, True, about="where special tokens are shown"
    ),
    SamplingField("no_stop_trim", BOOL, False, about="keep the stop in the text"),
    # A scheduler divides by it.
    SamplingField(
        "stream_interval", INT, None, 1, I64_MAX, "stream_interval must be at least 1, got {}.",
        "tokens from one event to the next",
    ),
    SamplingField("logit_bias", BIAS, None, about="token id (as text): added to its logit"),
    SamplingField("sampling_seed", INT, None, I64_MIN, I64_MAX, about=SEED),
    SamplingField("custom_params", CUSTOM, None, about="for extensions of the scheduler"),
    SamplingField(
        "beam_width", INT, None, 1, 1,
        "beam_width must be 1 (beam search is not supported), got {}.",
        "there is no beam search",
    ),
    SamplingField("watermark", WATERMARK, None, about="only that there is none"),
    SamplingField("choice", CHOICE, None, about="only an empty list"),
)  # fmt: skip
SAMPLING_NAMES: Final = tuple([field.name for field in SAMPLING_TABLE])
