"""One request in the synthetic engine: where its ids come from and when it stops. Owner: engine."""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Sequence
from typing import Any, Final

from ..boundary.messages import GENERATE, SAMPLING
from .synthetic_script import Fault, Script

__all__ = ["IdSource", "SyntheticRequest"]

_MASK: Final = (1 << 64) - 1
_A: Final = 6364136223846793005
_C: Final = 1442695040888963407

_SP: Final = GENERATE["sampling_params"]
_MAX_NEW: Final = SAMPLING["max_new_tokens"]
_STOP_IDS: Final = SAMPLING["stop_token_ids"]
_MIN_NEW: Final = SAMPLING["min_new_tokens"]
_IGNORE_EOS: Final = SAMPLING["ignore_eos"]
_INTERVAL: Final = SAMPLING["stream_interval"]
_SEED: Final = SAMPLING["sampling_seed"]
_STOPS: Final = SAMPLING["stop_strs"]
_REGEXES: Final = SAMPLING["stop_regex_strs"]
_STOP_LEN: Final = SAMPLING["stop_str_max_len"]
_REGEX_LEN: Final = SAMPLING["stop_regex_max_len"]

ABORTED: Final[dict[str, Any]] = {
    "type": "abort",
    "message": "Aborted",
    "status_code": None,
    "err_type": None,
}


class IdSource:
    """Frames of token ids: scripted, of a text, or pseudo-random; the same for the same seed."""

    __slots__ = ("_at", "_frames", "_high", "_low", "_repeat", "_state", "_text")

    def __init__(
        self,
        frames: list[list[int]] | None,
        repeat: bool,
        seed: int,
        low: int,
        high: int,
        text: Sequence[int] | None,
    ) -> None:
        self._frames = frames
        self._repeat = repeat
        self._low = low
        self._high = high
        self._text = text
        self._state = (seed * _A + _C) & _MASK
        self._at = self._state % len(text) if text and frames is None else 0

    def take(self) -> list[int] | None:
        """The next step's ids; None when the script is over."""
        frames = self._frames
        if frames is not None:
            if self._at == len(frames):
                if not self._repeat or not frames:
                    return None
                self._at = 0
            self._at += 1
            return frames[self._at - 1]
        if self._text is not None:
            self._at += 1
            return [self._text[self._at % len(self._text)]]
        self._state = (self._state * _A + _C) & _MASK
        return [self._low + (self._state >> 33) % (self._high - self._low)]


