"""Every field of SGLang's request types, and every kind of error: what three frontends do with it.

Owner: constants, printed into docs/COMPATIBILITY.md. Ours is asked of our own decoders when the
page is printed; the others' columns are from their sources and from recorded answers.
"""

from __future__ import annotations

from tests.unit.test_every_field import NAMES, WITHOUT_EFFECT, changes

HONOURED, NO_EFFECT = "honoured", "accepted, no effect"
ROUTE = {
    "GenerateReqInput": "/generate",
    "ChatCompletionRequest": "/v1/chat/completions",
    "CompletionRequest": "/v1/completions",
    "TokenizeRequest": "/tokenize",
    "DetokenizeRequest": "/detokenize",
    "AnthropicMessagesRequest": "/v1/messages",
    "AnthropicCountTokensRequest": "/v1/messages/count_tokens",
}
# (type, field) -> what Rust does, what Python does; where both honour it there is no entry.
_MEDIA = ("its one family of models, else 400", "by the model")
_IGNORED = ("ignored", HONOURED)
_REFUSED = ("400", HONOURED)
_NEEDS = "needs --enable-return-hidden-states"
_HIDDEN = (_NEEDS, _NEEDS)
OTHERS: dict[tuple[str, str], tuple[str, str]] = {
    ("GenerateReqInput", "input_embeds"): _IGNORED,
    ("GenerateReqInput", "image_data"): _MEDIA,
    ("GenerateReqInput", "video_data"): ("400", "by the model"),
    ("GenerateReqInput", "audio_data"): ("400", "by the model"),
    ("GenerateReqInput", "modalities"): _MEDIA,
    ("GenerateReqInput", "mm_hashes"): _MEDIA,
    ("GenerateReqInput", "session_params"): _REFUSED,
    ("ChatCompletionRequest", "session_params"): _REFUSED,
    ("CompletionRequest", "session_params"): _REFUSED,
    ("GenerateReqInput", "custom_logit_processor"): (
        "accepted", "needs --enable-custom-logit-processor"
    ),
    ("GenerateReqInput", "return_hidden_states"): _HIDDEN,
    ("GenerateReqInput", "return_prompt_token_ids"): ("accepted, no effect", HONOURED),
    ("GenerateReqInput", "return_routed_experts"): ("accepted", HONOURED),
    ("GenerateReqInput", "log_metrics"): _IGNORED,
    ("GenerateReqInput", "background"): _IGNORED,
    ("GenerateReqInput", "conversation_id"): _IGNORED,
    ("GenerateReqInput", "return_bytes"): _IGNORED,
    ("CompletionRequest", "suffix"): ("400", "ignored"),
    ("ChatCompletionRequest", "return_flat_raw_top_logprobs_b64"): (
        "-", "the form of return_flat_raw_output_top_logprobs"
    ),
    ("CompletionRequest", "best_of"): ("400 unless 1", "ignored"),
    ("ChatCompletionRequest", "return_hidden_states"): _HIDDEN,
    ("CompletionRequest", "return_hidden_states"): _HIDDEN,
    ("CompletionRequest", "user"): (NO_EFFECT, NO_EFFECT),
    ("ChatCompletionRequest", "user"): (NO_EFFECT, NO_EFFECT),
    ("ChatCompletionRequest", "tools"): ("needs --tool-call-parser", HONOURED),
    ("ChatCompletionRequest", "top_logprobs"): (HONOURED, "ignored without logprobs"),
    ("TokenizeRequest", "model"): (NO_EFFECT, NO_EFFECT),
    ("DetokenizeRequest", "model"): (NO_EFFECT, NO_EFFECT),
}  # fmt: skip

# What ours depends on, where one value does not show it.
OURS: dict[tuple[str, str], str] = {
    ("GenerateReqInput", "return_hidden_states"): f"{_NEEDS}, else 400",
    ("ChatCompletionRequest", "return_hidden_states"): f"{_NEEDS}, else 400",
    ("CompletionRequest", "return_hidden_states"): f"{_NEEDS}, else 400",
    ("CompletionRequest", "best_of"): "400 unless 1 or n",
    ("AnthropicMessagesRequest", "thinking"): "honoured; 400 where the model cannot",
    ("AnthropicCountTokensRequest", "thinking"): "honoured; 400 where the model cannot",
    ("ChatCompletionRequest", "top_logprobs"): "400 without logprobs",
}

