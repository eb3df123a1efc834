"""The request type of /generate, declared once. Owner: stateless.

REQUEST_TABLE has every name that the protocol's request type has: what JSON it takes, and where it
goes. A name that is in no request type at all is ignored at the top level, as the protocol does;
a name that is known but cannot be honoured is refused whenever it asks for something.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ..boundary.messages import GENERATE

__all__ = ["REFUSED", "REQUEST_TABLE", "SESSION_TABLE", "RequestField"]

# JSON kinds. The `_LIST` ones also take one value an item of a batch.
BOOL: Final = 1
INT: Final = 2
UINT: Final = 3
STR: Final = 4
BOOL_LIST: Final = 5
INT_LIST: Final = 6
STR_LIST: Final = 7  # list entries may be null
IDS_LIST: Final = 8  # a list of token ids or a list of such lists
LABELS: Final = 9  # an object of strings
HINTS: Final = 10
CORE: Final = 11  # text, input_ids, rid, stream, sampling_params: decoded by hand
OBJECT: Final = 12
OBJECTS: Final = 13  # a list of objects
ANY: Final = 14
STRINGS: Final = 15  # a string or a list of strings
IDS: Final = 16  # as IDS_LIST, without nulls
STR_ARRAY: Final = 17  # a list of strings
INTS: Final = 18  # a list of integers
NUMBER: Final = 19
SESSION: Final = 20  # an object of SESSION_TABLE's fields


class RequestField(NamedTuple):
    """One request field.

    `wire` is its position in the message to the scheduler, 0 if it has none; `nullable` says that
    null means the default; `low` is the least number it takes.
    """

    name: str
    kind: int
    default: Any = None
    nullable: bool = True
    wire: int = 0
    about: str = ""
    low: int | None = None


def _row(
    name: str, kind: int, default: Any = None, about: str = "", nullable: bool = True,
    low: int | None = None,
) -> RequestField:  # fmt: skip
    return RequestField(name, kind, default, nullable, GENERATE.get(name, 0), about, low)


_SCHEDULER: Final = "for the scheduler"
_DISAGG: Final = "of the other side, where prefill and decode are apart"

REQUEST_TABLE: Final[tuple[RequestField, ...]] = (
    _row("text", CORE, None, "the prompt, or a list of prompts"),
    _row("input_ids", CORE, None, "the prompt as token ids, or a list of such prompts"),
    _row("sampling_params", CORE, None, "an object, or one object a prompt"),
    _row("rid", CORE, None, "the request id, or one a prompt"),
    _row("stream", CORE, False, "answer as server-sent events"),
    _row("return_logprob", BOOL_LIST, False, "logprobs of the generated tokens"),
    _row(
        "logprob_start_len",
        INT_LIST,
        -1,
        "first prompt position with logprobs; -1 for none",
        low=-1,
    ),
    _row("top_logprobs_num", INT_LIST, 0, "alternatives to each token", low=0),
    _row(
        "token_ids_logprob", IDS_LIST, None, "ids whose logprobs are told at each position", low=0
    ),
    _row("return_text_in_logprobs", BOOL, False, "each logprob's token as text"),
    _row("return_hidden_states", BOOL_LIST, False, "the server must allow it"),
    _row("return_prompt_token_ids", BOOL, False, "the prompt's ids in the answer", nullable=False),
    _row("session_id", STR, None, _SCHEDULER),
    _row("session_params", SESSION, None, "the session that the prompt goes on with"),
    _row(
        "custom_logit_processor",
        STR_LIST,
        None,
        "as SGLang serializes it; the server must allow it",
    ),
    _row("lora_path", STR_LIST, None, "name of a loaded LoRA adapter"),
    _row("bootstrap_host", STR_LIST, None, _DISAGG),
    _row("bootstrap_port", INT_LIST, None, _DISAGG),
    _row("bootstrap_room", INT_LIST, None, _DISAGG),
    _row("bootstrap_pair_key", STR_LIST, None, _DISAGG),
    _row("decode_tp_size", INT_LIST, None, _DISAGG),
    _row("routed_dp_rank", INT, None, "the data-parallel rank that serves it"),
    _row("data_parallel_rank", INT, None, "older name of routed_dp_rank"),
    _row("disagg_prefill_dp_rank", INT, None, _DISAGG),
    _row("routing_key", STR, None, _SCHEDULER),
    _row("require_reasoning", BOOL, False, _SCHEDULER),
    _row("max_thinking_tokens", UINT, None, "the server must allow it"),
    _row("priority", INT, None, "in the scheduler's queue"),
    _row("extra_key", STR_LIST, None, "the prefix cache is shared by requests of one key only"),
    _row("cache_salt", STR_LIST, None, "as extra_key"),
    _row("kv_hints", HINTS, None, _SCHEDULER),
    _row("routed_experts_start_len", INT, 0, _SCHEDULER, nullable=False),
    _row("no_logs", BOOL, False, "the scheduler writes no line of it"),
    _row("custom_labels", LABELS, None, "labels for the request's metrics"),
    _row("log_metrics", BOOL, True, "whether the request is counted in the metrics"),
)

# Of `session_params`, in the order of the scheduler's record.
SESSION_TABLE: Final[tuple[RequestField, ...]] = (
    RequestField("id", STR, about="of the session, as /open_session told it"),
    RequestField("rid", STR, about="the request to go on from: an answer's meta_info.id"),
    RequestField("offset", INT, about="tokens that are kept of what was before"),
    RequestField("replace", BOOL, about="in the place of that request"),
    RequestField("drop_previous_output", BOOL, about="its answer is not gone on with"),
)

_MEDIA: Final = "this server handles text only"
_INTERNAL: Final = "it is for a scheduler's own processes"
_COLUMN: Final = "the scheduler boundary has no column for it"

# Known names that cannot be honoured, and why. Null, false, 0 and empty values ask for nothing.
REFUSED: Final[dict[str, str]] = {
    "image_data": _MEDIA,
    "video_data": _MEDIA,
    "audio_data": _MEDIA,
    "modalities": _MEDIA,
    "mm_hashes": _MEDIA,
    "mm_content_hashes": _MEDIA,
    "use_audio_in_video": _MEDIA,
    "video_config": _MEDIA,
    "images_config": _MEDIA,
    "mm_processor_kwargs": _MEDIA,
    "max_dynamic_patch": _MEDIA,
    "min_dynamic_patch": _MEDIA,
    "image_max_dynamic_patch": _MEDIA,
    "video_max_dynamic_patch": _MEDIA,
    "need_wait_for_mm_inputs": _MEDIA,
    "num_items_assigned": _MEDIA,
    "encoder_urls": _MEDIA,
    "input_embeds": "send text or input_ids",
    "positional_embed_overrides": "send text or input_ids",
    "watermark": "no scheduler here watermarks",
    "lora_id": "name the adapter with lora_path",
    "return_routed_experts": _COLUMN,
    "return_indexer_topk": _COLUMN,
    "return_sampling_mask": _COLUMN,
    "sampling_logprobs_mode": _COLUMN,
    "return_entropy": _COLUMN,
    "return_bytes": _COLUMN,
    "return_flat_raw_top_logprobs": _COLUMN,
    "return_flat_raw_output_top_logprobs": _COLUMN,
    "return_flat_raw_top_logprobs_b64": _COLUMN,
    "multi_item_delimiter_indices": "scoring is not served here",
    "token_indices_to_pool": "pooling is not served here",
    "token_type_ids": "no model here has token types",
    "background": "answers are not kept here",
    "conversation_id": "conversations are not kept here",
    "external_trace_header": _INTERNAL,
    "received_time": _INTERNAL,
    "http_worker_ipc": _INTERNAL,
}
