"""Decoder of /v1/messages bodies: they become chat requests. Owner: the ingress core that built it.

What a field asks for is checked here, by Anthropic's names; its bounds where the chat request has
them, whose errors are told in those names.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..parsers.formats import REASONING_PARSERS, SWITCHES
from . import fields as F
from .anthropic_blocks import Conversation, chat_messages
from .anthropic_fields import COUNT_TABLE, MESSAGES_TABLE
from .chat import ChatDecoder
from .chat_messages import check_schema
from .errors import BadRequest, invalid_type
from .fields import RequestField
from .generate import GenerateDecoder
from .json_body import check_finite, parse_object
from .limits import Limits
from .openai import OpenAICall, OpenAIFacts, flag

__all__ = ["MessagesDecoder"]

_SAME: Final = (
    "model", "stream", "max_tokens", "temperature", "top_p", "top_k", "rid", "bootstrap_host",
    "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank", "priority",
)  # fmt: skip
#: Run by Anthropic's own servers: there is nobody here who would.
_SERVER_TOOLS: Final = ("web_search_", "computer_", "bash_", "text_editor_")
_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_WORDS: Final = re.compile(r"\bstop(?= cannot| strings|`)|\bresponse_format\.json_schema\b")
_NAMES: Final = {
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
}
_LEAST_BUDGET: Final = 1024


class MessagesDecoder:
    """Decodes bodies of /v1/messages and its /count_tokens. Build one per core, on that core."""

    def __init__(self, limits: Limits, generate: GenerateDecoder, facts: OpenAIFacts) -> None:
        self._chat = ChatDecoder(limits, generate, facts)
        self._facts = facts
        think = None
        if facts.reasoning_parser is not None:
            form = REASONING_PARSERS[facts.reasoning_parser]
            think = form.open, form.close
        self._kind = Conversation(facts.inline_system, think)
        self._rows = {field.name: RequestField(*field) for field in MESSAGES_TABLE}
        self._count_rows = {field.name: RequestField(*field) for field in COUNT_TABLE}

    def decode(self, body: bytes) -> OpenAICall:
        """Decode one body of /v1/messages. Raises BadRequest; every text names the field."""
        fields = parse_object(body)
        _check(fields, self._rows)
        most = fields.get("max_tokens")
        if most is None:
            raise BadRequest("missing field `max_tokens`")
        if most < 1:
            raise BadRequest(f"max_tokens must be at least 1, got {most}")
        chat = self._as_chat(fields)
        for name in _SAME:
            if fields.get(name) is not None:
                chat[name] = fields[name]
        if fields.get("stop_sequences"):
            chat["stop"] = fields["stop_sequences"]
        try:
            return self._chat.decode_fields(chat, len(body))
        except BadRequest as error:
            raise _renamed(error) from None

    def conversation(self, body: bytes) -> tuple[Any, ...]:
        """What /v1/messages/count_tokens counts: the prompt of a body. Raises BadRequest."""
        fields = parse_object(body)
        _check(fields, self._count_rows)
        try:
            return self._chat.conversation(self._as_chat(fields))
        except BadRequest as error:
            raise _renamed(error) from None

    def _as_chat(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The part of a chat request that its prompt depends on."""
        if not fields.get("model"):
            raise BadRequest("missing field `model`")
        chat: dict[str, Any] = {
            "messages": chat_messages(fields.get("messages"), fields.get("system"), self._kind)
        }
        tools = _tools(fields.get("tools"))
        if tools:
            chat["tools"] = tools
        _tool_choice(fields.get("tool_choice"), tools, chat)
        self._thinking(fields.get("thinking"), chat)
        _output_config(fields.get("output_config"), chat)
        return chat

    def _thinking(self, thinking: Any, chat: dict[str, Any]) -> None:
        if thinking is None:
            return
        kind, budget = thinking.get("type"), thinking.get("budget_tokens")
        if type(kind) is not str:
            raise invalid_type(kind, "a string", "thinking.type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise BadRequest(
                f"thinking.type must be enabled, disabled or adaptive, got {kind[:64]!r}"
            )
        if kind == "enabled":
            if type(budget) is not int:
                raise invalid_type(budget, "an integer", "thinking.budget_tokens")
            if budget < _LEAST_BUDGET:
                raise BadRequest(
                    f"thinking.budget_tokens must be at least {_LEAST_BUDGET}, got {budget}"
                )
        elif budget is not None:
            raise BadRequest(f"thinking.budget_tokens cannot be given with thinking.type {kind}")
        wanted = kind != "disabled"
        name = self._facts.reasoning_parser
        if name is None:
            if wanted:
                raise BadRequest("thinking needs a server that was started with --reasoning-parser")
            return
        form = REASONING_PARSERS[name]
        if form.always:
            if not wanted:
                raise BadRequest(f"thinking cannot be disabled: this model ({name}) always does")
        elif name == "mistral":
            chat["reasoning_effort"] = "medium" if wanted else "none"
        else:
            switches = [form.switch] if form.switch else SWITCHES
            chat["chat_template_kwargs"] = dict.fromkeys(switches, wanted)