# kind -> (Rust, Python, ours)
ERRORS: dict[str, tuple[str, str, str]] = {
    "a value out of range on `/generate`": (
        '400 `{"error":{"message","code"}}`', '400 `{"error":{"message"}}`',
        '400 `{"error":{"message","code"}}`',
    ),
    "a wrong type or name on `/generate`": (
        '400 `{"error":{"message","code"}}`', '400 `{"error":"text"}`',
        '400 `{"error":{"message","code"}}`',
    ),
    "a body that is not JSON": ("400", "400", "400"),
    "a refusal on an OpenAI route": (
        "400, the flat object inside `error`", "400 `{object,message,type,param,code}`",
        "as Python",
    ),
    "too long a prompt, streamed": (
        "an event in the stream", "native: an event; OpenAI: 400", "400 on every route"
    ),
    "a refusal on `/v1/messages`": (
        "-", '400 `{"type":"error","error":{"type","message"}}`', "as Python"
    ),
    "unknown path, wrong method": (
        "404, 405", "404, 405 `{object,message,type,param,code}`",
        "404, 405 with `Allow`; under `/v1/` as Python",
    ),
    "unknown model on `GET /v1/models/{id}`": ("404", "404 `model_not_found`", "as Python"),
    "unknown model in a request": ("answered", "answered", "answered"),
    "no key, wrong key": ("not enforced", '401 `{"error":"Unauthorized"}`', "as Python"),
    "an administrator's route without the admin key": (
        "not enforced", '403 `{"error":"Forbidden"}`', "as Python"
    ),
    "too large a body": ("no limit", "no limit", "413, in the route's shape"),
    "too large headers, too slow a request": (
        "-", "431 of the HTTP library", "431, 408, in the route's shape where it is known"
    ),
    "queue of the scheduler full": ("503", "503 by the scheduler's abort", "503"),
    "an abort with a status, unary": ("that status", "that status", "that status"),
    "an abort with a status, streamed": (
        "an error event", "native: a frame with the reason; OpenAI: an error event", "as Python"
    ),
    "an abort by a client": ("499", "200, finish reason abort", "as Python"),
    "an error in the middle of a stream": (
        '`{"error":{"message","code"}}`, `[DONE]`',
        '`{"error":{"message","type","code","retryable"}}`, `[DONE]`', "as Python"
    ),
    "a malformed frame of the scheduler": ("500 for its requests", "-", "500 for its requests"),
    "the scheduler is gone": ("500, 503", "500", "503, or an error event and `[DONE]`"),
    "starting, draining": ("503", "503", "503"),
}  # fmt: skip


def ours(type_name: str, name: str) -> str:
    """What our decoder does with a field."""
    if (type_name, name) in OURS:
        return OURS[type_name, name]
    without, with_it = changes(type_name, name)
    if with_it.startswith("refused: "):
        return "400"
    return NO_EFFECT if (type_name, name) in WITHOUT_EFFECT or with_it == without else HONOURED


def fields() -> list[tuple[str, str, str, str, str]]:
    """Rows: route, field, Rust, Python, ours."""
    out = []
    for type_name, names in NAMES.items():
        for name in names:
            honoured = (HONOURED, HONOURED)
            if type_name.startswith("Anthropic"):
                honoured = ("-", NO_EFFECT if (type_name, name) in WITHOUT_EFFECT else HONOURED)
            rust, python = OTHERS.get((type_name, name), honoured)
            out.append((ROUTE[type_name], name, rust, python, ours(type_name, name)))
    return out


def errors() -> list[tuple[str, str, str, str]]:
    """Rows: kind, Rust, Python, ours."""
    return [(kind, *three) for kind, three in ERRORS.items()]
