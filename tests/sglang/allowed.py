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


def _processed(body: Any, *difference: Any) -> bool:
    """Any difference, where a logit processor was asked for."""
    return "custom_logit_processor" in body


ALLOWED: tuple[Row, ...] = (
    Row(
        "empty-logprobs", ("rust",),
        "as Python: a list that was asked for is there when it is empty",
        _empty_family,
    ),
    Row(
        "processors", ("rust",),
        "as Python: logit processors are applied; Rust takes them and applies none",
        _processed,
    ),
)  # fmt: skip
# Tests of kits that SGLang's Python frontend passes and ours does not, and why.
KITS_NOT_YET: dict[str, str] = {
    "SpecSamplingMaskKit.test_sampling_mask": "`return_sampling_mask` is refused: the frames of the"
    " boundary have no column for it (SGLang's Rust server has none either)",
}
