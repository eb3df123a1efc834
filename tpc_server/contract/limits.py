"""What this server accepts, and the checks that need the prompt's length. Owner: read only."""

from __future__ import annotations

from typing import Any, Final

from ..boundary.messages import GENERATE, SAMPLING
from .errors import BadRequest

__all__ = [
    "Limits",
    "check_ids",
    "check_ids_fit",
    "check_lengths",
    "check_samples",
    "fit_text",
    "logprob_entries",
]

MAX_RID_BYTES: Final = 128
MAX_ALTERNATIVES: Final = 1024  # logprobs a position; each is rendered on the stream's core
MAX_BATCH: Final = 4096  # engine requests one HTTP request may ask for
MAX_CLONE_BYTES: Final = 64 << 20  # of what the requests of one body have in common
# Alternatives at all positions of a request's prompts: they come in one frame.
MAX_LOGPROB_ENTRIES: Final = 512 << 10

_MAX_NEW = SAMPLING["max_new_tokens"]
_MIN_NEW = SAMPLING["min_new_tokens"]
_LOGPROB = GENERATE["return_logprob"]
_START = GENERATE["logprob_start_len"]
_TOP = GENERATE["top_logprobs_num"]


class Limits:
    """Bounds and defaults of one server. Plain data; each core builds its decoder from a copy.

    context_len            tokens of prompt and answer together
    vocab_size             token ids are in [0, vocab_size)
    num_reserved_tokens    added to every prompt's length (speculative decoding)
    default_max_new_tokens of a request that names none; None is no limit
    token_chars            of a text that a token stands for at most, None where that is not known
    grammars               whether the engine takes json_schema, regex, ebnf, structural_tag
    """

    __slots__ = (
        "allow_auto_truncate",
        "context_len",
        "default_max_new_tokens",
        "default_priority",
        "enable_custom_logit_processor",
        "enable_return_hidden_states",
        "enable_strict_thinking",
        "grammars",
        "lora_ids",
        "max_alternatives",
        "max_batch",
        "max_clone_bytes",
        "max_logprob_entries",
        "num_reserved_tokens",
        "preferred_sampling_params",
        "skip_tokenizer_init",
        "token_chars",
        "vocab_size",
    )

    def __init__(
        self,
        context_len: int,
        vocab_size: int,
        *,
        num_reserved_tokens: int = 0,
        default_max_new_tokens: int | None = 128,
        default_priority: int | None = None,
        preferred_sampling_params: dict[str, Any] | None = None,
        lora_ids: dict[str, str] | None = None,
        allow_auto_truncate: bool = False,
        enable_custom_logit_processor: bool = False,
        enable_return_hidden_states: bool = False,
        enable_strict_thinking: bool = False,
        skip_tokenizer_init: bool = False,
        grammars: bool = True,
        max_batch: int = MAX_BATCH,
        max_alternatives: int = MAX_ALTERNATIVES,
        max_clone_bytes: int = MAX_CLONE_BYTES,
        max_logprob_entries: int = MAX_LOGPROB_ENTRIES,
        token_chars: int | None = None,
    ) -> None:
        self.context_len = context_len
        self.vocab_size = vocab_size
        self.num_reserved_tokens = num_reserved_tokens
        self.default_max_new_tokens = default_max_new_tokens
        self.default_priority = default_priority
        self.preferred_sampling_params = dict(preferred_sampling_params or {})
        self.lora_ids = dict(lora_ids or {})
        self.allow_auto_truncate = allow_auto_truncate
        self.enable_custom_logit_processor = enable_custom_logit_processor
        self.enable_return_hidden_states = enable_return_hidden_states
        self.enable_strict_thinking = enable_strict_thinking
        self.skip_tokenizer_init = skip_tokenizer_init
        self.grammars = grammars
        self.max_batch = max_batch
        self.max_alternatives = min(max_alternatives, vocab_size)
        self.max_clone_bytes = max_clone_bytes
        self.max_logprob_entries = max_logprob_entries
        self.token_chars = token_chars


