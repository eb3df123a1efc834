"""Anthropic's messages as those of a chat request. Owner: stateless.

Their content is a text or a list of blocks. What tools answered stands in user messages there, and
in messages of its own here; calls and thinking are blocks of the assistant's messages there.
Everything is checked here, by the client's own paths: the chat decoder finds nothing to refuse.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from .errors import BadRequest, invalid_type
from .json_body import check_finite

__all__ = ["Conversation", "chat_messages"]

_ROLES: Final = ("user", "assistant", "system")
_BLOCKS: Final = (
    "text", "image", "tool_use", "tool_result", "tool_reference", "search_result", "thinking",
    "redacted_thinking",
)  # fmt: skip
_MEDIA: Final = "is not supported: this server handles text only"


class Conversation(NamedTuple):
    """What a server's model makes of conversations.

    inline_system   its template shows system messages where they stand; else they go in front
    think           the marks around an assistant's thinking, None: it is left out
    """

    inline_system: bool = False
    think: tuple[str, str] | None = None


def chat_messages(messages: Any, system: Any, kind: Conversation) -> list[dict[str, Any]]:
    """The messages of a chat request. Raises BadRequest."""
    if messages is None:
        raise BadRequest("missing field `messages`")
    if type(messages) is not list:
        raise invalid_type(messages, "an array", "messages")
    if not messages:
        raise BadRequest("messages cannot be empty")
    front = _system_texts(system, "system")
    out: list[dict[str, Any]] = []
    for k, message in enumerate(messages):
        path = f"messages[{k}]"
        if type(message) is not dict:
            raise invalid_type(message, "an object", path)
        role = message.get("role")
        if type(role) is not str:
            raise invalid_type(role, "a string", f"{path}.role")
        if role not in _ROLES:
            listed = ", ".join(_ROLES)
            raise BadRequest(f"{path}.role must be one of {listed}, got {role[:64]!r}")
        content = message.get("content")
        if not isinstance(content, str | list):
            raise invalid_type(content, "a string or an array of blocks", f"{path}.content")
        if role == "system" and not kind.inline_system:
            front += [text.strip() for text in _system_texts(content, f"{path}.content")]
        elif isinstance(content, str):
            out.append({"role": role, "content": content})
        else:
            _Turn(role, out, kind).take(content, f"{path}.content")
    texts = [text for text in front if text]
    if texts:
        out.insert(0, {"role": "system", "content": "\n".join(texts)})
    if not out:
        raise BadRequest("messages have no content")
    return out


def _system_texts(system: Any, path: str) -> list[str]:
    if system is None:
        return []
    if type(system) is str:
        return [system] if system.strip() else []
    if type(system) is not list:
        raise invalid_type(system, "a string or an array of blocks", path)
    texts: list[str] = []
    for k, block in enumerate(system):
        where = f"{path}[{k}]"
        kind = _block(block, where)["type"]
        if kind != "text":
            raise BadRequest(f"{where}.type must be text, got {kind!r}")
        texts.append(_string(block, "text", where))
    return texts


class _Turn:
    """The blocks of one message."""

    def __init__(self, role: str, out: list[dict[str, Any]], kind: Conversation) -> None:
        self.role = role
        self.out = out
        self.kind = kind
        self.parts: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.thoughts: list[str] = []

    def take(self, blocks: list[Any], path: str) -> None:
        """Append what the blocks are in a chat request."""
        for k, block in enumerate(blocks):
            where = f"{path}[{k}]"
            self._take(_block(block, where), where)
        if self.role == "user":
            self._flush()  # nothing where all were answers of tools
            return
        if self.thoughts and self.kind.think is not None:
            begin, end = self.kind.think
            thought = "\n".join(self.thoughts)
            self.parts.insert(0, {"type": "text", "text": f"{begin}{thought}\n{end}"})
        message: dict[str, Any] = {"role": self.role}
        if self.calls:
            message["tool_calls"] = self.calls
        if self.parts or not self.calls:
            message["content"] = _content(self.parts) if self.parts else ""
        self.out.append(message)

    def _take(self, block: dict[str, Any], path: str) -> None:
        kind = block["type"]
        if kind == "text":
            self.parts.append({"type": "text", "text": _string(block, "text", path)})
        elif kind == "image":
            raise BadRequest(f"{path}.type image {_MEDIA}")
        elif kind == "search_result":
            self._text(_search_result(block, path))
        elif kind == "tool_use":
            if self.role != "assistant":
                raise BadRequest(f"{path}.type must not be tool_use: calls are the assistant's")
            self.calls.append(_call(block, path))
        elif kind == "tool_result":
            self._result(block, path)
        elif kind == "thinking":
            text = _string(block, "thinking", path)
            if self.role == "assistant" and text:
                self.thoughts.append(text)
        elif kind == "redacted_thinking" and self.role == "assistant":
            raise BadRequest(f"{path}.type redacted_thinking is not supported: it cannot be read")

    def _text(self, text: str) -> None:
        if text:
            self.parts.append({"type": "text", "text": text})

    def _flush(self) -> None:
        """What came so far is a message: what follows stands behind it."""
        if self.parts:
            self.out.append({"role": self.role, "content": _content(self.parts)})
            self.parts = []

    def _result(self, block: dict[str, Any], path: str) -> None:
        """What a tool answered."""
        name = "tool_use_id" if block.get("tool_use_id") is not None else "id"
        call = _string(block, name, path) if block.get(name) is not None else ""
        content = block.get("content")
        if content is None or type(content) is str:
            parts = [{"type": "text", "text": content or ""}]
        elif type(content) is list:
            parts = _result_parts(content, f"{path}.content")
        else:
            raise invalid_type(content, "a string or an array of blocks", f"{path}.content")
        if self.role != "user":
            texts = [part["text"] for part in parts if part["type"] == "text"]
            self._text("Tool result: " + "\n".join(texts))
            return
        self._flush()
        for group in _groups(parts):
            self.out.append({"role": "tool", "tool_call_id": call, "content": _content(group)})


def _block(block: Any, path: str) -> dict[str, Any]:
    if type(block) is not dict:
        raise invalid_type(block, "an object", path)
    kind = block.get("type")
    if type(kind) is not str:
        raise invalid_type(kind, "a string", f"{path}.type")
    if kind not in _BLOCKS:
        listed = ", ".join(_BLOCKS)
        raise BadRequest(f"{path}.type must be one of {listed}, got {kind[:64]!r}")
    return block


def _string(block: dict[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if type(value) is not str:
        raise invalid_type(value, "a string", f"{path}.{name}")
    return value


def _content(parts: list[dict[str, Any]]) -> Any:
    """A text alone stands for itself."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _call(block: dict[str, Any], path: str) -> dict[str, Any]:
    arguments = block.get("input")
    if arguments is None:
        arguments = {}
    elif type(arguments) is not dict:
        raise invalid_type(arguments, "an object", f"{path}.input")
    check_finite(arguments, f"{path}.input")
    function = {"name": _string(block, "name", path), "arguments": json.dumps(arguments)}
    return {"id": _string(block, "id", path), "type": "function", "function": function}


