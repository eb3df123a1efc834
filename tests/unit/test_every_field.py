"""Every field of SGLang's request types is honoured, or refused by its name: none is lost.

The names are SGLang 0.5.23's (tests/data/sglang_fields.json). A field is honoured when its value is
in the message to the scheduler, or in what the answer is made from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.decoder_outcomes import decoders, told
from tpc_server.boundary.messages import GENERATE
from tpc_server.contract.errors import BadRequest
from tpc_server.contract.fields import REFUSED, REQUEST_TABLE
from tpc_server.contract.generate import GenerateDecoder
from tpc_server.contract.limits import Limits

NAMES: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "data" / "sglang_fields.json").read_text()
)
DECODERS = decoders()
_CONVERSATION = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "GenerateReqInput": ("generate", {"text": "a"}),
    "ChatCompletionRequest": (
        "chat", {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5},
    ),
    "CompletionRequest": ("completion", {"prompt": "a"}),
    "AnthropicMessagesRequest": ("messages", {**_CONVERSATION, "max_tokens": 5}),
    "AnthropicCountTokensRequest": ("count", _CONVERSATION),
    "TokenizeRequest": ("tokenize", {"messages": [{"role": "user", "content": "a"}]}),
    "DetokenizeRequest": ("detokenize", {"tokens": [5]}),
}  # fmt: skip

_HINTS = {"protocol_version": "1", "message_id": "m", "actions": []}
_TOOL = {"type": "function", "function": {"name": "f"}}
# A value that is not the default; what is not named here gets 3, or what its type wants.
VALUES: dict[str, Any] = {
    "text": "other", "input_ids": [7], "rid": "mine", "stream": True, "prompt": "other",
    "messages": [{"role": "user", "content": "b"}], "model": "tiny:ada", "tokens": [6, 7],
    "sampling_params": {"temperature": 0.5}, "return_logprob": True, "logprob_start_len": 0,
    "token_ids_logprob": [4], "return_text_in_logprobs": True, "return_hidden_states": True,
    "return_prompt_token_ids": True, "session_id": "s", "lora_path": "ada", "bootstrap_host": "h",
    "bootstrap_pair_key": "k", "routing_key": "k", "require_reasoning": True, "extra_key": "k",
    "custom_logit_processor": "code", "session_params": {"id": "s"},
    "cache_salt": "k", "kv_hints": _HINTS, "no_logs": True, "custom_labels": {"a": "b"},
    "log_metrics": False, "watermark": {"enabled": True}, "temperature": 0.5, "top_p": 0.5,
    "min_p": 0.5, "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.5,
    "stop": ["x"], "stop_regex": "x+", "stop_token_ids": [3], "logit_bias": {"3": 1},
    "custom_params": {"a": 1}, "regex": "a", "ebnf": "root ::= x", "json_schema": "{}",
    "ignore_eos": True, "skip_special_tokens": False, "no_stop_trim": True, "echo": True,
    "stream_options": {"include_usage": True}, "response_format": {"type": "json_object"},
    "return_token_ids": True, "return_meta_info": True, "tools": [_TOOL], "tool_choice": "none",
    "reasoning_effort": "low", "continue_final_message": True, "separate_reasoning": False,
    "stream_reasoning": False, "parallel_tool_calls": False, "thinking": {"type": "enabled"},
    "chat_template_kwargs": {"a": 1}, "add_generation_prompt": False, "add_special_tokens": True,
}  # fmt: skip
# Of the Anthropic types, where another has the name too.
ANTHROPIC_VALUES: dict[str, Any] = {
    "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"},
    "thinking": {"type": "disabled"}, "stop_sequences": ["x"], "system": "s",
    "output_config": {"effort": "low"}, "betas": ["b"], "metadata": {"a": 1},
}  # fmt: skip
# Fields that need another one to mean anything.
WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("ChatCompletionRequest", "top_logprobs"): {"logprobs": True},
    ("ChatCompletionRequest", "tool_choice"): {"tools": [_TOOL]},
    ("ChatCompletionRequest", "parallel_tool_calls"): {"tools": [_TOOL]},
    ("ChatCompletionRequest", "stream_options"): {"stream": True},
    ("CompletionRequest", "stream_options"): {"stream": True},
    ("AnthropicMessagesRequest", "tool_choice"): {"tools": ANTHROPIC_VALUES["tools"]},
    ("AnthropicCountTokensRequest", "tool_choice"): {"tools": ANTHROPIC_VALUES["tools"]},
    ("TokenizeRequest", "tool_choice"): {"tools": [_TOOL]},
    ("TokenizeRequest", "add_special_tokens"): {"add_generation_prompt": True},
}  # fmt: skip
# Of no effect in SGLang either.
WITHOUT_EFFECT: dict[tuple[str, str], str] = {
    ("ChatCompletionRequest", "user"): "SGLang looks at it nowhere",
    ("CompletionRequest", "user"): "SGLang looks at it nowhere",
    ("AnthropicMessagesRequest", "metadata"): "SGLang looks at it nowhere",
    ("AnthropicMessagesRequest", "betas"): "SGLang logs it",
    ("AnthropicCountTokensRequest", "betas"): "SGLang looks at it nowhere",
    ("AnthropicCountTokensRequest", "model"): "SGLang looks at it nowhere",
    ("TokenizeRequest", "model"): "SGLang looks at it nowhere",
    ("DetokenizeRequest", "model"): "SGLang looks at it nowhere",
    (
        "ChatCompletionRequest",
        "return_flat_raw_top_logprobs_b64",
    ): "the form of return_flat_raw_output_top_logprobs, which is refused; SGLang looks at it only"
    " with that one",
}


def outcome(kind: str, body: dict[str, Any]) -> str:
    """What a body becomes, or why it is refused."""
    try:
        return told(DECODERS[kind](json.dumps(body).encode()))
    except BadRequest as error:
        return f"refused: {error.message}"


def changes(type_name: str, name: str) -> tuple[str, str]:
    """The outcomes without the field, and with it."""
    kind, base = TYPES[type_name]
    base = {**base, **WITH.get((type_name, name), {})}
    values = {**VALUES, **ANTHROPIC_VALUES} if kind in ("messages", "count") else VALUES
    body = {**base, name: values.get(name, 3)}
    if name == "input_ids" and kind == "generate":
        body.pop("text")
    if name == "prompt":
        body.pop("messages", None)
    if kind == "chat" and name == "logprobs":
        body[name] = True
    if kind == "chat" and name == "return_flat_raw_top_logprobs_b64":
        body[name] = False
    if kind == "chat" and name == "max_tokens":  # the older name of the one in the base
        del body["max_completion_tokens"]
    return outcome(kind, base), outcome(kind, body)


@pytest.mark.parametrize(
    ("type_name", "name"), [(t, n) for t, names in NAMES.items() for n in names]
)
def test_a_field_is_honoured_or_refused_by_its_name(type_name: str, name: str) -> None:
    without, with_it = changes(type_name, name)
    assert not without.startswith("refused: ")
    if with_it.startswith("refused: "):
        assert name in with_it
    elif (type_name, name) in WITHOUT_EFFECT:
        assert with_it == without
    else:
        assert with_it != without, "accepted and ignored"


def test_names_are_all_there() -> None:
    assert len(NAMES["GenerateReqInput"]) == 72
    assert set(NAMES["GenerateReqInput"]) <= {row.name for row in REQUEST_TABLE} | set(REFUSED)


@pytest.mark.parametrize("row", [r for r in REQUEST_TABLE if r.wire], ids=lambda row: row.name)
def test_the_value_of_a_native_field_is_in_the_message(row: Any) -> None:
    """In the place of that name, and nowhere else but there where it was not given."""
    decoder = GenerateDecoder(
        Limits(
            100, 1000, enable_return_hidden_states=True, enable_custom_logit_processor=True,
            lora_ids={"ada": "1"},
        )
    )  # fmt: skip
    value = VALUES.get(row.name, 3)
    plain = decoder.decode(b'{"text":"a","rid":"r"}').items[0].wire
    body = {"rid": "r", row.name: value, **({} if row.name == "input_ids" else {"text": "a"})}
    if row.name in ("text", "input_ids"):
        body = {"rid": "r", row.name: value}
    item = decoder.decode(json.dumps(body).encode()).items[0]
    if row.name == "input_ids":  # beside the message
        assert list(item.input_ids or ()) == value
        return
    if row.name == "sampling_params":
        assert item.wire[row.wire] != plain[row.wire]
        return
    if row.name == "token_ids_logprob":
        assert item.token_ids_logprob == value
        return
    if row.name == "rid":
        assert item.rid == value
        return
    if row.name == "session_params":
        value = ["s", None, None, None, None]
    assert item.wire[GENERATE[row.name]] == value
    differing = [k for k, (a, b) in enumerate(zip(item.wire, plain, strict=True)) if a != b]
    assert differing == [row.wire]
