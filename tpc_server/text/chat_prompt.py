"""Prompts that are more than a plain text, as plain data. Owner: stateless, any core.

A job's `text` is a `str` (a plain text: the tokenizer's special tokens go around it) or one of the
tuples made here; they cross between cores by marshal. Nobody changes one once it is made.

    (TEXT, text, add_special_tokens)
    (CHAT, messages, tools, kwargs, add_generation_prompt, continue_final_message, chars, plain)

TEXT    a text with or without the special tokens that the tokenizer puts around it.
CHAT    a conversation for the chat template; the template alone puts special tokens.
    messages                list of dicts, as the client sent them: content as a string or as a
                            list of parts, tool_calls with arguments as JSON text or as an object
    tools                   list of dicts (`{"type": "function", "function": {…}}`) or None
    kwargs                  more variables of the template (chat_template_kwargs, reasoning_effort)
                            or None; those of --default-chat-template-kwargs are put under them
    add_generation_prompt   None: as a chat request wants it, that is True, and a final assistant
                            message is shown as a user's; True or False: just that
    continue_final_message  a final assistant message is left out and its text put behind the
                            generation prompt
    chars                   how long it is, about. Counted by the thread that made the messages:
                            another one's first look into a dict takes a lock against itself
                            (CPython 3.13t), 10 microseconds and more a message
    plain                   each message is a role and a text: every template takes them as they are
"""

from __future__ import annotations

from typing import Any, Final

TEXT: Final = 0
CHAT: Final = 1

#: A conversation of more messages than this is a long one, whatever they hold.
LONG_CHAT_MESSAGES: Final = 50
#: What a value in a message costs beside its characters, in characters.
_VALUE_CHARS: Final = 8
#: Characters of a conversation are counted up to here.
MOST_CHARS: Final = 1 << 20
_CHARS: Final = 6

Prompt = str | tuple[Any, ...]


class ChatTemplateError(ValueError):
    """A template that does not compile, or messages that it cannot be rendered with."""


def text(text: str, add_special_tokens: bool) -> Prompt:
    """A text, with or without special tokens around it."""
    return text if add_special_tokens else (TEXT, text, False)


def chat(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    kwargs: dict[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    texts: int = -1,
) -> tuple[Any, ...]:
    """A conversation; `texts`: characters of messages that are plain, which counting spares."""
    plain = texts >= 0
    if not plain:
        chars = _chars(messages, tools, kwargs)
    else:
        chars = texts + 3 * _VALUE_CHARS * len(messages)
        if tools is not None or kwargs is not None:
            chars += _chars([], tools, kwargs)
    return (
        CHAT, messages, tools, kwargs, add_generation_prompt, continue_final_message, chars, plain,
    )  # fmt: skip


def is_long(prompt: Prompt, limit: int) -> bool:
    """Whether a prompt has more than about `limit` characters, or many messages."""
    if type(prompt) is tuple and prompt[0] == CHAT:
        return prompt[_CHARS] > limit or len(prompt[1]) > LONG_CHAT_MESSAGES
    return exceeds(prompt, limit)


def exceeds(prompt: Prompt, limit: int) -> bool:
    """Whether a prompt has more than about `limit` characters, a limit below MOST_CHARS."""
    if isinstance(prompt, str):
        return len(prompt) > limit
    if prompt[0] == TEXT:
        return len(prompt[1]) > limit
    return bool(prompt[_CHARS] > limit)


def _chars(messages: list[dict[str, Any]], *more: Any) -> int:
    """Characters of a conversation, about; counted no further than somewhat over MOST_CHARS."""
    chars = 0
    todo: list[Any] = [*more]
    beside = 3 * _VALUE_CHARS
    for message in messages:
        content = message.get("content")
        if type(content) is str and len(message) == 2:  # nearly all of them
            chars += len(content) + beside
        else:
            todo.append(message)
    # Not recursive: a client decides how deep this is.
    while todo and chars <= MOST_CHARS:
        value = todo.pop()
        kind = type(value)
        chars += _VALUE_CHARS
        if kind is str:
            chars += len(value)
        elif kind is dict:
            todo.extend(value.values())
        elif kind is list:
            if len(value) * _VALUE_CHARS > MOST_CHARS:
                return MOST_CHARS + 1
            todo.extend(value)
    return chars
