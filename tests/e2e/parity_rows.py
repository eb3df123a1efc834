"""What a row of the table of differences is. Owner: constants."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.parity_replay import MISSING

RECORDED = "recorded answers"
RUST, PYTHON = "rust", "python"


@dataclass(frozen=True)
class Allowed:
    """Differences from one frontend's answers: request names and JSON paths (regular
    expressions over the whole), and what the two values must be like."""

    side: str
    names: str
    path: str
    holds: Callable[[Any, Any], bool]  # (ours, theirs)

    def covers(self, side: str, name: str, path: str, ours: Any, theirs: Any) -> bool:
        return (
            side == self.side
            and re.fullmatch(self.names, name) is not None
            and re.fullmatch(self.path, path) is not None
            and self.holds(ours, theirs)
        )


@dataclass(frozen=True)
class Choice:
    """One row of the table."""

    key: str
    what: str
    rust: str
    python: str
    ours: str
    why: str
    proof: str = RECORDED
    allowed: tuple[Allowed, ...] = ()


def only_ours(ours: Any, theirs: Any) -> bool:
    return bool(theirs == MISSING and ours != MISSING)


def only_theirs(ours: Any, theirs: Any) -> bool:
    return bool(ours == MISSING and theirs != MISSING)
