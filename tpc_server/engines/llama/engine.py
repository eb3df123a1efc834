"""The embedded engine: a scheduler that drives `tpc_server.Server`. Owner: the engine thread.

`load` may run on any thread; `run` makes the calling thread the engine thread until the server is
shut down or `stopping` is set. Other threads read `stats()` only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tpc_server.boundary.codec import make_packer
from tpc_server.boundary.messages import GENERATE, MsgpackDecodeError, decode_ingress

from ..flush import FlushQueue
from . import output
from .control import internal_state
from .errors import EngineError, SettingError
from .intake import BadRequest, Limits, build_request
from .kv_cache import KvCache, Slot
from .memory import available_bytes
from .model import LlamaModel, Piece
from .model_config import LlamaConfig
from .request import HEALTH_PREFIX, Request, abort_reason, bad_request, internal_error
from .scheduler import Scheduler
from .settings import LlamaSettings
from .stops import Decode
from .threads import ThreadGovernor, thread_setter
from .weights import Progress, Weights, load_weights

_PARK_MS: Final = 1000
#: A `wait_request` that returns sooner than this without a message: the server is closing.
_CLOSING_S: Final = 0.001
_CLOSED_NAP_S: Final = 0.02
_RATE_S: Final = 1.0
_LOG_LIMIT: Final = 20

Log = Callable[[str], None]


class Boundary(Protocol):
    """What the engine uses of `tpc_server.Server`."""

    def recv_requests(self, max: int = 256) -> Sequence[Any]: ...

    def wait_request(self, timeout_ms: int = 1000) -> bool: ...

    def push_decode_result_batch(self, header: Any, data_cols: Sequence[Any]) -> bool: ...

    def push_control_result(self, rid: str, payload: Any) -> bool: ...

    def push_error(self, rid: str, message: str) -> bool: ...

    def push_health_ack(self) -> bool: ...


class Stopping(Protocol):
    """A `threading.Event` or its like."""

    def is_set(self) -> bool: ...


class LlamaEngine:
    """A loaded model, ready to serve. Make it with `load`.

    vocab_size, context_len   of the model, the latter as far as the settings allow
    bos_id, eos_ids           from the file's metadata; eos_ids end an answer
    chat_template             Jinja source or None
    model_name                as the file calls itself
    """

    def __init__(
        self, weights: Weights, settings: LlamaSettings, decode: Decode | None, log: Log
    ) -> None:
        config = weights.config
        self.settings = settings
        self.vocab_size = config.vocab_size
        self.context_len = _context_len(settings, config.context_len)
        self.bos_id = config.bos_id
        self.eos_ids = config.eos_ids
        self.chat_template = config.chat_template
        self.model_name = config.name
        self._log = log
        self._weights_bytes = sum(a.nbytes for a in weights.arrays.values())
        self._kv_bytes_per_token = config.kv_bytes_per_token()
        budget = _kv_budget(settings, self.context_len, self._kv_bytes_per_token)
        self._limits = Limits(
            config.vocab_size, min(self.context_len, budget), config.eos_ids, decode is not None
        )
        self._cache = KvCache(config, settings.max_running_requests, budget)
        model = LlamaModel(weights, self._limits.max_len)
        self._scheduler = Scheduler(model, self._cache, settings, decode)
        self._pack = make_packer()
        self._governor: ThreadGovernor | None = None
        self._steps = 0
        self._failures = 0
        self._rate = 0.0
        self._rate_mark = (time.monotonic(), 0)
        self._publish()

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: LlamaSettings,
        progress: Progress,
        decode: Decode | None = None,
        log: Log | None = None,
    ) -> LlamaEngine:
        """Load the GGUF file (or the folder that holds it) at `path`.

        progress(text, done 0..1) reports; decode(ids) gives text with special tokens shown and is
        needed for stop strings and patterns; log(line) takes warnings (stderr by default).
        Raises EngineError saying what is wrong with the path, the file, the settings or the memory.
        """

        def check(config: LlamaConfig) -> None:
            _context_len(settings, config.context_len)

        weights = load_weights(path, settings.cache_dir, progress, check)
        return cls(weights, settings, decode, log or _to_stderr)

    # -- any thread ------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counters as published after the last step (a dict of its own: never changed later)."""
        return self._stats

    # -- the engine thread -----------------------------------------------------------

    def run(self, server: Boundary, stopping: Stopping) -> None:
        """Serve until the server is shut down or `stopping` is set."""
        if self.settings.cpus and hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(0, set(self.settings.cpus))
            except OSError as error:
                self._log(f"the engine thread stays unpinned: {error}")
        if self._governor is None:
            self._governor = self._choose_threads()
        flushes = FlushQueue(server, self._pack)
        scheduler = self._scheduler
        while not stopping.is_set():
            for request in server.recv_requests(256):
                self._take_in(request, server, flushes)
            flushes.look_again(scheduler.idle, self._cache.flush)
            if scheduler.idle:
                self._publish()
                self._park(server)
            elif not self._step(server):
                return

    def _park(self, server: Boundary) -> None:
        """Sleep until a message comes."""
        before = time.monotonic()
        if not server.wait_request(_PARK_MS) and time.monotonic() - before < _CLOSING_S:
            time.sleep(_CLOSED_NAP_S)  # a closed server does not wait: no busy loop until we stop

    def _step(self, server: Boundary) -> bool:
        """One step and its frame; False once the server is closed."""
        scheduler, governor = self._scheduler, self._governor
        if governor is not None:
            begun = time.perf_counter()
            governor.begin(0 if scheduler.computes_prompts else len(scheduler.running))
        try:
            touched = scheduler.step()
        except Exception as error:  # a fault of the scheduler itself: end what runs, go on
            touched = self._end_all(error)
        if governor is not None:
            governor.end(time.perf_counter() - begun)
        self._steps += 1
        for request in touched:
            if request.finish is not None and request.finish.get("status_code") == 500:
                self._report(f"request {request.rid} failed: {request.finish['message']}")
        alive = self._send([r for r in touched if output.is_due(r, self.settings)], server)
        self._publish()
        return alive

    def _end_all(self, error: Exception) -> list[Request]:
        self._report(f"a step failed: {error!r}")
        dropped = self._scheduler.drop_all()
        for request in dropped:
            request.finish = internal_error(f"internal error: {error!r}")
        return dropped

    def _send(self, due: list[Request], server: Boundary) -> bool:
        """Push the rows of these requests; False once the server is closed."""
        if not due:
            return True
        try:
            header, data = output.build_frame(self._pack, due, self.settings.weight_version)
        except Exception as error:
            self._report(f"a frame of {len(due)} rows cannot be packed: {error!r}")
            return self._send_apart(due, error, server)
        output.mark_sent(due)
        return server.push_decode_result_batch(header, data)

    def _send_apart(self, due: list[Request], error: Exception, server: Boundary) -> bool:
        """Row by row, so that only the request that breaks the frame is lost."""
        if len(due) > 1:
            return all([self._send([request], server) for request in due])
        request = due[0]
        self._scheduler.drop(request)
        return server.push_error(request.rid, f"internal error: {error}")

    def _choose_threads(self) -> ThreadGovernor | None:
        """A first comparison on passes of one row, so that the first prompt has it already."""
        cpus = set(self.settings.cpus or ())
        set_count = thread_setter() if len(cpus) > 1 else None
        if set_count is None:
            return None
        model = self._scheduler.model
        slot = Slot(model.config)
        slot.begin(1, [], slot)
        slot.reserve(1)
        model.logits(model.forward([Piece(slot, 0, [0])]))  # the pages of the weights, once
        governor = ThreadGovernor(len(cpus), set_count)
        while not governor.decided:
            begun = time.perf_counter()
            governor.begin(1)
            model.logits(model.forward([Piece(slot, 0, [0])]))
            governor.end(time.perf_counter() - begun)
        return governor

    # -- what comes in ---------------------------------------------------------------

    def _take_in(self, message: Any, server: Boundary, flushes: FlushQueue) -> None:
        """One message; whatever is wrong with it ends at its own client."""
        try:
            values = decode_ingress(message.header)
        except MsgpackDecodeError as error:
            if error.rid is None:
                self._report(f"a message that names no request was dropped: {error.reason}")
            else:
                server.push_error(error.rid, f"invalid request: {error.reason}")
            return
        tag, rid = values[0], values[1]
        try:
            if tag == "TokenizedGenerateReqInput":
                self._take_generate(values, message, server)
            elif tag == "AbortReq":
                self._take_abort(values, server)
            elif rid is None:
                self._report(f"{tag} without a rid cannot be answered")
            elif tag == "FlushCacheReqInput":
                idle = self._scheduler.idle
                flushes.request(rid, float(values[3] or 0.0), idle, self._cache.flush)
            elif tag == "GetInternalStateReq":
                self._publish()
                server.push_control_result(rid, self._pack(internal_state(self.stats())))
            else:
                server.push_error(rid, f"{tag} is not supported by the embedded engine")
        except Exception as error:
            self._report(f"{tag} {rid}: {error!r}")
            if rid is not None:
                server.push_error(rid, f"internal error: {error}")

    def _take_generate(self, values: list[Any], message: Any, server: Boundary) -> None:
        rid = values[GENERATE["rid"]]
        if rid is None:
            self._report("a request without a rid was dropped")
            return
        scheduler = self._scheduler
        if rid.startswith(HEALTH_PREFIX) and not scheduler.idle:
            server.push_health_ack()  # work in progress is proof enough
            return
        buffers = dict(message.buffers)
        try:
            request = build_request(values, buffers, self._limits)
        except BadRequest as error:
            self._refuse(rid, bad_request(error.message), len(buffers.get("input_ids", ())), server)
            return
        limit = self.settings.max_queued_requests
        if limit is not None and len(scheduler.waiting) >= limit:
            finish = abort_reason("The request queue is full.", 503, "ServiceUnavailableError")
            self._refuse(rid, finish, len(request.prompt), server)
            return
        scheduler.submit(request)

    def _refuse(self, rid: str, finish: dict[str, Any], n_prompt: int, server: Boundary) -> None:
        header, data = output.build_refusal(self._pack, rid, finish, n_prompt)
        server.push_decode_result_batch(header, data)

    def _take_abort(self, values: list[Any], server: Boundary) -> None:
        """rid, nil, abort_all, finished_reason, abort_message, weight_versions. An empty rid would
        be a prefix of every request; it aborts nothing."""
        prefix, everything, reason = values[1], values[3], values[4]
        if not prefix and not everything:
            return
        queued, running = self._scheduler.abort(prefix, everything, reason)
        for request in queued:
            version = self.settings.weight_version
            server.push_decode_result_batch(*output.build_abort(self._pack, request, version))
        self._send(running, server)

    # -- bookkeeping -----------------------------------------------------------------

    def _publish(self) -> None:
        scheduler = self._scheduler
        now = time.monotonic()
        since, tokens = self._rate_mark
        if now - since >= _RATE_S:
            self._rate = (scheduler.generated_tokens - tokens) / (now - since)
            self._rate_mark = (now, scheduler.generated_tokens)
        held = self._cache.held()
        self._stats = {
            "model": self.model_name,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "max_running_requests": self.settings.max_running_requests,
            "steps": self._steps,
            "generated_tokens": scheduler.generated_tokens,
            "prompt_tokens": scheduler.prompt_tokens,
            "cached_tokens": scheduler.cached_tokens,
            "tokens_per_s": round(self._rate, 2),
            "kv_tokens": held,
            "kv_bytes": held * self._kv_bytes_per_token,
            "kv_budget_tokens": self._cache.budget,
            "weights_bytes": self._weights_bytes,
            "failures": self._failures,
            "blas_threads": None if self._governor is None else self._governor.preferred,
        }

    def _report(self, line: str) -> None:
        """A line in the log; a fault that repeats is not written for ever."""
        self._failures += 1
        if self._failures <= _LOG_LIMIT:
            self._log(line)


def _context_len(settings: LlamaSettings, of_model: int) -> int:
    if settings.context_len is None:
        return of_model
    if not 1 < settings.context_len <= of_model:
        raise SettingError(
            "context_len",
            f"{settings.context_len} tokens are not possible: the model has {of_model}",
        )
    return settings.context_len


def _kv_budget(settings: LlamaSettings, context_len: int, bytes_per_token: int) -> int:
    """Positions all sequences may keep together."""
    most = settings.max_running_requests * context_len
    if settings.kv_tokens is not None:
        if settings.kv_tokens < 2:
            raise SettingError("kv_tokens", f"must be at least 2, got {settings.kv_tokens}")
        return min(settings.kv_tokens, most)
    budget = min(available_bytes() // 2 // bytes_per_token, most)
    if budget < min(256, context_len):
        raise EngineError(
            f"the free memory holds keys and values of {budget} tokens only; "
            "a smaller model or more memory is needed"
        )
    return budget


def _to_stderr(line: str) -> None:
    os.write(2, f"llama engine: {line}\n".encode("utf-8", "replace"))
