"""How many BLAS threads a step uses: all, or one where they do not get their CPUs. Owner: engine
thread.

OpenBLAS splits every product over its threads and waits for the last. Where another process takes
one of their CPUs, each of the 150 products of a step waits for a time slice: measured on two busy
cores, 1 token a second with two threads against 3 to 5 with one. So both are tried now and then, on
steps of the same shape, and the faster one stays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

_SETTERS: Final = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
#: Steps of each kind in one comparison, and how much faster the other kind must be to be taken.
_PAIRS: Final = 3
_GAIN: Final = 0.9
#: Steps until the next comparison: after a change, and at most.
_SOON: Final = 16
_LATEST: Final = 2048


def thread_setter() -> Callable[[int], None] | None:
    """The function of the loaded OpenBLAS that sets its number of threads, or None."""
    path = _loaded_openblas()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    for name in _SETTERS:
        found: Any = getattr(library, name, None)
        if found is not None:
            found.argtypes = [ctypes.c_int]
            found.restype = None
            return found  # type: ignore[no-any-return]
    return None


def _loaded_openblas() -> str | None:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")[2]
                if "openblas" in path.rpartition("/")[2]:
                    return "/" + path
    except OSError:
        pass
    return None


class ThreadGovernor:
    """Keeps the faster of `most` threads and one. Call `begin` before each step, `end` after it."""

    def __init__(self, most: int, set_count: Callable[[int], None]) -> None:
        self._most = most
        self._set_count = set_count
        self.preferred = most
        self._current = most
        self._wait = _SOON
        self._until_probe = 0  # the first steps are a comparison
        self.decided = False
        self._shape = 0
        self._times: list[float] = []
        set_count(most)

    def begin(self, shape: int) -> None:
        """A step of `shape` follows: the number of rows if all of them decode, else 0."""
        if self._until_probe > 0:
            self._until_probe -= 1
        if shape != self._shape:
            self._shape = shape
            self._times = []
        probing = shape > 0 and self._until_probe == 0
        # Preferred, other, preferred, other, …: a drift of the load meets both alike.
        use_other = probing and len(self._times) % 2 == 1
        self._use(self._other() if use_other else self.preferred)

    def end(self, seconds: float) -> None:
        """The step took this long."""
        if self._until_probe > 0 or not self._shape:
            return
        self._times.append(seconds)
        if len(self._times) == 2 * _PAIRS:
            self._decide(sum(self._times[::2]), sum(self._times[1::2]))
            self._times = []

    def _decide(self, preferred: float, other: float) -> None:
        self.decided = True
        if other < _GAIN * preferred:
            self.preferred = self._other()
            self._wait = _SOON
        else:
            self._wait = min(2 * self._wait, _LATEST)
        self._until_probe = self._wait

    def _other(self) -> int:
        return self._most if self.preferred == 1 else 1

    def _use(self, count: int) -> None:
        if count != self._current:
            self._current = count
            self._set_count(count)
