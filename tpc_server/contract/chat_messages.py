"""Messages and tools of a chat request, checked. Owner: stateless.

What comes out is what the chat template gets: known keys only, none of them null.
"""

from __future__ import annotations

from typing import Any, Final

from .errors import BadRequest, invalid_type
from .json_body import check_finite

__all__ = ["check_messages", "check_schema", "check_tools", "tool_choice"]

ROLES: Final = (
    "system", "user", "assistant", "tool", "function", "developer", "latest_reminder", "root"
)  # fmt: skip
_ROLES: Final = frozenset(ROLES)
_PLAIN: Final = frozenset((("role", "content"),))
_STR: Final = frozenset((str,))
_TEXT_KEYS: Final = ("name", "tool_call_id", "reasoning_content", "phase")
_THINKING: Final = ("thinking", "reasoning")
_MEDIA: Final = ("image_url", "video_url", "audio_url", "input_audio", "image", "audio", "video",
                 "file")  # fmt: skip


def check_messages(messages: Any) -> tuple[list[dict[str, Any]], int]:
    """The messages for the template, and how many characters they have where each is a role and a
    text, no more (else -1). Raises BadRequest."""
    if messages is None or messages == []:
        raise BadRequest("messages cannot be empty.")
    if type(messages) is not list:
        raise invalid_type(messages, "an array", "messages")
    try:
        if _PLAIN.issuperset(map(tuple, messages)):  # nearly always, and taken as they are
            roles, texts = zip(*map(dict.values, messages), strict=True)
            if _ROLES.issuperset(roles) and _STR.issuperset(map(type, texts)):
                return messages, sum(map(len, texts))
    except TypeError:  # what is no object, or has no name for a role
        pass
    return [_message(entry, f"messages[{k}]") for k, entry in enumerate(messages)], -1


def _message(entry: Any, path: str) -> dict[str, Any]:
    if type(entry) is not dict:
        raise invalid_type(entry, "an object", path)
    role = entry.get("role")
    if type(role) is not str:
        raise invalid_type(role, "a string", f"{path}.role")
    if role not in ROLES:
        role = role.lower()
        if role not in ROLES:
            listed = ", ".join(ROLES)
            raise BadRequest(f"{path}.role must be one of {listed}, got {role[:64]!r}")
    content = entry.get("content")
    if type(content) is str:
        out: dict[str, Any] = {"role": role, "content": content}
    elif type(content) is list:
        parts = [
            _part(part, f"{path}.content[{k}]", role == "assistant")
            for k, part in enumerate(content)
        ]
        out = {"role": role, "content": parts}
    elif content is None and role != "user":
        out = {"role": role, "content": None}
    else:
        raise invalid_type(content, "a string or an array of parts", f"{path}.content")
    if len(entry) > 1 + ("content" in entry):
        _others(entry, out, path)
    return out


