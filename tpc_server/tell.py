"""Lines on standard error for people. Owner: any thread of any process of ours.

Standard library only and Python 3.9: `./tpc status` needs no environment.
"""

from __future__ import annotations

import sys


def tell(line: str) -> None:
    """One line in one write: another thread's, or process's, cannot come before its end."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)
