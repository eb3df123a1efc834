"""Continuous batching: who runs, what one step computes, when an answer ends. Owner: engine thread.

A step is one pass of the model over all running requests: the next token of those that decode, a
bounded piece of the prompts that are not computed yet. Prompts share that bound: the first to come
always gets on, the rest goes to those with the least left to compute, so that a short prompt passes
a long one and a long one is never forgotten. Everything that can fail for one request fails that
request alone.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

from . import logprobs, sampler
from .gguf_tensors import Array
from .kv_cache import KvCache, shared_length
from .model import LlamaModel, Piece
from .request import Request, abort_reason, internal_error
from .settings import LlamaSettings
from .stops import Decode, finish_after_token

#: Prompt rows whose logits are held at once (a row is the vocabulary's size in float32).
_LOGITS_ROWS = 64
#: Tokens of a shared prefix that are worth a step's wait for the request that computes them.
_SHARE_WORTH = 32
#: Waiting requests that a step passes over for such a prefix: looking costs time, too.
_MOST_PASSED = 32


class Scheduler:
    """Waiting and running requests over one model and one cache.

    decode: ids to text with special tokens shown, None without a tokenizer.
    eos_ids: the id that stands in where logits hold no number is the first of these.
    """

    def __init__(
        self, model: LlamaModel, cache: KvCache, settings: LlamaSettings, decode: Decode | None
    ) -> None:
        self.model = model
        self._cache = cache
        self._settings = settings
        self._decode = decode
        self._eos_id = next(iter(model.config.eos_ids), 0)
        self._logits_cost = model.config.logits_cost()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def computes_prompts(self) -> bool:
        """Whether the next step may compute more than one token for some request."""
        return bool(self.waiting) or any(r.computed < len(r.prompt) for r in self.running)

    def submit(self, request: Request) -> None:
        """Queue a request. It must fit in the empty cache (`Request.need` ≤ its budget)."""
        self.waiting.append(request)

    def abort(self, prefix: str | None, everything: bool, reason: dict[str, Any] | None) -> tuple[
        list[Request], list[Request]
    ]:  # fmt: skip
        """End every request whose rid starts with `prefix`: (waiting ones, running ones).

        They leave the queues with `finish` set; their last frames are the caller's to send.
        """
        queued = [r for r in self.waiting if _matches(r, prefix, everything)]
        running = [r for r in self.running if _matches(r, prefix, everything)]
        for request in queued:
            self.waiting.remove(request)
            request.finish = reason or {"type": "abort", "message": "Abort in waiting queue"}
        for request in running:
            request.finish = reason or abort_reason("Aborted")
            self._leave(request)
        return queued, running

    def step(self) -> list[Request]:
        """Compute once; the requests that were part of it, finished ones included."""
        failed: list[Request] = []
        self._admit(failed)
        pieces, owners = self._pieces(failed)
        if not pieces:
            return failed
        try:
            states = self.model.forward(pieces)
        except Exception as error:
            for request in owners:
                self._fail(request, error)
            return failed + owners
        at = 0
        due: list[tuple[Request, int]] = []
        for request, piece in zip(owners, pieces, strict=True):
            end = at + len(piece.ids)
            try:
                if self._absorb(request, piece, states[at:end]):
                    due.append((request, end - 1))
            except Exception as error:
                self._fail(request, error)
            at = end
        due = [(request, row) for request, row in due if request.finish is None]
        if due:
            self._emit(due, states)
        for request in owners:
            if request.finish is not None and request in self.running:
                self._leave(request)
        return failed + owners

    def drop(self, request: Request) -> None:
        """End one running request at once, without a frame."""
        request.finish = abort_reason("Aborted")
        if request in self.running:
            self._leave(request)

    def drop_all(self) -> list[Request]:
        """End what runs, or, if nothing does, the next in line: progress after a fault of ours."""
        if not self.running and self.waiting:
            self.running.append(self.waiting.popleft())
        dropped = list(self.running)
        for request in dropped:
            self.drop(request)
        return dropped

    # -- who runs --------------------------------------------------------------------

    def _admit(self, failed: list[Request]) -> None:
        """Start waiting requests, in order, while the cache has room.

        One that shares much with a prompt being computed waits for it (the samples of one prompt
        arrive together), without holding up those behind it.
        """
        passed: list[Request] = []
        while (
            self.waiting
            and len(self.running) < self._settings.max_running_requests
            and len(passed) < _MOST_PASSED
        ):
            request = self.waiting[0]
            if not self._cache.fits(request.need):
                break
            self.waiting.popleft()
            if self._prefix_is_coming(request):
                passed.append(request)
                continue
            try:
                self._start(request)
            except Exception as error:
                self._fail(request, error)
                failed.append(request)
        self.waiting.extendleft(reversed(passed))

    def _most_shared(self, request: Request) -> int:
        """How much of the prompt may come from the cache: the last position needs its logits, and
        so do those whose logprobs are wanted."""
        if not self._settings.prefix_cache:
            return 0
        most = len(request.prompt) - 1
        return most if request.lp_wish is None else min(most, request.lp_wish.start)

    def _prefix_is_coming(self, request: Request) -> bool:
        most = self._most_shared(request)
        for other in self.running:
            if other.computed < min(len(other.prompt), most - _SHARE_WORTH + 1):
                common = min(shared_length(other.prompt, request.prompt), most)
                if common - other.computed >= _SHARE_WORTH:
                    return True
        return False

    def _start(self, request: Request) -> None:
        shared = self._most_shared(request)
        request.slot = slot = self._cache.take(request.prompt, request.need, shared)
        request.computed = request.cached = len(slot.tokens)
        self.prompt_tokens += len(request.prompt)
        self.cached_tokens += request.cached
        self.running.append(request)
        logprobs.open_input(request)

    def _leave(self, request: Request) -> None:
        """Take a request that is over out of the batch; its slot stays as a prefix for others."""
        self.running.remove(request)
        slot = request.slot
        if slot is not None:
            request.slot = None
            keep = self._settings.prefix_cache and not request.is_health_check
            self._cache.release(slot, keep)

    def _fail(self, request: Request, error: Exception) -> None:
        """End one request because of our own fault. What its slot holds cannot be trusted."""
        request.finish = internal_error(f"internal error: {type(error).__name__}: {error}")
        if request.slot is not None:
            request.slot.tokens = []
        if request in self.running:
            self._leave(request)

    # -- one step --------------------------------------------------------------------

    def _prompt_room(self) -> int:
        decoding = any(r.computed >= len(r.prompt) for r in self.running)
        settings = self._settings
        return settings.prefill_tokens_busy if decoding else settings.prefill_tokens

    def _shares(self) -> dict[int, int]:
        """Prompt tokens that this step computes, by the request's place in `running`.

        Among several, the oldest gets up to half of the room; the others follow, the least left
        first. A piece that does not finish its prompt stays small then: whoever finishes in the
        same step waits for all of it.
        """
        todo = [
            (len(r.prompt) - r.computed, place)
            for place, r in enumerate(self.running)
            if r.computed < len(r.prompt)
        ]
        if not todo:
            return {}
        room = float(self._prompt_room())
        left, place = todo[0]
        if len(todo) == 1:
            return {place: self._fitting(place, left, room)[0]}
        most = self._settings.prefill_tokens_busy
        shares = {}
        shares[place], cost = self._fitting(place, left, min(room // 2, most))
        room -= cost
        for left, place in sorted(todo[1:]):
            if room < 1:
                break
            shares[place], cost = self._fitting(place, left, min(room, most))
            room -= cost
        return shares

    def _fitting(self, place: int, left: int, room: float) -> tuple[int, float]:
        """How many of a prompt's tokens to compute in that room, at least one, and what they take
        of it: one whose logprobs are wanted takes more than its place, its logits are computed."""
        request = self.running[place]
        wish = request.lp_wish
        cost = 1.0
        if wish is not None and wish.start < len(request.prompt) - 1:
            cost = self._logits_cost
        count = min(left, max(int(room / cost), 1))
        return count, count * cost

    def _pieces(self, failed: list[Request]) -> tuple[list[Piece], list[Request]]:
        """The pieces of this step and their requests."""
        shares = self._shares()
        pieces: list[Piece] = []
        owners: list[Request] = []
        for place, request in enumerate(list(self.running)):
            if request.computed < len(request.prompt):
                ids = request.prompt[request.computed : request.computed + shares.get(place, 0)]
            else:
                ids = request.missing()
            slot = request.slot
            if not ids or slot is None:
                continue
            try:
                slot.reserve(request.computed + len(ids))
            except MemoryError as error:
                self._fail(request, error)
                failed.append(request)
                continue
            pieces.append(Piece(slot, request.computed, ids))
            owners.append(request)
        return pieces, owners

    def _absorb(self, request: Request, piece: Piece, states: Array) -> bool:
        """Book a computed piece; whether the request's next token is now due."""
        was_prompt = request.computed < len(request.prompt)
        piece.slot.tokens += piece.ids
        request.computed += len(piece.ids)
        if was_prompt:
            self._prompt_logprobs(request, piece, states)
            if request.hidden_mode is True:
                request.prompt_hidden.append(states.copy())
        if request.computed < len(request.prompt):
            return False
        if was_prompt:
            request.prefilled_at = time.perf_counter()
            if request.stops.max_new_tokens == 0:
                request.finish = {"type": "length", "length": 0}
                return False
        if request.hidden_mode:
            self._keep_hidden(request, states[-1], was_prompt)
        return True

    @staticmethod
    def _keep_hidden(request: Request, state: Array, was_prompt: bool) -> None:
        """One entry per output token; the first is that of every prompt position computed."""
        if request.hidden_mode == "last":
            request.hidden = [state.tolist()]
        elif was_prompt:
            request.hidden.append(np.concatenate(request.prompt_hidden).tolist())
            request.prompt_hidden = []
        else:
            request.hidden.append(state.tolist())

    def _prompt_logprobs(self, request: Request, piece: Piece, states: Array) -> None:
        """Entries of the prompt positions whose predecessors this piece computed."""
        wish = request.lp_wish
        if wish is None:
            return
        first = max(wish.start - piece.start, 0)
        last = min(len(piece.ids), len(request.prompt) - 1 - piece.start)
        for block in range(first, last, _LOGITS_ROWS):
            end = min(block + _LOGITS_ROWS, last)
            rows = self.model.logits(states[block:end])
            for k in range(end - block):
                logprobs.add_input(rows[k], request, piece.start + block + k + 1)

    def _emit(self, due: list[tuple[Request, int]], states: Array) -> None:
        """Choose the next token of each (request, row of `states`), and see whether it ends."""
        rows = [row for _, row in due]
        try:
            logits = self.model.logits(states if rows == list(range(len(states))) else states[rows])
            best = logits.argmax(axis=1)
        except Exception as error:
            for request, _ in due:
                self._fail(request, error)
            return
        for k, (request, _) in enumerate(due):
            try:
                self._add_token(request, logits[k], int(best[k]))
            except Exception as error:
                self._fail(request, error)

    def _add_token(self, request: Request, row: Array, best: int) -> None:
        plain = request.lp_wish is None and request.sampling.top_k == 1
        if plain and not sampler.is_adjusted(request) and np.isfinite(row[best]):
            token: int | None = best
        else:
            sampler.adjust(row, request)
            token = sampler.pick(row, request)
        if token is None:
            token = self._eos_id
            request.finish = {"type": "stop", "matched": "NaN happened"}
        if request.lp_wish is not None:
            logprobs.add_output(row, request, token)
        request.output.append(token)
        self.generated_tokens += 1
        if request.counts is not None:
            request.counts[token] = request.counts.get(token, 0) + 1
        if request.finish is None:
            request.finish = finish_after_token(request, self._decode)


def _matches(request: Request, prefix: str | None, everything: bool) -> bool:
    return everything or (prefix is not None and request.rid.startswith(prefix))
