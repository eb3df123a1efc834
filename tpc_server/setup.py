"""What every core is given at its start: plain data and stateless functions. Owner: read only.

Each core copies the object itself, so that reading a setting touches no shared instance.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from . import mesh
from .access import digest
from .boundary import codec
from .boundary.server_args import DisaggregationMode, ServerArgs
from .config import Options
from .contract.limits import Limits
from .contract.openai import OpenAIFacts, default_sampling
from .info import ServerInfo, allowed_state, core_counters, startup_times
from .loads import LoadFacts, render
from .metrics.http import HttpMeter
from .metrics.layout import Layout
from .render import control, http, native
from .text.chat_source import ChatSource
from .text.load import LoadedTokenizer

_NS = 1_000_000_000
_STORAGE: Final = {
    "attach_hicache": (
        "HiCache storage backend attached.", "Failed to attach HiCache storage backend.",
    ),
    "detach_hicache": (
        "HiCache storage backend detached.", "Failed to detach HiCache storage backend.",
    ),
    "clear_hicache": (
        "HiCache storage backend cleared.", "Failed to clear HiCache storage backend.",
    ),
}  # fmt: skip

_GENERATION: Final = {
    "pause": ("Generation paused successfully.", 1),
    "continue": ("Generation continued successfully.", 0),
}


def _nothing() -> None:
    """Nobody watches."""


class CoreSetup:
    """Settings, limits, tokenizer and facts, in the units the stages use."""

    # No other frontend has this scheduler: what a client asks of it is asked here.
    alone = True

    def __init__(
        self, args: ServerArgs, options: Options, tokenizer: LoadedTokenizer | None,
        info: ServerInfo, log: Callable[..., None], wake_main: Callable[[], None], link: Any,
        words: Any, chat_template: ChatSource | None = None, registry_fd: int = -1,
    ) -> None:  # fmt: skip
        model = args.model_config
        self.log = log
        self.wake_main = wake_main
        self.info = info
        self._link = link
        self._words = words
        self.beat: Callable[[], None] = _nothing  # each core's own: see `counters.Beat`
        self.weight_version = args.weight_version
        self.incremental = args.incremental_streaming_output
        self.skip_tokenizer = args.skip_tokenizer_init or tokenizer is None
        self.tokenizer_json = tokenizer.json_text if tokenizer is not None else None
        self.bos_id = tokenizer.bos_id if tokenizer is not None else None
        # What `text.chat_template` is built from; None: no template, no chat requests.
        self.chat_template = chat_template
        self.pieces = tokenizer.pieces if tokenizer is not None else None
        # Whether the end of the prompt has a say in how the first token is shown.
        table = self.pieces
        self.needs_context = table is None or bool(table.first) or bool(table.strip_count)
        sizes = [model.vocab_size, tokenizer.vocab_size if tokenizer is not None else 0]
        self.vocab_size = max(sizes)
        length = tokenizer.model_max_length if tokenizer is not None else None
        self.max_model_len = length if length is not None else model.context_len
        self.limits = limits_of(args, options, model.vocab_size or self.vocab_size)
        if tokenizer is not None:
            self.limits.token_chars = tokenizer.token_chars
        self.openai = openai_facts(args, options, info, chat_template)
        self.loads = LoadFacts(args)
        self.hicache = {name: getattr(args, name) for name in control.HICACHE_FIELDS}
        self.metrics = args.metrics
        self.http_meter: HttpMeter | None = None  # of one core
        self.layout: Layout | None = None  # of metrics; each core makes its own
        self.is_prefill = args.disaggregation_mode == DisaggregationMode.Prefill
        self.is_half = args.disaggregation_mode != DisaggregationMode.Null  # prefill, or decode
        told = args.health_generate_headers
        self.health_lines = "".join([f"{k}: {v}\r\n" for k, v in told.items()]).encode()
        self.registry_fd = registry_fd
        self.registry_entry_s = options.registry_entry_s
        # Keys themselves stay with the starting thread.
        self.key_digests = tuple(digest(key.encode()) for key in options.api_keys)
        self.admin_key_digests = tuple(digest(key.encode()) for key in options.admin_api_keys)
        self.cors_origins = options.cors_origins
        self.request_id_headers = options.request_id_headers
        self.access_log = options.access_log
        self.streaming_session = options.streaming_session
        self.header_overrides = options.header_overrides
        self.max_head_bytes = options.max_head_bytes
        self.max_body_bytes = options.max_body_bytes
        self.max_connections = options.max_connections
        self.socket_buffer_bytes = options.socket_buffer_bytes
        self.header_timeout_ns = int(options.header_timeout_s * _NS)
        self.body_timeout_ns = int(options.body_timeout_s * _NS)
        self.idle_timeout_ns = int(options.idle_timeout_s * _NS)
        self.write_timeout_ns = int(options.write_timeout_s * _NS)
        self.linger_ns = int(options.linger_s * _NS)
        self.stream_buffer_bytes = options.stream_buffer_bytes
        self.sse_keepalive_ns = int(options.sse_keepalive_s * _NS)
        self.spin_ns = int(options.spin_us * 1000)
        self.show_openapi = options.show_openapi
        self.root_path = options.root_path
        self.predict_route = options.predict_route
        self.health_probe = options.health_probe
        self.health_timeout_ns = int(options.health_timeout_s * _NS)
        warmup = options.warmup_timeout_s if options.warmup_timeout_s > 0 else 600.0
        self.warmup_timeout_ns = int(warmup * _NS)

    def decode(self) -> Callable[[list[int], bool], str]:
        """`decode(ids, skip_special)` of the tokenizer, for what has no piece table."""
        from tokenizers import Tokenizer

        assert self.tokenizer_json is not None
        tokenizer: Any = Tokenizer.from_str(self.tokenizer_json)

        def decode(ids: list[int], skip: bool) -> str:
            try:
                return str(tokenizer.decode(ids, skip_special_tokens=skip))
            except OverflowError:  # a scheduler's nonsense, which has no text, as in a piece table
                known = [token for token in ids if 0 <= token < 1 << 32]
                return str(tokenizer.decode(known, skip_special_tokens=skip))

        return decode

    def render_control(self, name: str, payload: bytes | None) -> tuple[int, bytes, bytes]:
        """Status, body and content type of the answer to a control request (None: no reply)."""
        if name == "server_info":
            states: list[Any] = []
            startup = None
            if payload is not None:
                reply = codec.unpack(payload)
                if isinstance(reply, dict):
                    states.append(allowed_state(reply.get("internal_state")))
                    startup = startup_times(reply.get("internal_state"))
            counters = core_counters(self._words, self._link)
            return 200, self.info.server_body(counters, states, startup), http.JSON
        if name.startswith("loads "):
            _, began, wanted = name.split(" ", 2)
            answer = render(self.loads, wanted, payload, core_counters(self._words, self._link))
            if self.http_meter is not None:
                self.http_meter.loads(time.monotonic_ns() - int(began))
            return answer
        reply = codec.unpack(payload) if payload is not None else None
        if name == "flush_cache":
            return control.flushed(reply)
        if name == "weights":
            return control.weights(reply)
        if name == "hicache":
            return control.storage_state(self.hicache, reply)
        if name == "open_session":
            return control.opened(reply)
        if name == "close_session":
            return control.closed(reply)
        if name in _GENERATION:
            message, paused = _GENERATION[name]
            if reply is not None and self.alone:
                self._words[mesh.PAUSED] = paused
            return control.told(message, reply)
        if name in _STORAGE:
            return control.storage(*_STORAGE[name], reply)
        return 500, native.error_body(f"unknown control request {name}", 500), http.JSON


def openai_facts(
    args: ServerArgs, options: Options, info: ServerInfo, template: ChatSource | None
) -> OpenAIFacts:
    """What the OpenAI routes know of the server."""
    opens, inline = None, False
    if template is not None:
        from .text.chat_thinking import inline_system, prompt_opens

        inline = inline_system(template)
        if args.reasoning_parser:
            opens = prompt_opens(template, args.reasoning_parser)
    return OpenAIFacts(
        info.served,
        include_usage=args.stream_response_default_include_usage,
        cache_report=options.cache_report,
        default_sampling=default_sampling(args.model_config.default_sampling_params),
        has_chat_template=template is not None,
        template_kwargs=template.default_kwargs if template is not None else {},
        tool_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        opens=opens,
        inline_system=inline,
    )


def limits_of(args: ServerArgs, options: Options, vocab_size: int) -> Limits:
    """The contract's limits for these arguments."""
    preferred = json.loads(args.preferred_sampling_params or "{}")
    return Limits(
        args.model_config.context_len,
        vocab_size,
        num_reserved_tokens=args.num_reserved_tokens,
        default_max_new_tokens=args.default_max_new_tokens,
        default_priority=args.default_priority_value,
        preferred_sampling_params=preferred,
        lora_ids=dict(args.lora_ids),
        allow_auto_truncate=args.allow_auto_truncate,
        enable_custom_logit_processor=options.custom_logit_processor,
        enable_return_hidden_states=args.enable_return_hidden_states,
        enable_strict_thinking=args.enable_strict_thinking,
        skip_tokenizer_init=args.skip_tokenizer_init,
        grammars=options.grammars,
        max_batch=max(1, options.max_batch),
        max_alternatives=options.max_logprobs,
        max_logprob_entries=options.max_logprob_entries,
    )
