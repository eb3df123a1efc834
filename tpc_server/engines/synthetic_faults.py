"""What the synthetic engine does wrong when it is told to. Owner: the engine's thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..boundary import codec
from .synthetic_script import Fault, ScriptError

if TYPE_CHECKING:
    from .synthetic import Stopping, SyntheticEngine
    from .synthetic_request import SyntheticRequest

__all__ = ["FrameFaults"]

_SCRIPT_ONLY: Final = ("out_of_vocabulary", "error", "abort")
_NAP_S: Final = 0.05
_PLAIN: Final = 6  # columns of a header without extras
_TO_HIDDEN: Final = 16  # columns before the hidden states' two


class FrameFaults:
    """Sends frames, broken as told. `faults` are the engine-wide ones, counted in frames."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if fault.kind in _SCRIPT_ONLY:
                raise ScriptError(f"fault {fault.kind!r} belongs in a script: it is one request's")
        self._faults = tuple(faults)
        self._count = 0
        self._pack = codec.make_packer()

    def send(
        self, engine: SyntheticEngine, header: bytes, data: list[bytes], stopping: Stopping
    ) -> bool:
        """A frame of many rows. False when the server is gone."""
        count = self._count
        self._count += 1
        hits = [fault for fault in self._faults if fault.hits(count)]
        return self._send(engine, header, data, hits, stopping)

    def send_alone(
        self, engine: SyntheticEngine, request: SyntheticRequest, stopping: Stopping
    ) -> bool:
        """A frame of one scripted request's row. False when the server is gone."""
        hits: list[Fault] = []
        if not request.aborted:  # its end is always told
            hits = [fault for fault in request.faults if fault.hits(request.frames)]
        for fault in hits:
            if fault.kind == "error":
                request.finish = {"type": "abort", "message": fault.text}
                return bool(engine._server.push_error(request.rid, fault.text))
            if fault.kind == "abort":
                request.finish = {
                    "type": "abort", "message": fault.text, "status_code": fault.status,
                    "err_type": None,
                }  # fmt: skip
            elif fault.kind == "out_of_vocabulary":
                request.pending = [engine.settings.vocab_size + t for t in request.pending]
            elif fault.kind == "late" or fault.kind == "silence":
                # Its ids pile up until then, and come in one frame; other requests go on.
                seconds = fault.ms / 1e3 if fault.ms else float("inf")
                request.held_until_s = time.monotonic() + seconds
                request.frames += 1  # this fault has happened
                return True
        header, data = engine._frame([request])
        return self._send(engine, header, data, hits, stopping)

    def _send(
        self,
        engine: SyntheticEngine,
        header: bytes,
        data: list[bytes],
        hits: list[Fault],
        stopping: Stopping,
    ) -> bool:
        times = 1
        for fault in hits:
            kind = fault.kind
            if kind == "late" or kind == "silence":
                _nap(fault.ms / 1e3 if fault.ms else float("inf"), stopping)
            elif kind == "malformed":
                data = [*data, b"\0"]  # more data than the header describes
            elif kind == "cut":
                header = header[: len(header) - 1]
            elif kind == "garbage":
                header = b"\xc1" + header
            elif kind == "duplicate":
                times = 2
            elif kind == "unknown_rids":
                if not engine._push(*self._strangers(fault.size)):
                    return False
            elif kind == "giant_hidden":
                header, data = self._giant(header, data, fault.size)
        alive = True
        for _ in range(times):
            alive = alive and engine._push(header, data)
        return alive

    def _strangers(self, rows: int) -> tuple[bytes, list[bytes]]:
        """A well-formed frame of rows that no request belongs to."""
        rids = [f"stranger-{k}#{k:016x}" for k in range(rows)]
        columns: list[Any] = [rids, [None] * rows, [1] * rows, [1] * rows, [0] * rows, [0] * rows]
        return self._pack(columns), [bytes(8 * rows)]

    def _giant(self, header: bytes, data: list[bytes], size: int) -> tuple[bytes, list[bytes]]:
        """The frame with `size` floats of hidden states on its first row."""
        columns = codec.unpack(header)
        rows = len(columns[0])
        columns += [[] for _ in range(_TO_HIDDEN + 2 - len(columns))]
        if len(data) > 1:
            data = data[:-1]  # the frame's own hidden states, the last column
        columns[_TO_HIDDEN] = [1] + [0] * (rows - 1)
        columns[_TO_HIDDEN + 1] = [size]
        return self._pack(columns), [*data, bytes(4 * size)]


def _nap(seconds: float, stopping: Stopping) -> None:
    """Sleep, in pieces short enough that the engine can be stopped."""
    end = time.monotonic() + seconds
    while not stopping.is_set():
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _NAP_S))
