"""Settings of the embedded engine. Owner: read only after construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """What a launcher decides for the engine; every field has a working default.

    max_running_requests   rows decoded together; more wait
    max_queued_requests    waiting requests; one more is refused with 503 (None: no bound)
    context_len            tokens per sequence; None takes the model's own, more is refused
    kv_tokens              tokens all sequences may keep; None takes half of the free memory
    prefill_tokens         prompt tokens computed in one step while nothing decodes
    prefill_tokens_busy    the same while other requests decode, and a prompt's piece beside other
                           prompts: bounds how long they stall; a token whose logprobs are
                           wanted counts for what its logits cost besides
    prefix_cache           keep finished sequences; a new prompt reuses the prefix it shares
    stream_interval        tokens between two frames of a stream, unless the request says its own
    force_stream_interval  tokens between two frames of a request that does not stream
    weight_version         reported in every last frame
    cache_dir              where float32 weights are kept; None is the user's cache folder
    cpus                   CPUs of the engine's thread and of BLAS; None leaves the mask alone
    """

    max_running_requests: int = 16
    max_queued_requests: int | None = None
    context_len: int | None = None
    kv_tokens: int | None = None
    prefill_tokens: int = 256
    prefill_tokens_busy: int = 64
    prefix_cache: bool = True
    stream_interval: int = 1
    force_stream_interval: int = 50
    weight_version: str = "default"
    cache_dir: Path | None = None
    cpus: Sequence[int] | None = None
