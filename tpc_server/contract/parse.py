"""The request types of /parse_function_call and /separate_reasoning. Owner: stateless."""

from __future__ import annotations

from typing import Any, Final

from ..parsers.formats import REASONING_PARSERS, TOOL_PARSERS, check_names
from . import fields as F
from .chat_messages import check_tools
from .errors import BadRequest, invalid_type
from .fields import RequestField
from .json_body import parse_object
from .openai import OpenAIFacts, flag

__all__ = ["PARSE_TABLE", "SEPARATE_TABLE", "decode_parse", "decode_separate"]

#: Characters; what a model writes at one go is far below.
MOST_CHARS: Final = 4 << 20


def _row(name: str, kind: int, default: Any, nullable: bool, about: str) -> RequestField:
    return RequestField(name, kind, default, nullable, 0, about)


PARSE_TABLE: Final[tuple[RequestField, ...]] = (
    _row("text", F.STR, None, False, "what a model wrote"),
    _row("tools", F.OBJECTS, [], False, "the functions it may call, as in a chat request"),
    _row("tool_call_parser", F.STR, None, True, "a parser's name; the server's own by default"),
)
SEPARATE_TABLE: Final[tuple[RequestField, ...]] = (
    _row("text", F.STR, None, False, "what a model wrote"),
    _row("reasoning_parser", F.STR, None, True, "a parser's name; the server's own by default"),
    _row("return_blocks", F.BOOL, False, True, "whether the parts are listed too"),
)

#: (the text, the parser's name, names of functions or whether blocks are wanted)
Wanted = tuple[str, str, Any]


def decode_parse(body: bytes, facts: OpenAIFacts) -> Wanted:
    """One body of /parse_function_call. Raises BadRequest."""
    fields = parse_object(body)
    text = _text(fields)
    tools = check_tools(fields["tools"]) if "tools" in fields else []
    name = _name(fields, "tool_call_parser", facts.tool_parser)
    _known(None, name)
    return text, name, [tool["function"]["name"] for tool in tools]


def decode_separate(body: bytes, facts: OpenAIFacts) -> Wanted:
    """One body of /separate_reasoning. Raises BadRequest."""
    fields = parse_object(body)
    text = _text(fields)
    name = _name(fields, "reasoning_parser", facts.reasoning_parser).lower()
    _known(name, None)
    return text, name, flag(fields, "return_blocks", False)


def _text(fields: dict[str, Any]) -> str:
    if "text" not in fields:
        raise BadRequest("missing field `text`")
    text = fields["text"]
    if type(text) is not str:
        raise invalid_type(text, "a string", "text")
    if len(text) > MOST_CHARS:
        raise BadRequest(f"text has {len(text)} characters, over the limit of {MOST_CHARS}")
    return text


def _name(fields: dict[str, Any], field: str, default: str | None) -> str:
    name = fields.get(field)
    if name is None or name == "":
        name = default
    if name is None:
        known = TOOL_PARSERS if field == "tool_call_parser" else REASONING_PARSERS
        raise BadRequest(f"missing field `{field}`; known are {', '.join(sorted(known))}")
    if type(name) is not str:
        raise invalid_type(name, "a string", field)
    return name


def _known(reasoning: str | None, tools: str | None) -> None:
    try:
        check_names(reasoning, tools)
    except ValueError as error:
        raise BadRequest(str(error)) from None
