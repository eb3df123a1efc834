"""Request types of the OpenAI routes, declared once. Owner: any thread (names only).

A row says what JSON a field takes and where it goes: to a sampling parameter, to a field of the
native request, or it is decoded by hand. Null stands for the default everywhere. A name that is in
no request type is ignored, as the protocol does; one that is known and cannot be honoured is
refused whenever it asks for something.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from .sampling_fields import SEED

__all__ = ["CHAT_TABLE", "COMPLETION_TABLE", "OpenAIField"]

# JSON kinds.
BOOL: Final = 1
INT: Final = 2
FLOAT: Final = 3
STR: Final = 4
STRINGS: Final = 5  # a string or a list of strings
INTS: Final = 6
OBJECT: Final = 7
NATIVE: Final = 8  # checked by the native request's own row
OWN: Final = 9  # decoded by hand
REFUSED: Final = 10  # `about` says why
IGNORED: Final = 11  # accepted and of no effect, as the protocol has it

# Where a value goes.
SAMPLING: Final = 1
REQUEST: Final = 2


class OpenAIField(NamedTuple):
    """One request field; `goes` and `target` say where its value goes, `default` what null means.

    `schema` describes a field that is decoded by hand, or says more of a native one, for the API's
    description.
    """

    name: str
    kind: int
    default: Any = None
    goes: int = 0
    target: str = ""
    about: str = ""
    schema: dict[str, Any] | None = None


def _sampling(
    name: str, kind: int, default: Any, target: str = "", about: str = "",
    schema: dict[str, Any] | None = None,
) -> OpenAIField:  # fmt: skip
    return OpenAIField(name, kind, default, SAMPLING, target or name, about, schema)


def _request(name: str, about: str = "") -> OpenAIField:
    return OpenAIField(name, NATIVE, None, REQUEST, name, about)


_MEDIA: Final = "this server handles text only"
_COLUMN: Final = "the scheduler boundary has no column for it"
_STRING: Final = {"type": "string"}
_TEXT: Final = {"type": "string", "minLength": 1}
_TEXTS: Final = {"type": "array", "items": _TEXT, "minItems": 1}
_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPTS: Final = {"type": "array", "items": _IDS, "minItems": 1}

_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
_FUNCTION: Final = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "function": {"type": "object", "required": ["name"], "properties": {"name": _STRING}},
    },
}
TOOL: Final = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
            },
        },
    },
}

_COMMON: Final = (
    OpenAIField("model", OWN, None, about="name, or name:adapter for a LoRA adapter",
                schema=_STRING),
    _sampling("frequency_penalty", FLOAT, 0.0),
    _sampling("presence_penalty", FLOAT, 0.0),
    _sampling("logit_bias", OBJECT, None, about="token id (as text) -> bias"),
    _sampling("n", INT, 1, about="answers to each prompt"),
    _sampling("seed", INT, None, "sampling_seed", about=SEED),
    _sampling("stop", STRINGS, None),
    _sampling("min_tokens", INT, 0, "min_new_tokens"),
    _sampling("regex", STR, None, about="the answer matches this pattern"),
    _sampling("ebnf", STR, None, about="the answer follows this grammar"),
    _sampling("stop_token_ids", INTS, None),
    _sampling("stop_regex", STRINGS, None),
    _sampling("no_stop_trim", BOOL, False, about="keep the stop in the text"),
    _sampling("ignore_eos", BOOL, False),
    _sampling("skip_special_tokens", BOOL, True),
    _sampling("custom_params", OBJECT, None),
    _sampling("watermark", OBJECT, None),
    OpenAIField("stream", OWN, False, about="answer as server-sent events",
                schema={"type": "boolean"}),
    OpenAIField(
        "stream_options", OWN, None, about="usage at a stream's end, or in every chunk",
        schema={
            "type": "object",
            "properties": {
                "include_usage": {"type": "boolean"},
                "continuous_usage_stats": {"type": "boolean"},
            },
        },
    ),
    OpenAIField(
        "response_format", OWN, None, about="text, json_object, json_schema or structural_tag",
        schema={
            "type": "object", "required": ["type"],
            "properties": {
                "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
                "json_schema": {
                    "type": "object", "required": ["schema"],
                    "properties": {"name": _STRING, "schema": {"type": "object"}},
                },
            },
        },
    ),
    OpenAIField(
        "return_hidden_states", OWN, False, about='true, or "last"',
        schema={"oneOf": [{"type": "boolean"}, {"const": "last"}]},
    ),
    OpenAIField("return_token_ids", OWN, False, schema={"type": "boolean"},
                about="token ids of prompt and answer in each choice"),
    OpenAIField("user", IGNORED),
    _request("rid", "the request id; the answer's id too"),
    _request("session_id"),
    _request("lora_path"),
    _request("bootstrap_host"),
    _request("bootstrap_port"),
    _request("bootstrap_room"),
    _request("routed_dp_rank"),
    _request("data_parallel_rank", "older name of routed_dp_rank"),
    _request("disagg_prefill_dp_rank"),
    _request("extra_key"),
    _request("cache_salt"),
    _request("priority"),
    _request("custom_labels"),
    _request("custom_logit_processor"),
    _request("session_params"),
    _request("return_routed_experts"),
    _request("routed_experts_start_len"),
    _request("images_config"),
    _request("mm_processor_kwargs"),
    OpenAIField("return_cached_tokens_details", REFUSED, about=_COLUMN),
    OpenAIField("return_spec_tokens_details", REFUSED, about=_COLUMN),
)  # fmt: skip

COMPLETION_TABLE: Final = (
    OpenAIField(
        "prompt", OWN, None, about="text, token ids, or a list of either",
        schema={"oneOf": [_TEXT, _TEXTS, _IDS, _PROMPTS]},
    ),
    *_COMMON,
    _sampling("max_tokens", INT, 16, "max_new_tokens", schema={"minimum": 1}),
    _sampling("temperature", FLOAT, 1.0),
    _sampling("top_p", FLOAT, 1.0),
    _sampling("top_k", INT, -1),
    _sampling("min_p", FLOAT, 0.0),
    _sampling("repetition_penalty", FLOAT, 1.0),
    _sampling("json_schema", STR, None, about="the answer is JSON of this schema (as text)"),
    OpenAIField("logprobs", OWN, None, about="alternatives to each token", schema=_COUNT),
    OpenAIField("echo", OWN, False, about="the prompt in front of the answer",
                schema={"type": "boolean"}),
    OpenAIField("suffix", REFUSED, about="no model here fills in the middle"),
    OpenAIField("prompt_embeds", REFUSED, about="a prompt is text or token ids"),
    OpenAIField("best_of", OWN, None, about="1, or the same as n", schema=_COUNT),
)  # fmt: skip

CHAT_TABLE: Final = (
    OpenAIField(
        "messages", OWN, None, about="the conversation",
        schema={
            "type": "array", "minItems": 1,
            "items": {
                "type": "object", "required": ["role"],
                "properties": {
                    "role": _STRING,
                    "content": {
                        "oneOf": [_STRING, {"type": "array", "items": {"type": "object"}},
                                  {"type": "null"}]
                    },
                },
            },
        },
    ),
    *_COMMON,
    _sampling("max_completion_tokens", INT, None, "max_new_tokens",
              about="0 or null: max_tokens, or as many as the context holds"),
    _sampling("max_tokens", INT, None, "max_new_tokens", about="older name of it"),
    _sampling("temperature", FLOAT, None),
    _sampling("top_p", FLOAT, None),
    _sampling("top_k", INT, None),
    _sampling("min_p", FLOAT, None),
    _sampling("repetition_penalty", FLOAT, None),
    OpenAIField("logprobs", OWN, False, schema={"type": "boolean"}),
    OpenAIField("top_logprobs", OWN, None, schema=_COUNT,
                about="alternatives to each token; needs logprobs"),
    OpenAIField("tools", OWN, None, about="functions the model may call",
                schema={"type": "array", "items": TOOL}),
    OpenAIField("tool_choice", OWN, None, about="none, auto, required, or one function",
                schema={"oneOf": [{"enum": ["none", "auto", "required"]}, _FUNCTION]}),
    OpenAIField("parallel_tool_calls", OWN, True, schema={"type": "boolean"}),
    OpenAIField("reasoning_effort", OWN, None, about="given to the chat template",
                schema={"oneOf": [
                    {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]},
                    {"type": "number", "minimum": 0, "maximum": 0.99},
                ]}),
    OpenAIField("reasoning", OWN, None, schema={"type": "object"},
                about="{effort, enabled}: another form of reasoning_effort"),
    OpenAIField("thinking", OWN, None, about="{type}: thinking_mode of the chat template",
                schema={"type": "object", "required": ["type"], "properties": {"type": _STRING}}),
    OpenAIField("separate_reasoning", OWN, True, schema={"type": "boolean"},
                about="reasoning apart from content"),
    OpenAIField("stream_reasoning", OWN, True, schema={"type": "boolean"},
                about="false: the reasoning in one piece"),
    OpenAIField("continue_final_message", OWN, False, schema={"type": "boolean"},
                about="go on with the last message, the assistant's"),
    OpenAIField("chat_template_kwargs", OWN, None, schema={"type": "object"},
                about="variables of the chat template"),
    OpenAIField("input_ids", OWN, None, about="the prompt, instead of the rendered messages",
                schema=_IDS),
    OpenAIField("return_prompt_token_ids", OWN, False, schema={"type": "boolean"}),
    OpenAIField("return_meta_info", OWN, False, schema={"type": "boolean"},
                about="the native meta_info in each choice"),
    OpenAIField("use_audio_in_video", REFUSED, about=_MEDIA),
    OpenAIField("video_config", REFUSED, about=_MEDIA),
    OpenAIField("max_dynamic_patch", REFUSED, about=_MEDIA),
    OpenAIField("min_dynamic_patch", REFUSED, about=_MEDIA),
    OpenAIField("return_sampling_mask", REFUSED, about=_COLUMN),
    OpenAIField("sampling_logprobs_mode", REFUSED, about=_COLUMN),
    OpenAIField("return_flat_raw_output_top_logprobs", REFUSED, about="ask for top_logprobs"),
    OpenAIField("return_flat_raw_top_logprobs_b64", OWN, True, schema={"type": "boolean"},
                about="the form of return_flat_raw_output_top_logprobs, which is refused: of no"
                " effect"),
    OpenAIField("return_input_ids_in_sglext", REFUSED, about="ask for return_token_ids"),
    OpenAIField("return_output_ids_in_sglext", REFUSED, about="ask for return_token_ids"),
    OpenAIField("task", REFUSED, about="no chat encoder here has tasks"),
    OpenAIField("functions", REFUSED, about="use tools"),
    OpenAIField("function_call", REFUSED, about="use tool_choice"),
    OpenAIField("audio", REFUSED, about=_MEDIA),
    OpenAIField("prediction", REFUSED, about="no engine here takes a predicted answer"),
    OpenAIField("web_search_options", REFUSED, about="nothing is searched from here"),
)  # fmt: skip
