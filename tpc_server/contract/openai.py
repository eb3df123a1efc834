"""Decoding what both OpenAI request types share. Owner: the ingress core that built it.

A body becomes a native request (`generate.py` checks bounds and fans out) and the facts that the
answer repeats. Errors name the field as the client wrote it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from . import openai_fields as F
from .errors import BadRequest, invalid_type
from .generate import GenerateDecoder, GenerateRequest
from .json_body import check_finite
from .limits import Limits
from .values import I64_MAX, I64_MIN, as_float

__all__ = ["OpenAICall", "OpenAIDecoder", "OpenAIFacts"]

_OBJECT_SCHEMA: Final = '{"type": "object"}'
_DEFAULTED: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# The native names in an error, as these routes call them; a route has more of its own.
_NAMES: Final = {
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}
_WORDS: Final = re.compile(
    r"sampling_params\.|\b(?:(?:min|max)_new_tokens|sampling_seed|top_logprobs_num|input_ids)\b"
)


class OpenAIFacts(NamedTuple):
    """What the decoders know of the server."""

    served: str = ""
    include_usage: bool = False  # of streams that do not say
    cache_report: bool = False
    default_sampling: dict[str, Any] = {}  # noqa: RUF012  # of chat requests that do not say
    has_chat_template: bool = False
    template_kwargs: dict[str, Any] = {}  # noqa: RUF012  # under each request's own
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    opens: tuple[int, int, int] | None = None  # see `text.chat_thinking.prompt_opens`
    inline_system: bool = False  # the template shows system messages anywhere


class OpenAICall(NamedTuple):
    """A decoded body: the engine requests, and members of `render.openai.Spec` by name."""

    request: GenerateRequest
    facts: dict[str, Any]


class OpenAIDecoder:
    """Base of the two decoders. Build one per core, on that core."""

    TABLE: tuple[F.OpenAIField, ...] = ()
    NAMES: dict[str, str] = {}  # noqa: RUF012  # of native fields, as the route's clients write them

    def __init__(self, limits: Limits, generate: GenerateDecoder, facts: OpenAIFacts) -> None:
        self.limits = limits
        self.facts = facts
        self._generate = generate
        # Copies: a core reads no other core's objects.
        self._rows = {field.name: F.OpenAIField(*field) for field in self.TABLE}
        self._names = {"sampling_params.": "", **_NAMES, **self.NAMES}
        self._explicit = {}
        if limits.preferred_sampling_params:  # those count for native requests only
            self._explicit = {
                field.target: field.default
                for field in self.TABLE
                if field.goes == F.SAMPLING and field.default is not None
            }

    def split(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Sampling parameters, native fields and own fields of a body, each checked for its type.

        A field that is null is left out. Raises BadRequest.
        """
        sampling = self._explicit.copy()
        request: dict[str, Any] = {}
        own: dict[str, Any] = {}
        rows = self._rows
        for name, value in body.items():
            row = rows.get(name)
            if row is None:
                check_finite(value, name)
                continue
            if value is None:
                continue
            kind = row.kind
            if kind <= F.OBJECT:
                sampling[row.target] = _checked(kind, value, name)
            elif kind == F.NATIVE:
                request[row.target] = value
            elif kind == F.OWN:
                own[name] = value
            elif kind == F.REFUSED and value not in (False, 0, "", [], {}):
                raise BadRequest(f"{name} is not supported by this server: {row.about}")
        return sampling, request, own

    def decode_native(self, native: dict[str, Any], most: str = "max_tokens") -> GenerateRequest:
        """The engine requests; an error names the client's fields, `most` for max_new_tokens."""
        try:
            return self._generate.decode_object(native)
        except BadRequest as error:
            names = {**self._names, "max_new_tokens": most}
            message = _WORDS.sub(lambda word: names.get(word[0], word[0]), error.message)
            raise BadRequest(message, error.status) from None

    # -- fields that both have ---------------------------------------------------------

    def adapter(self, own: dict[str, Any], request: dict[str, Any]) -> str:
        """The model's name as it was given; an adapter behind a colon goes to `lora_path`."""
        served = self.facts.served
        model = own.get("model")
        if model is None:
            return served
        if type(model) is not str:
            raise invalid_type(model, "a string", "model")
        if ":" in model and model != served:
            start = f"{served}:"
            name = model[len(start) :] if model.startswith(start) else model.split(":", 1)[1]
            if name.strip():
                request["lora_path"] = name.strip()
        return model

    def usage_wanted(self, own: dict[str, Any]) -> tuple[bool, bool]:
        """(include_usage, continuous_usage_stats) of stream_options."""
        options = own.get("stream_options")
        include, running = self.facts.include_usage, False
        if options is not None:
            if type(options) is not dict:
                raise invalid_type(options, "an object", "stream_options")
            include = flag(options, "include_usage", False, "stream_options.") or include
            running = flag(options, "continuous_usage_stats", False, "stream_options.")
        return include, running

    def response_format(self, own: dict[str, Any], sampling: dict[str, Any]) -> None:
        """A format becomes a grammar for the engine."""
        wanted = own.get("response_format")
        if wanted is None:
            return
        if type(wanted) is not dict:
            raise invalid_type(wanted, "an object", "response_format")
        kind = wanted.get("type")
        if kind == "text":
            return
        if kind == "json_object":
            sampling["json_schema"] = _OBJECT_SCHEMA
        elif kind == "json_schema":
            sampling["json_schema"] = json.dumps(_schema(wanted), ensure_ascii=False)
        elif kind == "structural_tag":
            sampling["structural_tag"] = json.dumps(wanted, ensure_ascii=False)
        elif type(kind) is str:
            raise BadRequest(
                "response_format.type must be text, json_object, json_schema or structural_tag,"
                f" got {kind[:64]}"
            )
        else:
            raise invalid_type(kind, "a string", "response_format.type")
        if not self.limits.grammars:
            raise BadRequest(f"response_format of type {kind} is not supported by this engine")

    def hidden(self, own: dict[str, Any], request: dict[str, Any]) -> str:
        """How hidden states are shown."""
        wanted = own.get("return_hidden_states", False)
        if wanted is not True and wanted is not False and wanted != "last":
            raise invalid_type(wanted, 'a boolean or "last"', "return_hidden_states")
        if wanted:
            request["return_hidden_states"] = True
        return "last" if wanted == "last" else "all" if wanted else ""


