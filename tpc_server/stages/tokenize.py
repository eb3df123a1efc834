"""Tokenize: prompts to ids, requests into the scheduler's ring. Owner: the core that runs it.

The core that sent a request also sends its abort, so that the scheduler never sees an abort
before its request. Long prompts go to helper threads: the tokenizer works without the GIL, and
the kernel shares the CPU, so streams of this core go on.

A job: (wire rid, prompt | None, ids | None, message, ids for logprobs | None, whether detok wants
the prompt's ids). The prompt is a text or a tuple of `text.chat_prompt`, where their layout is.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from .. import frame
from ..boundary import codec, messages, wire
from ..boundary.wire import INT64, PADS, REQUEST, USUAL_BYTES
from ..contract.errors import BadRequest
from ..contract.limits import check_lengths, logprob_entries
from ..frame import D_ENCODED, T_JOB  # a global costs half of a module's
from ..text.chat_prompt import is_long
from ..text.encode import LONG_TEXT_CHARS, EncodeHelper
from ..text.stops import count_stop_tokens
from ..text.windowed import CONTEXT_IDS
from .base import Outbox, Port
from .texts import TextCalls, refusal

if TYPE_CHECKING:
    from ..counters import Counters
    from ..mailbox import Sender

# Positions in the wire form of a request.
RID: Final = messages.GENERATE["rid"]
LOGPROB: Final = messages.GENERATE["return_logprob"]
SAMPLING: Final = messages.GENERATE["sampling_params"]
MAX_NEW: Final = messages.SAMPLING["max_new_tokens"]
STOP_STRS: Final = messages.SAMPLING["stop_strs"]
STOP_STR_MAX_LEN: Final = messages.SAMPLING["stop_str_max_len"]

# A call of several requests has one, and notes there what it comes to.
_Call = list[int] | None
TAKEN: Final = 0  # of its requests
ENTRIES: Final = 1  # alternatives of their prompts: see `limits.logprob_entries`
_Job = tuple[int, tuple[Any, ...], _Call]  # detok core, job, call

_SLICE: Final = 32  # encodes a turn
_SMALL: Final = 4096  # bytes of a request that are joined: cheaper than to handle its parts
_CONTROL: Final = -1
MOST_BYTES: Final = 64 << 20  # that wait for the ring; more only of calls taken before
FULL: Final = "the scheduler's queue is full; try again later"
QUEUE_ABORT: Final = "Abort in waiting queue"


class TokenizeStage(TextCalls):
    """Encodes, checks lengths, sends; forwards aborts and control messages."""

    name = "tokenize"

    def __init__(
        self, core: int, setup: Any, counters: Counters, outbox: Outbox, to_scheduler: Sender,
        aborts: Sender,
    ) -> None:  # fmt: skip
        self.inbox: deque[frame.Message] = deque()
        self._core = core
        self._unsent = outbox.spill
        super().__init__(setup)
        self.counters = counters
        self._jobs: deque[_Job] = deque()
        self._to_scheduler = to_scheduler
        self._aborts = aborts
        self._pack = codec.make_packer()
        self._head = Struct(wire.USUAL_HEAD).pack
        self._encode: Any = self._encoder.encode if self._encoder is not None else None
        self._context = setup.limits.context_len
        self._reserved = setup.limits.num_reserved_tokens
        self._needs_context = setup.needs_context
        self._stops_counted: list[str] = []
        self._stops_len = 0
        # Of these detok was told; they follow once it can read that and the ring has room.
        # (detok core or _CONTROL, wire rid, parts, bytes)
        self._ready: deque[tuple[int, str, Sequence[Any], int]] = deque()
        self._ready_bytes = 0
        self._stuck = False  # the ring had no room for the first of them
        # Jobs of this stage that the scheduler does not have yet, by wire rid.
        self._waiting: dict[str, _Job] = {}
        self._cancelled: set[str] = set()
        self._at_hand: _Job | None = None  # the one that is being sent, or failed
        self._room = _SLICE  # jobs that may still start in this turn
        self._shared = 0  # aborts that other frontends were told of

    def connect(self, detok: dict[int, Port]) -> None:
        """Ports to the detok stages, by core."""
        self._detok = detok

    # -- stage protocol --------------------------------------------------------------

    def poll(self, budget: int) -> int:
        """Messages, then a slice of the queued jobs."""
        inbox = self.inbox
        done = 0
        self._room = _SLICE
        while inbox and done < budget:
            self._on_message(inbox.popleft())
            done += 1
        if self._ready:
            done += self._post_ready()
        queue = self._jobs
        while queue and self._room > 0:
            core, job, call = queue.popleft()
            if job[0] in self._cancelled:
                self._room -= 1
                self._drop(core, job[0])
            else:
                self._start(core, job, call)
            done += 1
        return done

    def _on_message(self, message: frame.Message) -> None:
        kind = message[0]
        if kind == T_JOB:
            _, core, jobs = message
            if len(jobs) == 1 and self._room > 0 and not self._jobs:
                self._start(core, jobs[0], None)
                return
            call = [0, 0] if len(jobs) > 1 else None
            for job in jobs:
                self._jobs.append((core, job, call))
                self._waiting[job[0]] = self._jobs[-1]
        elif kind == frame.T_ABORT:
            self._abort(message[1])
        elif kind == frame.T_CONTROL:
            self._control(message[1], message[2])
        elif kind == frame.T_TEXTS:
            self.texts(*message[1:])
        elif kind == frame.T_COUNT:
            self.count(*message[1:])
        elif kind == frame.T_FORGET:
            self.forget_call(message[1])
        elif kind == frame.T_PARSE:
            self.parse(*message[1:])
        elif kind == frame.T_SHARE:
            self._share(message[1])

    def pure_poll(self) -> bool:
        """Whether messages or jobs wait."""
        return bool(
            self.inbox or self._jobs or (self._ready and not self._stuck and not self._held)
        )

    @property
    def stalled(self) -> bool:
        """Whether requests wait for room in the ring: nobody will say that there is some."""
        return bool(self._ready)

    @property
    def _held(self) -> bool:
        """Whether detok may not be able to read of them yet, or a long request is half sent."""
        return bool(self._unsent) or self._to_scheduler.backlog

    def on_tick(self, now_ns: int) -> None:
        """Nothing here depends on the clock."""

    @property
    def busy(self) -> bool:
        """Whether requests are on their way to the scheduler."""
        return bool(self._waiting or self.inbox or self._calls)

    # -- jobs ------------------------------------------------------------------------

    def _start(self, core: int, job: tuple[Any, ...], call: _Call) -> None:
        self._at_hand = (core, job, call)
        self._room -= 1
        rid, prompt, ids, _wanted, _logprob_ids, _want_ids = job
        if ids is None:
            prompts = self._prompts
            if prompts is None:
                self._fail(core, rid, 400, "text needs a tokenizer: this server has none")
                return
            # The usual prompt, a short text, goes straight to the tokenizer.
            short = type(prompt) is str and len(prompt) <= LONG_TEXT_CHARS
            if not short and is_long(prompt, LONG_TEXT_CHARS) and self._hand_over(core, job, call):
                return
            try:
                ids = self._encode(prompt) if short else prompts.encode(prompt)
            except Exception as error:
                self._fail(core, rid, 400, refusal(error))
                return
            self.counters.encoded += 1
        self._send(core, job, call, ids)

    def _hand_over(self, core: int, job: tuple[Any, ...], call: _Call) -> bool:
        """To the helper; False when there can be none now (no descriptors, no threads)."""
        rid = job[0]
        try:
            helper = self._make_helper()
            assert isinstance(helper, EncodeHelper)
            helper.submit(rid, job[1])
        except (OSError, RuntimeError):
            return False
        self._waiting[rid] = (core, (rid, "", *job[2:]), call)  # the prompt is the helper's alone
        return True

    def on_events(self, fd: int, mask: int) -> None:
        """The helper has results."""
        assert self._helper is not None
        for rid, ids, error in self._helper.results():
            if rid in self._calls:
                self.answer_call(self._calls[rid], rid, ids, error)
                continue
            core, job, call = self._waiting[rid]
            self.counters.encoded += 1
            if error is not None:
                self._fail(core, rid, 400, refusal(error))
            else:
                self._send(core, job, call, ids)

    def _send(self, core: int, job: tuple[Any, ...], call: _Call, ids: Any) -> None:
        rid, _prompt, _ids, wanted, logprob_ids, want_ids = job
        sampling = wanted[SAMPLING]
        data = ids if type(ids) is bytes else array("q", ids).tobytes()
        count = len(data) >> 3
        if count + self._reserved + (sampling[MAX_NEW] or 1) > self._context:
            try:
                count = check_lengths(count, sampling, self._limits)
            except BadRequest as error:
                self._fail(core, rid, error.status, error.message)
                return
            data = data[: count * 8]
        if wanted[LOGPROB]:
            total = [0, 0] if call is None else call
            try:
                total[ENTRIES] = logprob_entries(
                    count, wanted, logprob_ids, self._limits, total[ENTRIES]
                )
            except BadRequest as error:
                self._fail(core, rid, error.status, error.message)
                return
        if sampling[STOP_STRS]:
            sampling[STOP_STR_MAX_LEN] = self._stop_tokens(sampling[STOP_STRS])
        wanted[RID] = rid
        header = self._pack(wanted)
        prompt_ids = ids_of(data) if want_ids else None
        last = ids_of(data[-8 * CONTEXT_IDS :]) if self._needs_context else []
        # Before the request itself: its first frame must not overtake this.
        self._detok[core].send((D_ENCODED, rid, count, prompt_ids, last, self._core))
        parts: Sequence[Any]
        if logprob_ids is None:
            size = len(header)
            head = self._head(size, 1, 9, INT64, len(data), b"input_ids")
            parts = (head, header, PADS[-(size + USUAL_BYTES) & 7], data)
            if size + len(data) < _SMALL:
                parts = (b"".join(parts),)
        else:
            parts = wire.request_parts(
                header,
                [
                    ("input_ids", wire.INT64, data),
                    ("token_ids_logprob", wire.INT64, array("q", logprob_ids)),
                ],
            )
        if self._ready or self._unsent or not self._post(rid, parts):
            self._wait(core, rid, parts, call)
        elif self._waiting:
            self._waiting.pop(rid, None)
        if call is not None:
            call[TAKEN] += 1
        self._at_hand = None

    def _stop_tokens(self, stops: list[str]) -> int:
        """Tokens of the longest; the samples and items of one request share their stops."""
        if stops != self._stops_counted:
            encoder = self._encoder
            self._stops_len = (
                count_stop_tokens(encoder.tokenizer, stops)
                if encoder is not None
                else max(len(s.encode()) for s in stops)
            )
            self._stops_counted = stops
        return self._stops_len

    def _wait(self, core: int, rid: str, parts: Sequence[Any], call: _Call) -> None:
        """A request that cannot go now follows when it can; 503 where too much waits already.

        What belongs to a call of which a part was taken is never refused: it could not come again
        without the rest.
        """
        if (call is None or not call[TAKEN]) and (
            self._ready_bytes > MOST_BYTES or self._to_scheduler.crowded(len(self._ready))
        ):
            self._fail(core, rid, 503, FULL)
            return
        self._waiting[rid] = (core, (rid,), call)
        size = sum([memoryview(part).nbytes for part in parts])
        self._ready.append((core, rid, parts, size))
        self._ready_bytes += size

    def _post_ready(self) -> int:
        """Requests that waited for detok to be told, or for room; how many went."""
        ready = self._ready
        done = 0
        self._stuck = False
        while ready and not self._held:
            core, rid, parts, size = ready[0]
            if rid in self._cancelled:
                self._drop(core, rid)
            elif self._post(rid, parts):
                self._waiting.pop(rid, None)
            else:
                self._stuck = True
                break
            ready.popleft()
            self._ready_bytes -= size
            done += 1
        return done

    def _post(self, rid: str, parts: Sequence[Any]) -> bool:
        return self._to_scheduler.post(REQUEST, rid.encode(), parts)

    def _fail(self, core: int, rid: str, status: int, message: str) -> None:
        self._waiting.pop(rid, None)
        self._detok[core].send((frame.D_FAIL, rid, status, message))

    def _drop(self, core: int, rid: str) -> None:
        self._cancelled.discard(rid)
        self._waiting.pop(rid, None)
        self._detok[core].send((frame.D_FAIL, rid, 0, QUEUE_ABORT))

    # -- aborts and control ----------------------------------------------------------

    def _abort(self, rid: str) -> None:
        """Before the request is sent it is only forgotten; afterwards the scheduler is told."""
        if rid in self._waiting:
            if self._helper is not None and self._helper.cancel(rid):
                self._drop(self._waiting[rid][0], rid)
            else:
                self._cancelled.add(rid)
            return
        self._aborts.post_urgent(
            wire.ABORT, rid.encode(), wire.request_parts(messages.pack_abort(self._pack, rid), [])
        )

    def _share(self, rids: list[str] | None) -> None:
        """A client's abort, to whatever other frontends the scheduler has."""
        self._shared += 1
        self._aborts.post_urgent(
            wire.SHARED_ABORT, b"%d" % self._shared, (frame.encode((frame.D_ABORT, rids)),)
        )

    def _control(self, rid: str, header: bytes) -> None:
        parts = wire.request_parts(header, [])
        if not self._held and self._post(rid, parts):
            return
        if self._held or not self._to_scheduler.crowded(0):
            self._ready.appendleft((_CONTROL, rid, parts, 0))  # small, and somebody waits for it
            return
        for port in self._detok.values():
            port.send((frame.D_FAIL, rid, 503, FULL))

    # -- ends ------------------------------------------------------------------------

    def bury(self, message: str) -> None:
        """A dying core: every job that was not sent fails."""
        at_hand = [] if self._at_hand is None else [self._at_hand]
        for core, job, _ in [*at_hand, *self._waiting.values()]:
            self._detok[core].send((frame.D_FAIL, job[0], 503, message))
        self.bury_calls(message)
        self._waiting.clear()
        self._jobs.clear()

    def poll_aborts(self) -> None:
        """A dying core: forward the aborts that wait; leave jobs to the next stage."""
        kept = deque(m for m in self.inbox if m[0] != frame.T_ABORT)
        for message in self.inbox:
            if message[0] == frame.T_ABORT:
                self._abort(message[1])
        self.inbox.clear()
        self.inbox.extend(kept)

    def close(self) -> None:
        """Stop the helper threads."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None


def ids_of(data: bytes) -> list[int]:
    """Ids out of int64 bytes."""
    return array("q", data).tolist()
