"""The request types of /tokenize and /detokenize, with their decoders. Owner: stateless."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from . import fields as F
from .batch import to_ids
from .chat import ChatDecoder
from .errors import BadRequest, invalid_type
from .fields import RequestField
from .json_body import check_finite, parse_object
from .limits import Limits, check_ids

__all__ = [
    "DETOKENIZE_TABLE",
    "TOKENIZE_TABLE",
    "TextsBody",
    "decode_detokenize",
    "decode_tokenize",
]


def _row(
    name: str, kind: int, default: Any, nullable: bool, about: str, low: int | None = None
) -> RequestField:
    return RequestField(name, kind, default, nullable, 0, about, low)


_CHAT: Final = "as in a chat request; only with messages"
TOKENIZE_TABLE: Final[tuple[RequestField, ...]] = (
    _row("model", F.STR, "default", False, "not looked at"),
    _row("prompt", F.STRINGS, None, True, "the text, or a list of texts"),
    _row("messages", F.OBJECTS, None, True, "a conversation instead of a prompt"),
    _row("add_special_tokens", F.BOOL, True, False, "whether the model's BOS and EOS are added"),
    _row("add_generation_prompt", F.BOOL, None, True, _CHAT),
    _row("continue_final_message", F.BOOL, False, False, _CHAT),
    _row("tools", F.OBJECTS, None, True, _CHAT),
    _row("tool_choice", F.ANY, None, True, _CHAT),
    _row("reasoning_effort", F.ANY, None, True, _CHAT),
    _row("chat_template_kwargs", F.OBJECT, None, True, _CHAT),
)
DETOKENIZE_TABLE: Final[tuple[RequestField, ...]] = (
    _row("model", F.STR, "default", False, "not looked at"),
    _row("tokens", F.IDS, None, False, "token ids, or a list of lists of them", 0),
    _row("skip_special_tokens", F.BOOL, True, False, "whether special tokens are left out"),
)
_TOKENIZE: Final = {field.name: field for field in TOKENIZE_TABLE}
_DETOKENIZE: Final = {field.name: field for field in DETOKENIZE_TABLE}


class TextsBody(NamedTuple):
    """What is to be encoded or decoded. `special`: add, or skip, special tokens."""

    items: list[Any]  # texts, lists of token ids, or one conversation
    is_list: bool
    special: bool


def decode_tokenize(body: bytes, limits: Limits, chat: ChatDecoder) -> TextsBody:
    """Decode one body; messages become what `text.chat_prompt` makes. Raises BadRequest."""
    fields = parse_object(body)
    _check(fields, _TOKENIZE)
    prompt = fields.get("prompt")
    if (prompt is None) == (fields.get("messages") is None):
        raise BadRequest("Exactly one of 'prompt' or 'messages' must be provided.")
    if prompt is None:
        as_given = fields.get("add_generation_prompt") is not None
        special = as_given and fields.get("add_special_tokens", False)
        return TextsBody([chat.conversation(fields)], False, special)
    for field in TOKENIZE_TABLE:
        if field.about is _CHAT and fields.get(field.name):
            raise BadRequest(f"{field.name} needs messages: a prompt is encoded as it is")
    items = prompt if type(prompt) is list else [prompt]
    _check_count(items, limits)
    return TextsBody(items, type(prompt) is list, fields.get("add_special_tokens", True))


def decode_detokenize(body: bytes, limits: Limits, vocab_size: int) -> TextsBody:
    """Decode one body. Raises BadRequest."""
    fields = parse_object(body)
    _check(fields, _DETOKENIZE)
    if "tokens" not in fields:
        raise BadRequest("missing field `tokens`")
    tokens = fields["tokens"]
    special = fields.get("skip_special_tokens", True)
    if not tokens and type(tokens) is list:
        return TextsBody([[]], False, special)
    items = to_ids(tokens, "tokens")
    _check_count(items, limits)
    for k, ids in enumerate(items):
        name = "tokens" if items[0] is tokens else f"tokens[{k}]"
        check_ids(ids, limits, name, vocab_size)
    return TextsBody(items, items[0] is not tokens, special)


def _check_count(items: list[Any], limits: Limits) -> None:
    if len(items) > limits.max_batch:
        raise BadRequest(
            f"the request has {len(items)} entries, over the limit of {limits.max_batch}"
        )


def _check(fields: dict[str, Any], table: dict[str, RequestField]) -> None:
    """JSON types of the fields that do not need a decoder of their own."""
    for name, value in fields.items():
        field = table.get(name)
        if field is None or field.kind == F.ANY:
            check_finite(value, name)
        elif value is None and field.nullable:
            continue
        elif field.kind == F.STR:
            if type(value) is not str:
                raise invalid_type(value, "a string", name)
        elif field.kind == F.BOOL:
            if type(value) is not bool:
                raise invalid_type(value, "a boolean", name)
        elif field.kind == F.STRINGS:
            _strings(value, name)
        elif field.kind == F.OBJECTS:
            _objects(value, name)
        elif field.kind == F.OBJECT:
            if type(value) is not dict:
                raise invalid_type(value, "an object", name)
            check_finite(value, name)


def _strings(value: Any, path: str) -> None:
    if type(value) is str:
        return
    if type(value) is not list:
        raise invalid_type(value, "a string or an array of strings", path)
    for k, entry in enumerate(value):
        if type(entry) is not str:
            raise invalid_type(entry, "a string", f"{path}[{k}]")


def _objects(value: Any, path: str) -> None:
    if type(value) is not list:
        raise invalid_type(value, "an array", path)
    for k, entry in enumerate(value):
        if type(entry) is not dict:
            raise invalid_type(entry, "an object", f"{path}[{k}]")
        check_finite(entry, f"{path}[{k}]")
