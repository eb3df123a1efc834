"""BLAS threads and their CPUs, settled before numpy is imported. Owner: the main thread.

OpenBLAS makes its threads when it is loaded and they inherit the mask of the importing thread, so
both must be right at that moment; neither can be put right afterwards. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

#: An idle BLAS thread asks for work for 2^20 cycles (0.4 ms) before it sleeps, not for 2^26: the
#: gaps inside a step are shorter, and beyond them it would only take CPU from the I/O cores.
_IDLE_NAME, _IDLE = "OPENBLAS_THREAD_TIMEOUT", "20"
_COUNT_NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def prepare_blas(cpus: Sequence[int] | None) -> bool:
    """Import numpy with one BLAS thread per CPU of `cpus`, kept on those CPUs.

    None leaves the mask alone and the count to the library. A count already in the environment is
    the user's wish and stays. False when numpy was imported before: then nothing was settled.
    """
    if "numpy" in sys.modules:
        return False
    if cpus:
        for name in _COUNT_NAMES:
            os.environ.setdefault(name, str(len(set(cpus))))
        os.environ.setdefault(_IDLE_NAME, _IDLE)
    allowed = _narrow(cpus)
    try:
        import numpy  # noqa: F401  (loading it is the point)
    finally:
        if allowed is not None:
            os.sched_setaffinity(0, allowed)
    return True


def _narrow(cpus: Sequence[int] | None) -> set[int] | None:
    """Put the calling thread on `cpus`; its mask before, or None where nothing was changed."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return None
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, set(cpus))
    except OSError:  # a CPU that this process may not use: better unpinned than not at all
        return None
    return before