def _renamed(error: BadRequest) -> BadRequest:
    """An error of the chat request, in the client's names."""
    return BadRequest(_WORDS.sub(lambda word: _NAMES[word[0]], error.message), error.status)


def _tools(tools: Any) -> list[dict[str, Any]]:
    """The functions of a chat request."""
    out: list[dict[str, Any]] = []
    for k, tool in enumerate(tools or ()):
        path = f"tools[{k}]"
        kind = tool.get("type")
        if kind is not None and type(kind) is not str:
            raise invalid_type(kind, "a string", f"{path}.type")
        if kind is not None and kind.startswith(_SERVER_TOOLS):
            continue
        schema = tool.get("input_schema")
        if type(schema) is not dict:
            raise invalid_type(schema, "an object", f"{path}.input_schema")
        check_schema(schema, f"{path}.input_schema")
        name, description = tool.get("name"), tool.get("description")
        if type(name) is not str or not name:
            raise invalid_type(name, "a string that is not empty", f"{path}.name")
        if description is not None and type(description) is not str:
            raise invalid_type(description, "a string", f"{path}.description")
        function: dict[str, Any] = {
            "name": name,
            "description": description or "",
            "parameters": schema if "type" in schema else {**schema, "type": "object"},
        }
        if flag(tool, "strict", False, f"{path}."):
            function["strict"] = True
        made: dict[str, Any] = {"type": "function", "function": function}
        if flag(tool, "defer_loading", False, f"{path}."):
            made["defer_loading"] = True
        out.append(made)
    return out


def _tool_choice(choice: Any, tools: list[dict[str, Any]], chat: dict[str, Any]) -> None:
    if choice is None:
        return
    kind = choice.get("type")
    if type(kind) is not str:
        raise invalid_type(kind, "a string", "tool_choice.type")
    if kind not in ("auto", "any", "tool", "none"):
        raise BadRequest(f"tool_choice.type must be auto, any, tool or none, got {kind[:64]!r}")
    chat["parallel_tool_calls"] = not flag(
        choice, "disable_parallel_tool_use", False, "tool_choice."
    )
    if kind == "none":
        chat["tool_choice"] = "none"
    elif not tools:
        if kind != "auto":
            raise BadRequest(f"tool_choice.type {kind} needs a tool that this server can call")
    elif kind == "tool":
        name = choice.get("name")
        if type(name) is not str:
            raise invalid_type(name, "a string", "tool_choice.name")
        if all([tool["function"]["name"] != name for tool in tools]):
            raise BadRequest(f"tool_choice.name: {name[:64]!r} is not among the tools")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    else:
        chat["tool_choice"] = "required" if kind == "any" else "auto"


def _output_config(config: Any, chat: dict[str, Any]) -> None:
    if config is None:
        return
    effort, wanted = config.get("effort"), config.get("format")
    if effort is not None:
        if type(effort) is not str:
            raise invalid_type(effort, "a string", "output_config.effort")
        if effort not in _EFFORTS:
            listed = ", ".join(_EFFORTS)
            raise BadRequest(f"output_config.effort must be one of {listed}, got {effort[:64]!r}")
        if chat.get("reasoning_effort") == "none":
            raise BadRequest("output_config.effort cannot be given with thinking.type disabled")
        chat["reasoning_effort"] = "max" if effort == "xhigh" else effort
    if wanted is not None:
        if type(wanted) is not dict:
            raise invalid_type(wanted, "an object", "output_config.format")
        if wanted.get("type") != "json_schema":
            raise BadRequest("output_config.format.type must be json_schema")
        schema = wanted.get("schema")
        if type(schema) is not dict:
            raise invalid_type(schema, "an object", "output_config.format.schema")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}


_EXPECTED: Final[dict[int, tuple[Any, str]]] = {
    F.STR: (str, "a string"),
    F.BOOL: (bool, "a boolean"),
    F.INT: (int, "an integer"),
    F.OBJECT: (dict, "an object"),
    F.OBJECTS: (list, "an array of objects"),
    F.STR_ARRAY: (list, "an array of strings"),
}


def _check(fields: dict[str, Any], rows: dict[str, RequestField]) -> None:
    """JSON types of the fields; what is nested is looked at where it is used."""
    for name, value in fields.items():
        row = rows.get(name)
        if row is None or row.kind == F.ANY:
            check_finite(value, name)
            continue
        if value is None:
            continue
        if row.kind == F.NUMBER:
            if type(value) is not float and type(value) is not int:
                raise invalid_type(value, "a number", name)
            continue
        kind, expected = _EXPECTED[row.kind]
        if type(value) is not kind:
            raise invalid_type(value, expected, name)
        if row.kind == F.OBJECTS:
            _entries(value, dict, "an object", name)
        elif row.kind == F.STR_ARRAY:
            _entries(value, str, "a string", name)
        if kind is dict or row.kind == F.OBJECTS:
            check_finite(value, name)


def _entries(value: list[Any], kind: type, expected: str, path: str) -> None:
    for k, entry in enumerate(value):
        if type(entry) is not kind:
            raise invalid_type(entry, expected, f"{path}[{k}]")