def _others(entry: dict[str, Any], out: dict[str, Any], path: str) -> None:
    for name in _TEXT_KEYS:
        value = entry.get(name)
        if value is not None:
            if type(value) is not str:
                raise invalid_type(value, "a string", f"{path}.{name}")
            out[name] = value
    reasoning = entry.get("reasoning")  # what some clients call reasoning_content
    if type(reasoning) is str:
        out.setdefault("reasoning_content", reasoning)
    calls = entry.get("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise invalid_type(calls, "an array", f"{path}.tool_calls")
        made = [_call(call, f"{path}.tool_calls[{k}]") for k, call in enumerate(calls)]
        if made:
            out["tool_calls"] = made
    if entry.get("tools") is not None:
        out["tools"] = check_tools(entry["tools"], f"{path}.tools")
    if type(entry.get("prefix")) is bool:
        out["prefix"] = entry["prefix"]


def _part(part: Any, path: str, thinks: bool) -> dict[str, Any]:
    if type(part) is not dict:
        raise invalid_type(part, "an object", path)
    kind = part.get("type")
    if kind == "text" or kind in ("input_text", "output_text"):
        text = part.get("text")
        if type(text) is not str:
            raise invalid_type(text, "a string", f"{path}.text")
        return {"type": "text", "text": text}
    if kind in _THINKING:
        text = part.get("thinking", part.get("text"))
        if type(text) is not str:
            raise invalid_type(text, "a string", f"{path}.thinking")
        if not thinks:
            raise BadRequest(f"{path}: thinking parts are for assistant messages only")
        return {"type": kind, "thinking" if "thinking" in part else "text": text}
    if kind in _MEDIA:
        raise BadRequest(f"{path}.type {kind} is not supported: this server handles text only")
    if kind == "tool_reference":
        if type(part.get("name")) is not str:
            raise invalid_type(part.get("name"), "a string", f"{path}.name")
        return {"type": kind, "name": part["name"]}
    if kind == "refusal" and type(part.get("refusal")) is str:
        return {"type": "text", "text": part["refusal"]}
    if type(kind) is not str:
        raise invalid_type(kind, "a string", f"{path}.type")
    raise BadRequest(f"{path}.type must be text, got {kind[:64]!r}")


def _call(call: Any, path: str) -> dict[str, Any]:
    """One tool call of an assistant's message."""
    if type(call) is not dict:
        raise invalid_type(call, "an object", path)
    function = call.get("function")
    if type(function) is not dict:
        raise invalid_type(function, "an object", f"{path}.function")
    name = function.get("name")
    if type(name) is not str:
        raise invalid_type(name, "a string", f"{path}.function.name")
    arguments = function.get("arguments")
    if arguments is not None and type(arguments) is not str and type(arguments) is not dict:
        raise invalid_type(arguments, "a string", f"{path}.function.arguments")
    identifier = call.get("id")
    if identifier is not None and type(identifier) is not str:
        raise invalid_type(identifier, "a string", f"{path}.id")
    out: dict[str, Any] = {"type": "function", "function": {"name": name}}
    if arguments is not None:
        out["function"]["arguments"] = arguments
    if identifier is not None:
        out["id"] = identifier
    return out


def check_tools(tools: Any, path: str = "tools") -> list[dict[str, Any]]:
    """Function descriptions, as the client wrote them. Raises BadRequest."""
    if type(tools) is not list:
        raise invalid_type(tools, "an array", path)
    out: list[dict[str, Any]] = []
    for k, tool in enumerate(tools):
        where = f"{path}[{k}]"
        if type(tool) is not dict:
            raise invalid_type(tool, "an object", where)
        kind = tool.get("type", "function")
        if type(kind) is not str:
            raise invalid_type(kind, "a string", f"{where}.type")
        if kind != "function":
            raise BadRequest(f"{where}.type must be function, got {kind[:64]!r}")
        function = tool.get("function")
        if type(function) is not dict:
            raise invalid_type(function, "an object", f"{where}.function")
        name = function.get("name")
        if type(name) is not str:
            raise invalid_type(name, "a string", f"{where}.function.name")
        if not name:
            raise BadRequest(f"{where}.function.name cannot be empty")
        description = function.get("description")
        if description is not None and type(description) is not str:
            raise invalid_type(description, "a string", f"{where}.function.description")
        parameters = function.get("parameters")
        if parameters is not None:
            if type(parameters) is not dict:
                raise invalid_type(parameters, "an object", f"{where}.function.parameters")
            check_schema(parameters, f"{where}.function.parameters")
        out.append(tool if "type" in tool else {"type": "function", **tool})
    return out


def check_schema(schema: dict[str, Any], path: str) -> None:
    """The parts of a schema that a template or a grammar relies on."""
    check_finite(schema, path)
    definitions = schema.get("$defs")
    if definitions is not None and type(definitions) is not dict:
        raise invalid_type(definitions, "an object", f"{path}.$defs")
    kind = schema.get("type")
    if kind is not None and type(kind) is not str and type(kind) is not list:
        raise invalid_type(kind, "a string or an array of strings", f"{path}.type")
    properties = schema.get("properties")
    if properties is not None:
        if type(properties) is not dict:
            raise invalid_type(properties, "an object", f"{path}.properties")
        for name, entry in properties.items():
            if type(entry) is not dict and type(entry) is not bool:
                raise invalid_type(entry, "an object", f"{path}.properties.{name}")
    required = schema.get("required")
    if required is not None and (
        type(required) is not list or not all([type(name) is str for name in required])
    ):
        raise invalid_type(required, "an array of strings", f"{path}.required")


def tool_choice(choice: Any, tools: list[dict[str, Any]]) -> str:
    """`none`, `auto`, `required`, or `=name` for one function. Raises BadRequest."""
    if choice is None:
        return "auto" if tools else "none"
    if type(choice) is str:
        if choice not in ("none", "auto", "required"):
            raise BadRequest(
                f"tool_choice must be none, auto, required or a function, got {choice[:64]!r}"
            )
        if choice == "required" and not tools:
            raise BadRequest("tools cannot be empty if tool_choice is required.")
        return choice if tools else "none"
    if type(choice) is not dict:
        raise invalid_type(choice, "a string or a map", "tool_choice")
    function = choice.get("function")
    if type(function) is not dict:
        raise invalid_type(function, "an object", "tool_choice.function")
    name = function.get("name")
    if type(name) is not str:
        raise invalid_type(name, "a string", "tool_choice.function.name")
    if not tools:
        raise BadRequest("tools cannot be empty if tool_choice names a function.")
    if not any([tool["function"]["name"] == name for tool in tools]):
        raise BadRequest(f"tool_choice.function.name: {name[:64]!r} is not among the tools.")
    return f"={name}"
