"""Logprobs in OpenAI's two shapes. Owner: the detok core of the stream.

Entries are kept as numbers until they are shown. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..text.offsets import Offsets, characters, prompt_offsets
from . import native
from .logprobs import INPUT, OUTPUT, SLICE

Position = tuple[list[Any], list[int]] | None


class OpenAILogprobs:
    """Numbers of one stream that are not shown yet; same face as `LogprobBuffers`."""

    __slots__ = (
        "_texts", "echo", "ids", "offsets", "opened", "prompt_ids", "prompt_top", "prompt_values",
        "shown_chars", "top", "values",
    )  # fmt: skip

    def __init__(self, texts: Any) -> None:
        self._texts = texts  # texts, bytes and places of tokens: `stages.token_texts.TokenTexts`
        self.opened = False  # the families of the prompt have come
        self.values: list[Any] = []
        self.ids: list[int] = []
        self.top: list[Position] = []
        self.prompt_values: list[Any] = []
        self.prompt_ids: list[int] = []
        self.prompt_top: list[Position] = []
        self.echo = ""  # the prompt's text, in front of the stream's
        self.offsets: Offsets | None = None  # in the stream's text
        self.shown_chars = 0  # of the choice's text, in what was written

    def add_pairs(self, family: str, values: Sequence[Any], ids: Sequence[int]) -> None:
        """Entries of a flat family: one logprob (or None) and id per position."""
        if family == OUTPUT[0]:
            self.values += values
            self.ids += ids
        elif family == INPUT[0]:
            self.prompt_values += values
            self.prompt_ids += ids

    def add_positions(self, family: str, positions: Sequence[Any]) -> None:
        """Positions of a ragged family: (values, ids) per position, or None without data."""
        if family == OUTPUT[1]:
            self.top += positions
        elif family == INPUT[1]:
            self.prompt_top += positions

    def size(self) -> int:
        """About how many bytes wait to be shown."""
        return 64 * (len(self.values) + sum([len(p[1]) for p in self.top if p]))

    def shown(self) -> None:
        """What was there has been written."""
        for column in (
            self.values, self.ids, self.top, self.prompt_values, self.prompt_ids, self.prompt_top
        ):  # fmt: skip
            column.clear()

    def members(self) -> bytes:
        """Nothing of these is shown in a native meta_info."""
        return b""

    # -- chat --------------------------------------------------------------------------

    def chat(self) -> bytes:
        """`{"content":[…]}`; `null` where no token is new."""
        if not self.ids:
            return b"null"
        return b'{"content":%b}' % self._sliced(len(self.ids), self._entry)

    def _entry(self, k: int) -> dict[str, Any]:
        entry = self._token(self.values[k], self.ids[k])
        position = self.top[k] if k < len(self.top) else None
        entry["top_logprobs"] = (
            [self._token(v, i) for v, i in zip(*position, strict=True)] if position else []
        )
        return entry

    def _sliced(self, count: int, make: Callable[[int], Any]) -> bytes:
        """An array of what `make` gives; where it is long, the core says that it lives."""
        runs: list[bytes] = []
        for at in range(0, count, SLICE):
            if at:
                self._texts.setup.beat()
            runs.append(native.to_json(list(map(make, range(at, min(at + SLICE, count)))))[1:-1])
        return b"[%b]" % b",".join(runs)

    def _token(self, value: Any, token: int) -> dict[str, Any]:
        text = self._texts.text_of(token)
        raw = self._texts.bytes_of(token)
        if raw is None:
            raw = text.encode("utf-8", "replace")
        return {"token": text, "bytes": list(raw), "logprob": value}

    # -- text completions --------------------------------------------------------------

    def completion(self, stream: Any, with_prompt: bool) -> bytes:
        """Four parallel lists, the prompt's tokens first when `with_prompt`; `null` for none new.

        `text_offset` is where in the choice's text a token begins; where a stop is cut off, its
        tokens begin at the text's end.
        """
        self.shown_chars += characters(stream.text)
        if not self.ids and not (with_prompt and self.prompt_ids):
            return b"null"
        texts = self._texts
        ids, values, top = self.ids, self.values, self.top
        if self.offsets is None:
            self.offsets = texts.offsets_of(stream)
        add, echo = self.offsets.add, len(self.echo)
        offsets = [echo + add(token) for token in ids]
        if stream.finish is not None:
            end = self.shown_chars
            offsets = [min(at, end) for at in offsets]
        if with_prompt:
            before = texts.offsets_of(None)
            offsets = [
                *prompt_offsets(self.prompt_ids, self.echo, before, texts.text_of), *offsets
            ]  # fmt: skip
            ids = [*self.prompt_ids, *ids]
            values = [*self.prompt_values, *values]
            top = [*self.prompt_top, *top]
        lists = native.to_json(
            {
                "text_offset": offsets,
                "token_logprobs": values,
                "tokens": list(map(texts.label_of, ids)),
            }
        )
        alternatives = self._sliced(len(top), lambda k: self._alternatives(top[k]))
        return b'%b,"top_logprobs":%b}' % (lists[:-1], alternatives)

    def _alternatives(self, position: Position) -> dict[str, Any] | None:
        if position is None:
            return None
        values, ids = position
        return dict(zip(map(self._texts.label_of, ids), values, strict=True))
