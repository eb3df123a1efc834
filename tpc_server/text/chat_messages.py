"""Messages of a request to messages of a template. Owner: stateless, any core.

As SGLang's Python frontend does: text parts become one string for templates that know strings
only, arguments of tool calls become objects, and the final assistant message is taken out
(`continue_final_message`) or shown as the user's. The caller's messages are left as they are.
"""

from __future__ import annotations

import json
from typing import Any, Final

from .chat_prompt import ChatTemplateError

#: Formats of `content` that a template expects.
STRING: Final = "string"
PARTS: Final = "openai"

_TEXT_TYPES: Final = ("text", "input_text")
_MEDIA: Final = {
    "image_url": "image", "input_image": "image", "image": "image",
    "video_url": "video", "video": "video",
    "audio_url": "audio", "input_audio": "audio", "audio": "audio",
}  # fmt: skip


def for_template(messages: list[dict[str, Any]], content_format: str) -> list[dict[str, Any]]:
    """The messages as a template of this content format takes them. Raises ChatTemplateError."""
    return [_message(m, k, content_format) for k, m in enumerate(messages)]


def split_final(
    messages: list[dict[str, Any]], continue_final: bool
) -> tuple[list[dict[str, Any]], str]:
    """(messages, text to put behind the generation prompt), by the rule for a final assistant."""
    final = messages[-1] if messages else {}
    content = final.get("content")
    if final.get("role") != "assistant" or type(content) is not str:
        return messages, ""
    if continue_final:
        return messages[:-1], content
    return [*messages[:-1], {"role": "user", "content": content}], ""


def bare_functions(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools without the frame around their functions, for templates that cannot see through it."""
    return [tool.get("function", tool) for tool in tools]


def _message(message: dict[str, Any], k: int, content_format: str) -> dict[str, Any]:
    content = message.get("content")
    out = {name: value for name, value in message.items() if value is not None}
    if content is None:
        out["content"] = ""
    elif type(content) is list:
        out["content"] = _content(content, message.get("role"), k, content_format)
    calls = out.get("tool_calls")
    if type(calls) is list and out.get("role") == "assistant":
        out["tool_calls"] = [
            _call(c, f"messages[{k}].tool_calls[{i}]") for i, c in enumerate(calls)
        ]
    return out


def _content(parts: list[Any], role: Any, k: int, content_format: str) -> Any:
    kept: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, part in enumerate(parts):
        if type(part) is not dict:
            continue
        kind = part.get("type")
        if kind in _TEXT_TYPES:
            said = part.get("text")
            if type(said) is not str:
                raise ChatTemplateError(f"messages[{k}].content[{i}].text is not a string")
            texts.append(said)
            kept.append({"type": "text", "text": said})
        elif type(kind) is str and kind in _MEDIA:
            raise ChatTemplateError(
                f"messages[{k}].content[{i}]: {_MEDIA[kind]} input is not supported by this server"
            )
        else:
            kept.append(part)
    # A tool's texts are one string for every template.
    if content_format == STRING or (role == "tool" and len(texts) == len(kept)):
        return " ".join(texts)
    return kept


def _call(call: Any, path: str) -> Any:
    function = call.get("function") if type(call) is dict else None
    arguments = function.get("arguments") if type(function) is dict else None
    if type(function) is not dict or type(arguments) is not str:
        return call
    path += ".function.arguments"
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        raise ChatTemplateError(f"{path} must be valid JSON") from None
    if type(parsed) is not dict:
        raise ChatTemplateError(f"{path} must be a JSON object")
    return {**call, "function": {**function, "arguments": parsed}}
