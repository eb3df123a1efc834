"""The OpenAPI 3.1 document of the routes. Owner: stateless."""

from __future__ import annotations

import re
from typing import Any, Final

from ..routes.table import OPEN, ROUTES, Route
from .schema import EXAMPLES, OPTIONAL_BODIES, Schema, request_types

__all__ = ["document"]

_TEXT: Final = {"schema": {"type": "string"}}
_STREAM: Final = {
    "schema": {"type": "string"}, "example": "data: {…}\n\ndata: [DONE]\n\n",
}  # fmt: skip
_MESSAGES: Final = {
    "schema": {"type": "string"}, "example": "event: message_stop\ndata: {…}\n\n",
}  # fmt: skip
_PARAMETER: Final = re.compile(r"\{(\w+)\}")

# What a route answers that is not a plain JSON object.
_ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "generate": {
        "application/json": {
            "schema": {
                "anyOf": [
                    {"$ref": "#/components/schemas/Generated"},
                    {"type": "array", "items": {"$ref": "#/components/schemas/Generated"}},
                ]
            }
        },
        "text/event-stream": _STREAM,
    },
    "chat": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": _STREAM},
    "messages": {
        "application/json": {"schema": {"type": "object"}}, "text/event-stream": _MESSAGES,
    },
    "completions": {
        "application/json": {"schema": {"type": "object"}}, "text/event-stream": _STREAM,
    },
    "tokenize": {"application/json": {"schema": {"$ref": "#/components/schemas/Tokens"}}},
    "detokenize": {"application/json": {"schema": {"$ref": "#/components/schemas/Texts"}}},
    "root": {"application/json": {"schema": {"type": "string"}}},
    "open_session": {"application/json": {"schema": {"type": "string"}}},
    "docs": {"text/html": _TEXT},
}  # fmt: skip
for _name in (
    "abort", "flush_cache", "clear_hicache", "health", "health_generate", "ready", "ping", "live",
    "metrics", "close_session",
):  # fmt: skip
    _ANSWERS[_name] = {"text/plain": _TEXT}

_COUNT: Final = {"type": "integer", "minimum": 0}
_COUNTS: Final = {"anyOf": [_COUNT, {"type": "array", "items": _COUNT}]}
_IDS: Final = {"type": "array", "items": _COUNT}
_STRING: Final = {"type": "string"}


def _answer_types() -> dict[str, Schema]:
    message = {"message": _STRING, "code": {"type": ["integer", "string"]}}
    return {
        "Generated": {
            "type": "object",
            "required": ["output_ids", "meta_info"],
            "properties": {
                "text": _STRING,
                "output_ids": _IDS,
                "meta_info": {
                    "type": "object",
                    "required": ["id", "finish_reason", "prompt_tokens", "completion_tokens"],
                    "properties": {
                        "id": _STRING,
                        "finish_reason": {"type": ["object", "null"]},
                        "prompt_tokens": _COUNT,
                        "completion_tokens": _COUNT,
                        "cached_tokens": _COUNT,
                        "reasoning_tokens": _COUNT,
                        "weight_version": _STRING,
                        "e2e_latency": {"type": "number"},
                    },
                },
                "prompt_token_ids": _IDS,
                "index": _COUNT,
            },
        },
        "Tokens": {
            "type": "object",
            "required": ["tokens", "count", "max_model_len"],
            "properties": {
                "tokens": {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
                "count": _COUNTS,
                "max_model_len": {"type": "integer"},
            },
        },
        "Texts": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"anyOf": [_STRING, {"type": "array", "items": _STRING}]}},
        },
        "Error": {
            "description": "What the native routes answer; and anything refused before its route.",
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "anyOf": [{"type": "object", "properties": message}, _STRING]
                }
            },
        },
        "AnthropicError": {
            "description": "What the Anthropic routes answer.",
            "type": "object",
            "required": ["type", "error"],
            "properties": {
                "type": {"const": "error"},
                "error": {
                    "type": "object", "required": ["type", "message"],
                    "properties": {"type": _STRING, "message": _STRING},
                },
            },
        },
        "OpenAIError": {
            "description": "What the OpenAI routes answer.",
            "type": "object",
            "required": ["object", "message", "type", "code"],
            "properties": {
                "object": {"const": "error"},
                "type": _STRING,
                "param": {"type": ["string", "null"]},
                **message,
            },
        },
    }  # fmt: skip


def _operation_id(method: str, path: str) -> str:
    words = "/as_folder" if path.endswith("/") and len(path) > 1 else ""
    return re.sub(r"[^a-z0-9]+", "_", f"{method.lower()}{path}{words}").strip("_")


def _operation(route: Route, method: str) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _STRING}
        for name in _PARAMETER.findall(route.path)
    ]
    for query in route.query:
        schema: Schema = {"type": query.type}
        if query.type in ("number", "integer"):
            schema["minimum"] = 0
        parameters.append(
            {"name": query.name, "in": "query", "description": query.about, "schema": schema}
        )
    content = _ANSWERS.get(route.handler, {"application/json": {"schema": {"type": "object"}}})
    error = {
        "anyOf": [
            {"$ref": f"#/components/schemas/{name}"}
            for name in ("Error", "OpenAIError", "AnthropicError")
        ]
    }  # fmt: skip
    out: dict[str, Any] = {
        "operationId": _operation_id(method, route.path),
        "summary": route.summary,
        "responses": {
            "200": {"description": "the answer", "content": content},
            "default": {
                "description": "an error; probes and flushes answer one as text",
                "content": {"application/json": {"schema": error}, "text/plain": _TEXT},
            },
        },
    }
    if parameters:
        out["parameters"] = parameters
    if route.access != OPEN:
        out["security"] = [{}, {"key": []}]  # where keys are set
    if route.body and method in ("POST", "PUT"):
        media: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{route.body}"}}
        if route.body in EXAMPLES:
            media["example"] = EXAMPLES[route.body]
        required = route.body not in OPTIONAL_BODIES
        out["requestBody"] = {"required": required, "content": {"application/json": media}}
    return out


def document(version: str, root_path: str = "") -> dict[str, Any]:
    """The whole document; `root_path`: what a proxy puts before every path."""
    servers: dict[str, Any] = {"servers": [{"url": root_path}]} if root_path else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tpc_server",
            "version": version,
            "description": "SGLang's native API, OpenAI's and Anthropic's over one scheduler.",
        },
        **servers,
        "paths": {
            route.path: {method.lower(): _operation(route, method) for method in route.methods}
            for route in ROUTES
        },
        "components": {
            "schemas": {**request_types(), **_answer_types()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