class SyntheticRequest:
    """A request from arrival to its last frame."""

    __slots__ = (
        "aborted",
        "arrived_s",
        "faults",
        "finish",
        "first_row_sent",
        "frames",
        "held_until_s",
        "logprob_start",
        "max_new",
        "message",
        "min_new",
        "output",
        "pending",
        "prompt",
        "rid",
        "sampling",
        "script_finish",
        "source",
        "stop_ids",
        "stream",
        "text_stops",
        "token_ids",
        "top",
        "want_hidden",
        "want_logprob",
        "window",
    )

    def __init__(
        self,
        message: list[Any],
        prompt: array[int],
        token_ids: list[int] | None,
        script: Script | None,
        engine: Any,
        now_s: float,
    ) -> None:
        sampling = message[_SP]
        self.message = message
        self.sampling = sampling
        self.rid: str = message[GENERATE["rid"]]
        self.prompt = prompt
        self.token_ids = token_ids
        self.stream: bool = message[GENERATE["stream"]]
        self.want_logprob: bool = message[GENERATE["return_logprob"]]
        self.logprob_start: int = message[GENERATE["logprob_start_len"]]
        self.top: int = message[GENERATE["top_logprobs_num"]]
        self.want_hidden = bool(message[GENERATE["return_hidden_states"]])
        self.arrived_s = now_s
        room = max(0, engine.context_len - len(prompt))
        wanted = sampling[_MAX_NEW]
        self.max_new: int = room if wanted is None else min(wanted, room)
        self.min_new: int = sampling[_MIN_NEW]
        eos = () if sampling[_IGNORE_EOS] else engine.eos_ids
        self.stop_ids = frozenset((*(sampling[_STOP_IDS] or ()), *eos))
        self.text_stops = bool(sampling[_STOPS] or sampling[_REGEXES])
        self.window = max(sampling[_STOP_LEN], sampling[_REGEX_LEN])
        self.faults: tuple[Fault, ...] = script.faults if script is not None else ()
        self.script_finish: dict[str, Any] = {"type": "stop", "matched": None}
        if script is not None and script.finish is not None:
            self.script_finish = script.finish
        frames = script.token_frames(engine.byte_table) if script is not None else None
        seed = sampling[_SEED]
        if seed is None:
            seed = zlib.crc32(prompt.tobytes(), engine.seed & 0xFFFFFFFF)
        self.source = IdSource(
            frames,
            script is not None and script.repeat,
            seed,
            engine.low_id,
            engine.high_id,
            engine.text_ids,
        )
        self.output: list[int] = []
        self.pending: list[int] = []
        self.frames = 0
        self.finish: dict[str, Any] | None = None
        self.aborted = False
        self.held_until_s = 0.0  # a fault holds its frames back; infinity: for ever
        self.first_row_sent = False

    def step(self, token_bytes: Sequence[bytes] | None) -> bool:
        """Make the next ids; True if a frame of this request is due."""
        if self.aborted:
            self.finish = ABORTED
            return True
        if self.max_new == 0:
            self.finish = {"type": "length", "length": 0}
            return True
        ids = self.source.take()
        if ids is None:
            self.finish = self.script_finish
            return True
        room = self.max_new - len(self.output)
        ids = ids[:room]
        kept = self._until_stop_id(ids)
        before = len(self.output)
        self.output += kept
        self.pending += kept
        text = ""
        matched = None
        if self.text_stops and kept and token_bytes is not None:
            text = self._window_text(len(kept), token_bytes)
            matched = self._text_stop(text)
        if matched is not None:
            self.finish = {"type": "stop", "matched": matched}
        elif kept and kept[-1] in self.stop_ids and before + len(kept) > self.min_new:
            self.finish = {"type": "stop", "matched": kept[-1]}
        elif len(self.output) >= self.max_new:
            self.finish = {"type": "length", "length": self.max_new}
        if self.finish is not None:
            return True
        return bool(self.pending) and self._due(text)

    def _until_stop_id(self, ids: list[int]) -> list[int]:
        if self.stop_ids:
            done = len(self.output)
            for k, token in enumerate(ids):
                if token in self.stop_ids and done + k + 1 > self.min_new:
                    return ids[: k + 1]
        return ids

    def _window_text(self, accepted: int, token_bytes: Sequence[bytes]) -> str:
        """The tail of the answer in which a stop may just have been completed."""
        tail = self.output[-(self.window + accepted) :]
        known = len(token_bytes)
        return b"".join([token_bytes[t] for t in tail if 0 <= t < known]).decode("utf-8", "replace")

    def _text_stop(self, text: str) -> str | None:
        """The first stop, in the request's order, that is in the text."""
        for stop in self.sampling[_STOPS]:
            if stop in text:
                return str(stop)
        for pattern in self.sampling[_REGEXES]:
            if re.search(pattern, text):
                return str(pattern)
        return None

    def _due(self, text: str) -> bool:
        """Whether a running request's ids go out now: never while they may become a stop."""
        if not self.stream:
            return False  # the engine flushes unary answers by its own interval
        # The first bytes of a character may be those of the stop's next one.
        whole = text.rstrip("\ufffd")
        for stop in self.sampling[_STOPS]:
            for size in range(min(len(stop), len(text)), 0, -1):
                if text.endswith(stop[:size]) or whole.endswith(stop[:size]):
                    return False
        interval = self.sampling[_INTERVAL] or 1
        return bool(len(self.output) % interval == 0 or len(self.pending) >= interval)