def flag(own: dict[str, Any], name: str, default: bool, prefix: str = "") -> bool:
    """A boolean field; null is the default."""
    value = own.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise invalid_type(value, "a boolean", f"{prefix}{name}")
    return value


def count(own: dict[str, Any], name: str) -> int | None:
    """A field that is a natural number, or None."""
    value = own.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise invalid_type(value, "an integer", name)
    if value < 0:
        raise BadRequest(f"{name} must be at least 0, got {value}.")
    return value


def _checked(kind: int, value: Any, name: str) -> Any:
    """A sampling parameter of the right JSON type; its bounds are checked with the native ones."""
    given = type(value)
    if kind == F.FLOAT:
        if given is int:
            return as_float(value)
        if given is not float:
            raise invalid_type(value, "a number", name)
    elif kind == F.INT:
        if given is not int or not I64_MIN <= value <= I64_MAX:
            raise invalid_type(value, "an integer", name)
    elif kind == F.BOOL:
        if given is not bool:
            raise invalid_type(value, "a boolean", name)
    elif kind == F.STR:
        if given is not str:
            raise invalid_type(value, "a string", name)
    elif kind == F.OBJECT and given is not dict:
        raise invalid_type(value, "an object", name)
    return value


def _schema(wanted: dict[str, Any]) -> Any:
    """The schema of a json_schema format, which some clients put one level higher."""
    inner = wanted.get("json_schema")
    if inner is None:
        schema = wanted.get("schema")
    elif type(inner) is dict:
        schema = inner.get("schema")
    else:
        raise invalid_type(inner, "an object", "response_format.json_schema")
    if schema is None:
        raise BadRequest("response_format.json_schema.schema is required for type json_schema")
    if type(schema) is not dict:
        raise invalid_type(schema, "an object", "response_format.json_schema.schema")
    check_finite(schema, "response_format.json_schema.schema")
    return schema


def default_sampling(params: Any) -> dict[str, Any]:
    """The model's own sampling defaults out of the server's arguments."""
    if params is None:
        return {}
    given = {name: getattr(params, name, None) for name in _DEFAULTED}
    return {name: value for name, value in given.items() if value is not None}
