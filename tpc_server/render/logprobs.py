"""Logprob families of one stream as JSON members. Owner: the detok core of the stream.

Standard library only. Each family is a growing run of rendered JSON, so that a cumulative
frame copies it and renders only the new entries. Families of the prompt come once and stay;
families of the output are cut after each frame when a stream is incremental.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from . import native

OUTPUT: Final = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
INPUT: Final = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")

SLICE: Final = 64  # positions: some milliseconds with a thousand alternatives each

Entry = list[Any]  # [logprob or None, token id, text or None]


class LogprobBuffers:
    """Rendered entries by family name, without the enclosing brackets."""

    __slots__ = ("_beat", "_families", "_text_of", "count", "opened")

    def __init__(self, text_of: Callable[[int], str] | None, beat: Callable[[], None]) -> None:
        self._beat = beat  # says in the middle of something long that the core lives
        self._families: dict[str, bytearray] = {}
        self._text_of = text_of  # None: no text in the entries
        self.count = 0  # entries of output_token_logprobs
        self.opened = False  # the families of the prompt have come

    def add_pairs(self, family: str, values: Sequence[Any], ids: Sequence[int]) -> None:
        """Entries of a flat family: one logprob (or None) and id per position."""
        self._append(family, self._entries(values, ids))
        if family == OUTPUT[0]:
            self.count += len(ids)

    def add_positions(self, family: str, positions: Sequence[Any]) -> None:
        """Positions of a ragged family: (values, ids) per position, or None without data."""
        if len(positions) <= SLICE:
            self._append(family, self._alternatives(positions))
            return
        for at in range(0, len(positions), SLICE):
            self._beat()
            self._append(family, self._alternatives(positions[at : at + SLICE]))

    def members(self) -> native.Parts:
        """All families as object members, each after a comma; the runs themselves, no copies."""
        parts: native.Parts = []
        for name, run in self._families.items():
            parts += (b',"%b":[' % name.encode(), run, b"]")
        if OUTPUT[0] in self._families:
            parts.append(b',"output_token_logprobs_length":%d' % self.count)
        return parts

    def size(self) -> int:
        """Bytes held."""
        return sum([len(run) for run in self._families.values()])

    def shown(self) -> None:
        """Incremental streams: the output entries have been written."""
        for name in OUTPUT:
            run = self._families.get(name)
            if run is not None:
                run.clear()
        self.count = 0

    def _alternatives(self, positions: Sequence[Any]) -> list[list[Entry] | None]:
        return [None if p is None or not p[1] else self._entries(p[0], p[1]) for p in positions]

    def _entries(self, values: Sequence[Any], ids: Sequence[int]) -> list[Entry]:
        text_of = self._text_of
        if text_of is None:
            return [[v, i, None] for v, i in zip(values, ids, strict=True)]
        return [[v, i, text_of(i)] for v, i in zip(values, ids, strict=True)]

    def _append(self, family: str, rows: list[Any]) -> None:
        run = self._families.setdefault(family, bytearray())
        if rows:
            if run:
                run += b","
            run += native.to_json(rows)[1:-1]
