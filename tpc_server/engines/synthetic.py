"""A scheduler that computes nothing: scripted or random ids at a set tick. Owner: its thread.

It drives a frontend through the same boundary as a real scheduler, with the same frames: for tests,
benchmarks, and trying a frontend without a model. What it can be told to do, and to do wrong, is in
docs/SYNTHETIC.md.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from ..boundary import codec
from ..boundary.columns import pack_frame, pack_queue_abort
from ..boundary.messages import GENERATE, SAMPLING, MsgpackDecodeError, decode_ingress
from .flush import FlushQueue
from .synthetic_faults import FrameFaults
from .synthetic_request import SyntheticRequest
from .synthetic_script import Fault, Script, byte_ids
from .synthetic_values import families_of

__all__ = ["SyntheticEngine", "SyntheticSettings"]

_IDLE_MS: Final = 200
_RECV_MAX: Final = 256
_HEALTH: Final = "HEALTH_CHECK"
_GRAMMARS: Final = ("json_schema", "regex", "ebnf", "structural_tag")
_NOT_HERE: Final = (
    "PauseGenerationReqInput", "ContinueGenerationReqInput", "OpenSessionReqInput",
    "CloseSessionReqInput",
)  # fmt: skip
_QUEUE_ABORT: Final[dict[str, Any]] = {"type": "abort", "message": "Abort in waiting queue"}


def _nothing() -> None:
    """There is no cache to empty."""


class Stopping(Protocol):
    """What ends the engine: `threading.Event` is one."""

    def is_set(self) -> bool: ...


class SyntheticSettings:
    """How the engine behaves.

    tick_ms         time from one step to the next; 0: as fast as it goes
    max_running     requests decoded together, others wait
    seed            of pseudo-random ids
    vocab_size      ids are in [low_id, vocab_size), but for scripts
    context_len     tokens of prompt and answer together
    eos_ids         end a request that does not ignore them
    token_bytes     bytes of each token: needed for stop strings and scripts of text
    text_ids        ids of a real text to emit instead of pseudo-random ones
    unary_interval  a request without stream sends its ids every so many
    weight_version  reported with every finished request
    """

    __slots__ = (
        "context_len", "eos_ids", "faults", "low_id", "max_running", "scripts", "seed",
        "text_ids", "tick_ms", "token_bytes", "unary_interval", "vocab_size", "weight_version",
    )  # fmt: skip

    def __init__(
        self,
        vocab_size: int,
        context_len: int = 32768,
        *,
        tick_ms: float = 20.0,
        max_running: int = 256,
        seed: int = 0,
        low_id: int = 0,
        eos_ids: Sequence[int] = (),
        token_bytes: Sequence[bytes] | None = None,
        text_ids: Sequence[int] | None = None,
        unary_interval: int = 50,
        weight_version: str = "default",
        scripts: Sequence[Script] = (),
        faults: Sequence[Fault] = (),
    ) -> None:
        self.vocab_size = vocab_size
        self.context_len = context_len
        self.tick_ms = tick_ms
        self.max_running = max_running
        self.seed = seed
        self.low_id = low_id
        self.eos_ids = tuple(eos_ids)
        self.token_bytes = token_bytes
        self.text_ids = text_ids
        self.unary_interval = unary_interval
        self.weight_version = weight_version
        self.scripts = tuple(scripts)
        self.faults = tuple(faults)


class SyntheticEngine:
    """Run it on a thread of its own: `SyntheticEngine(settings).run(server, stopping)`.

    Counters may be read from other threads: `steps`, `frames`, `tokens`, `received`, `finished`.
    """

    def __init__(self, settings: SyntheticSettings) -> None:
        self.settings = settings
        self.context_len = settings.context_len
        self.eos_ids = settings.eos_ids
        self.seed = settings.seed
        self.low_id = settings.low_id
        self.high_id = settings.vocab_size
        self.text_ids = settings.text_ids
        self.byte_table = byte_ids(settings.token_bytes)
        self.scripts = list(settings.scripts)
        self._uses = [0] * len(self.scripts)
        for script in self.scripts:  # a script that cannot be told in tokens: say so at once
            script.token_frames(self.byte_table)
        self.steps = self.frames = self.tokens = self.received = self.finished = 0
        self.waiting: deque[SyntheticRequest] = deque()
        self.running: dict[str, SyntheticRequest] = {}
        self._server: Any = None
        self._pack = codec.make_packer()
        self._faults = FrameFaults(settings.faults)
        self._ack = False
        self._flushes: Any = None

    @property
    def _idle(self) -> bool:
        return not self.running and not self.waiting

    def run(self, server: Any, stopping: Stopping) -> None:
        """Serve until `stopping` is set or the server shuts down."""
        self._server = server
        self._pack = codec.make_packer()  # this thread's own
        self._flushes = flushes = FlushQueue(server, self._pack)
        tick = self.settings.tick_ms / 1e3
        due = time.monotonic()
        while not stopping.is_set():
            self._receive()
            flushes.look_again(self._idle, _nothing)
            if self._idle:
                server.wait_request(_IDLE_MS)
                due = time.monotonic()
                continue
            if not self._step(stopping):
                return
            if tick:
                # Steps keep to a grid, so that a late one does not shift the rest; one that is
                # later than a whole step does not make the next ones come in a burst.
                due += tick
                left = due - time.monotonic()
                if left > 0:
                    time.sleep(left)
                elif left < -tick:
                    due = time.monotonic()

    # -- receiving -------------------------------------------------------------------

    def _receive(self) -> None:
        while True:
            requests = self._server.recv_requests(_RECV_MAX)
            for request in requests:
                self._on_message(request)
            if self._ack:
                self._ack = False
                self._server.push_health_ack()  # one for all skipped probes
            if len(requests) < _RECV_MAX:
                return

    def _on_message(self, request: Any) -> None:
        try:
            message = decode_ingress(request.header)
        except MsgpackDecodeError as error:
            if error.rid is not None:
                self._server.push_error(error.rid, f"invalid request: {error.reason}")
            return
        tag = message[0]
        self.received += 1
        if tag == "TokenizedGenerateReqInput":
            self._on_generate(message, request.buffers)
        elif tag == "AbortReq":
            self._on_abort(message[1] or "", message[3])
        elif tag == "FlushCacheReqInput":
            self._flushes.request(message[1], float(message[3] or 0.0), self._idle, _nothing)
        elif tag in _NOT_HERE:
            self._server.push_error(message[1], f"{tag} is not supported by the synthetic engine")
        else:
            answer = self._control(tag)
            payload = {"rid": None, "http_worker_ipc": None, **answer}
            self._server.push_control_result(message[1], self._pack(payload))

    def _on_generate(self, message: list[Any], buffers: Sequence[tuple[str, Any]]) -> None:
        rid = message[GENERATE["rid"]]
        probe = rid.startswith(_HEALTH)
        if probe and (self.running or self.waiting):
            self._ack = True
            return
        prompt: array[int] = array("q")
        token_ids: list[int] | None = message[GENERATE["token_ids_logprob"]]
        for name, values in buffers:
            if name == "input_ids":
                prompt.frombytes(memoryview(values).cast("B"))
            elif name == "token_ids_logprob":
                token_ids = values.tolist()
        script = None if probe else self._script(rid, message[GENERATE["input_text"]], prompt)
        request = SyntheticRequest(message, prompt, token_ids, script, self, time.monotonic())
        for name in _GRAMMARS:
            if request.sampling[SAMPLING[name]] is not None:
                self._refuse(request, f"{name} is not supported by the synthetic engine")
                return
        if message[GENERATE["session_params"]] is not None:
            self._refuse(request, "session_params is not supported by the synthetic engine")
            return
        scripted_end = script is not None and script.finish is not None
        if request.window and self.settings.token_bytes is None and not scripted_end:
            self._refuse(request, "stop strings and patterns need a tokenizer")
            return
        self.waiting.append(request)

    def _script(self, rid: str, text: Any, prompt: array[int]) -> Script | None:
        for k, script in enumerate(self.scripts):
            if script.times is not None and self._uses[k] >= script.times:
                continue
            if script.matches(rid, text, prompt):
                self._uses[k] += 1
                return script
        return None

    def _refuse(self, request: SyntheticRequest, message: str) -> None:
        reason = {
            "type": "abort", "message": message, "status_code": 400,
            "err_type": "BadRequestError",
        }  # fmt: skip
        self._push(*pack_queue_abort(self._pack, request.rid, reason, len(request.prompt)))

    def _on_abort(self, prefix: str, abort_all: bool) -> None:
        """Every request whose rid starts with the prefix, as schedulers of this protocol do."""
        kept: deque[SyntheticRequest] = deque()
        for request in self.waiting:
            if not (abort_all or request.rid.startswith(prefix)):
                kept.append(request)
                continue
            spans = [[self.settings.weight_version, 0, 0]]
            self._push(
                *pack_queue_abort(
                    self._pack, request.rid, _QUEUE_ABORT, len(request.prompt),
                    weight_versions=spans,
                )
            )  # fmt: skip
            self.finished += 1
        self.waiting = kept
        for rid, request in self.running.items():
            if abort_all or rid.startswith(prefix):
                request.aborted = True

    def _control(self, tag: str) -> dict[str, Any]:
        if tag == "GetInternalStateReq":
            return {
                "internal_state": {
                    "engine": "synthetic",
                    "max_running_requests": self.settings.max_running,
                    "num_running_reqs": len(self.running),
                    "num_waiting_reqs": len(self.waiting),
                    "tick_ms": self.settings.tick_ms,
                }
            }
        if tag == "CheckWeightsReqInput":
            return {"success": True, "message": "Success.", "payload": []}
        if tag == "ClearHiCacheReqInput":
            return {"success": False}
        return {"success": False, "message": "the synthetic engine has no storage cache"}

    # -- stepping --------------------------------------------------------------------

    def _step(self, stopping: Stopping) -> bool:
        """One decoding step: admit, make ids, send what is due. False when the server is gone."""
        while self.waiting and len(self.running) < self.settings.max_running:
            request = self.waiting.popleft()
            self.running[request.rid] = request
        token_bytes = self.settings.token_bytes
        unary_interval = self.settings.unary_interval
        rows: list[SyntheticRequest] = []
        alone: list[SyntheticRequest] = []
        now = time.monotonic()
        for request in self.running.values():
            # A finished one is still here only because its last frame is held back.
            due = request.finish is not None or request.step(token_bytes)
            if not due and not request.stream and len(request.pending) >= unary_interval:
                due = True
            if due and (request.aborted or request.held_until_s <= now):
                # A request with faults has frames of its own: nobody else is hit.
                (alone if request.faults else rows).append(request)
        self.steps += 1
        alive = True
        if rows:
            header, data = self._frame(rows)
            alive = self._faults.send(self, header, data, stopping)
        for request in alone:
            alive = alive and self._faults.send_alone(self, request, stopping)
        for request in [*rows, *alone]:
            if request.held_until_s <= now or request.aborted:
                self._sent(request)
        return alive

    def _frame(self, rows: list[SyntheticRequest]) -> tuple[bytes, list[bytes]]:
        families: dict[str, list[Any]] | None = None
        extra = False
        weights: list[Any] | None = None
        latencies: dict[int, float] = {}
        for i, request in enumerate(rows):
            extra = extra or request.want_logprob or request.want_hidden
            if request.finish is not None:
                if weights is None:
                    weights = [None] * len(rows)
                weights[i] = [[self.settings.weight_version, 0, len(request.output)]]
                if not request.stream:
                    latencies[i] = time.monotonic() - request.arrived_s
        if extra:
            families = families_of([(r, r.pending) for r in rows], self.settings.vocab_size)
        zeros = [0] * len(rows)
        return pack_frame(
            self._pack,
            [r.rid for r in rows],
            [r.finish for r in rows],
            [len(r.prompt) for r in rows],
            [r.pending for r in rows],
            zeros,
            zeros,
            families,
            weights,
            latencies,
        )

    def _sent(self, request: SyntheticRequest) -> None:
        self.tokens += len(request.pending)
        request.pending = []
        request.first_row_sent = True
        request.frames += 1
        if request.finish is not None:
            self.running.pop(request.rid, None)
            self.finished += 1

    def _push(self, header: bytes, data: Sequence[Any]) -> bool:
        self.frames += 1
        return bool(self._server.push_decode_result_batch(header, data))
