"""Where answers to the generated requests may differ from a recorded frontend's. Owner: constants.

As the table of tests/e2e/parity_choices.py, whose reasons these are too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.e2e.parity_replay import MISSING


class Row(NamedTuple):
    """One kind of difference: of which frontends, and what it looks like."""

    key: str
    sides: tuple[str, ...]
    why: str
    test: Callable[..., bool]

    def covers(self, side: str, *difference: Any) -> bool:
        """Whether this row allows it: (body, path, ours, theirs, our answer, their answer)."""
        return side in self.sides and self.test(*difference)


def _empty_family(body: Any, path: str, ours: Any, theirs: Any, *answers: Any) -> bool:
    """A list of logprobs that was asked for and has no entry."""
    return ours == [] and theirs == MISSING and path.endswith("_logprobs")


ALLOWED: tuple[Row, ...] = (
    Row(
        "empty-logprobs", ("rust",),
        "as Python: a list that was asked for is there when it is empty",
        _empty_family,
    ),
)  # fmt: skip
# Kits with tests that SGLang's Python frontend passes and ours does not, and why.
KITS_NOT_YET: dict[str, str] = {}
