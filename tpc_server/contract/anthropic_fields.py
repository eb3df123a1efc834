"""Request types of the Anthropic routes, declared once. Owner: any thread (names only).

As in `fields.py`; an unknown name is ignored, as the protocol does. What a conversation consists of
is in `anthropic_blocks.py`.
"""

from __future__ import annotations

from typing import Any, Final

from . import fields as F
from .fields import RequestField
from .limits import MAX_RID_BYTES

__all__ = ["COUNT_TABLE", "MESSAGES_TABLE", "SCHEMAS"]


def _row(name: str, kind: int, about: str = "", low: int | None = None) -> RequestField:
    return RequestField(name, kind, None, name not in ("model", "messages", "max_tokens"), 0, about,
                        low)  # fmt: skip


_ROUTING: Final = "as in a chat request"
_CONVERSATION: Final = (
    _row("model", F.STR, "name, or name:adapter for a LoRA adapter"),
    _row("messages", F.OBJECTS, "the conversation: role user, assistant or system; content a text"
         " or a list of blocks"),
    _row("system", F.ANY, "a text, or a list of text blocks"),
    _row("tools", F.OBJECTS, "{name, description, input_schema} each; tools that Anthropic's own"
         " servers run are passed over"),
    _row("tool_choice", F.OBJECT, "{type}: auto, any, tool (with its name) or none"),
    _row("thinking", F.OBJECT, "{type}: enabled (with budget_tokens, which is not enforced),"
         " adaptive or disabled; the model must be able to"),
    _row("output_config", F.OBJECT, "effort; format: a json_schema; task_budget is not looked at"),
    _row("betas", F.STR_ARRAY, "of no effect"),
)  # fmt: skip
MESSAGES_TABLE: Final[tuple[RequestField, ...]] = (
    *_CONVERSATION,
    _row("max_tokens", F.INT, "tokens of the answer at most", 1),
    _row("stream", F.BOOL, "answer as server-sent events, without a [DONE]"),
    _row("stop_sequences", F.STR_ARRAY),
    _row("temperature", F.NUMBER),
    _row("top_p", F.NUMBER),
    _row("top_k", F.INT),
    _row("metadata", F.OBJECT, "of no effect"),
    _row("rid", F.STR, "the request id"),
    _row("bootstrap_host", F.STR, _ROUTING),
    _row("bootstrap_port", F.INT, _ROUTING),
    _row("bootstrap_room", F.INT, _ROUTING),
    _row("routed_dp_rank", F.INT, _ROUTING),
    _row("disagg_prefill_dp_rank", F.INT, _ROUTING),
    _row("priority", F.INT, _ROUTING),
)
COUNT_TABLE: Final = _CONVERSATION

_TEXT: Final = {
    "type": "object", "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}  # fmt: skip
_BLOCKS: Final = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "object", "required": ["type"]}},
    ]
}
#: Fields whose schema says more than their kind.
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "model": {"type": "string", "minLength": 1},
    "rid": {"type": "string", "maxLength": MAX_RID_BYTES},
    "messages": {
        "type": "array", "minItems": 1,
        "items": {
            "type": "object", "required": ["role", "content"],
            "properties": {
                "role": {"enum": ["user", "assistant", "system"]}, "content": _BLOCKS,
            },
        },
    },
    "system": {"oneOf": [{"type": "string"}, {"type": "array", "items": _TEXT}]},
    "stop_sequences": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "tools": {
        "type": "array",
        "items": {
            "type": "object", "required": ["name", "input_schema"],
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "description": {"type": ["string", "null"]},
                "input_schema": {"type": "object"},
            },
        },
    },
    "thinking": {
        "type": "object", "required": ["type"],
        "properties": {
            "type": {"enum": ["enabled", "adaptive", "disabled"]},
            "budget_tokens": {"type": ["integer", "null"], "minimum": 1024},
        },
    },
    "output_config": {
        "type": "object",
        "properties": {
            "effort": {"enum": ["minimal", "low", "medium", "high", "xhigh", "max", None]},
            "format": {
                "type": ["object", "null"], "required": ["type", "schema"],
                "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
            },
        },
    },
    "tool_choice": {
        "type": "object", "required": ["type"],
        "properties": {
            "type": {"enum": ["auto", "any", "tool", "none"]}, "name": {"type": "string"},
            "disable_parallel_tool_use": {"type": "boolean"},
        },
    },
}  # fmt: skip