def check_lengths(n_prompt: int, wire: list[Any], limits: Limits) -> int:
    """Check a prompt of `n_prompt` tokens against the context; how many of them to keep.

    `wire` is the request's sampling array. Without auto-truncation all tokens are kept; with it
    the prompt may be cut and `max_new_tokens` in `wire` lowered in place. Raises BadRequest.
    """
    context = limits.context_len
    total = n_prompt + limits.num_reserved_tokens
    keep = n_prompt
    if total >= context:
        if not limits.allow_auto_truncate:
            raise BadRequest(_too_long(total, limits))
        keep = min(n_prompt, context)
        total = keep
    max_new = wire[_MAX_NEW]
    if max_new is None or total + max_new <= context:
        return keep
    if not limits.allow_auto_truncate:
        raise BadRequest(
            "Requested token count exceeds the model's maximum context length of"
            f" {context} tokens. You requested a total of {total + max_new} tokens:"
            f" {total} tokens from the input messages and {max_new} tokens for the completion."
            " Please reduce the number of tokens in the input messages or the completion to"
            " fit within the limit."
        )
    max_new = max(0, context - total)
    if wire[_MIN_NEW] > max_new:
        raise BadRequest(
            f"min_new_tokens must be in [0, max_new_tokens({max_new})], got {wire[_MIN_NEW]}."
        )
    wire[_MAX_NEW] = max_new
    return keep


def logprob_entries(
    n_prompt: int, wire: list[Any], ids: list[int] | None, limits: Limits, before: int = 0
) -> int:
    """Alternatives that a request's answer has of its prompt, and `before` of others with it.

    `wire` is the message, `ids` its token_ids_logprob. Raises BadRequest beyond the limit: a core
    renders them at one go, and other streams of it wait.
    """
    start = wire[_START]
    if not wire[_LOGPROB] or start < 0 or start >= n_prompt:
        return before
    each = wire[_TOP] + len(ids or ())
    total: int = before + each * (n_prompt - start)
    if each and total > limits.max_logprob_entries:
        name = "top_logprobs_num" if wire[_TOP] else "token_ids_logprob"
        raise BadRequest(
            f"{name} is too large: with {each} alternatives at each of {n_prompt - start} positions"
            f" of a prompt the request asks for {total}, over the limit of"
            f" {limits.max_logprob_entries} (--max-logprob-entries, TPC_MAX_LOGPROB_ENTRIES)"
        )
    return total


def check_samples(n: int, limits: Limits, prompts: int = 1) -> int:
    """How many generations `n` answers to each of so many prompts are. Raises BadRequest."""
    most = limits.max_batch
    if n > most:
        raise BadRequest(f"n must be at most {most}, got {n}.")
    total = n * prompts
    if total > most:
        raise BadRequest(f"the request asks for {total} generations, over the limit of {most}")
    return total


def check_ids_fit(ids: list[Any], limits: Limits) -> None:
    """Refuse a prompt that is too long whatever else the request says: before its ids are read."""
    total = len(ids) + limits.num_reserved_tokens
    if total >= limits.context_len and not limits.allow_auto_truncate:
        raise BadRequest(_too_long(total, limits))


def fit_text(text: str, limits: Limits) -> str:
    """The text, cut with auto-truncation, where its length alone says that it is too long.

    Raises BadRequest. What passes may still be too long: its tokens are counted later.
    """
    most = limits.token_chars
    if most is None:
        return text
    least = -(-len(text) // most) + limits.num_reserved_tokens
    if least < limits.context_len:
        return text
    if limits.allow_auto_truncate:
        # Some tokens more than fit: where a word is cut, its last tokens come out otherwise.
        return text[: most * (limits.context_len + 64)]
    raise BadRequest(
        f"The input (at least {least} tokens) is longer than the model's context length"
        f" ({limits.context_len} tokens)."
    )


def _too_long(total: int, limits: Limits) -> str:
    return (
        f"The input ({total} tokens) is longer than the model's context length"
        f" ({limits.context_len} tokens)."
    )


def check_ids(ids: list[int], limits: Limits, name: str = "input_ids", vocab_size: int = 0) -> None:
    """Refuse token ids outside the vocabulary. An engine would index past its embedding."""
    size = vocab_size or limits.vocab_size
    if ids and (max(ids) >= size or min(ids) < 0):
        for token in ids:
            if not 0 <= token < size:
                raise BadRequest(
                    f"{name} contains out-of-vocabulary token id {token};"
                    f" valid range is [0, {size})"
                )
