"""Where answers to the generated requests may differ from a recorded frontend's. Owner: constants.

As the table of tests/e2e/parity_choices.py, whose reasons these are too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One kind of difference: of which frontends, and what it looks like."""

    key: str
    sides: tuple[str, ...]
    why: str
    test: Callable[..., bool]

    def covers(self, side: str, *difference: Any) -> bool:
        """Whether this row allows it: (body, path, ours, theirs, our answer, their answer)."""
        return side in self.sides and self.test(*difference)


ALLOWED: tuple[Row, ...] = ()
# Kits with tests that SGLang's Python frontend passes and ours does not, and why.
KITS_NOT_YET: dict[str, str] = {
    "AnthropicMessagesMixin": "`/v1/messages` and its `/count_tokens` are not served",
}