def _result_parts(content: list[Any], path: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for k, entry in enumerate(content):
        where = f"{path}[{k}]"
        block = _block(entry, where)
        kind, text = block["type"], ""
        if kind == "text":
            text = _string(block, "text", where)
        elif kind == "search_result":
            text = _search_result(block, where)
        elif kind == "image":
            raise BadRequest(f"{where}.type image {_MEDIA}")
        elif kind == "tool_reference":
            name = block.get("tool_name") or block.get("name")
            if type(name) is not str:
                raise invalid_type(name, "a string", f"{where}.name")
            parts.append({"type": "tool_reference", "name": name})
        if text:
            parts.append({"type": "text", "text": text})
    return parts or [{"type": "text", "text": ""}]


def _groups(parts: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """References to tools apart from other parts, in their order: templates look for them where a
    message begins."""
    groups: list[list[dict[str, Any]]] = []
    for part in parts:
        if groups and (groups[-1][0]["type"] == "text") == (part["type"] == "text"):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _search_result(block: dict[str, Any], path: str) -> str:
    """A text found by a search, with its title and where it is from."""
    lines: list[str] = []
    title, source, content = block.get("title"), block.get("source"), block.get("content")
    if title is not None:
        title = _string(block, "title", path)
    if title:
        lines.append(f"Title: {title}")
    if type(source) is dict:
        source = source.get("url") or source.get("text")
    if type(source) is str and source:
        lines.append(f"Source: {source}")
    if content is not None:
        if type(content) is not list:
            raise invalid_type(content, "an array of blocks", f"{path}.content")
        texts = [
            part["text"] for part in content
            if type(part) is dict and part.get("type") == "text" and type(part.get("text")) is str
        ]  # fmt: skip
        if any(texts):
            lines.append("Content: " + "\n".join([text for text in texts if text]))
    return "\n".join(lines)
