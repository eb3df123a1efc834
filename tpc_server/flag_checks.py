"""Flags whose meaning alone shows that they are wrong, told in their words. Owner: the main thread.

Before the port is taken where that can be, before weights are converted where a tokenizer is
needed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .server_checks import check_preferred

if TYPE_CHECKING:
    from .text.load import LoadedTokenizer

_SHOWN = 60


def check(given: Any) -> None:
    """What needs nothing but the flags themselves. Raises ValueError."""
    for flag, value in (
        ("--model-path", given.model_path),
        ("--tokenizer-path", given.tokenizer_path),
        ("--uds", given.uds),
    ):
        if value is not None and not value.strip():  # an unset variable of a script, say
            raise ValueError(f"{flag} is empty")
    _object("--default-chat-template-kwargs", given.default_chat_template_kwargs)
    preferred = _object("--preferred-sampling-params", given.preferred_sampling_params)
    try:
        # No engine of the program takes grammars; the vocabulary is not known yet.
        check_preferred(
            preferred, given.skip_tokenizer_init, given.default_max_new_tokens, grammars=False
        )
    except ValueError as error:
        raise ValueError(f"--preferred-sampling-params: {error}") from None


def check_chat_template(given: Any, tokenizer: LoadedTokenizer) -> None:
    """That the chat template is there and compiles. Raises ValueError."""
    from .text.chat_source import chat_source

    try:
        chat_source(tokenizer, given.chat_template, given.default_chat_template_kwargs)
    except ValueError as error:
        text = str(error)
        if text.startswith("chat_template_kwargs."):
            raise ValueError(f"--default-chat-template-kwargs: {text}") from None
        if given.chat_template is None:
            raise ValueError(f"the model's {text}") from None
        raise ValueError(f"--chat-template {_short(given.chat_template)}: {text}") from None


def _object(flag: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"{flag} {_short(text or '')}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{flag} {_short(text or '')}: not a JSON object")
    return value


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
