"""Logprobs in OpenAI's two shapes. Owner: the detok core of the stream.

Entries are kept as numbers until they are shown. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import native
from .logprobs import INPUT, OUTPUT

Position = tuple[list[Any], list[int]] | None


class OpenAILogprobs:
    """Numbers of one stream that are not shown yet; same face as `LogprobBuffers`."""

    __slots__ = (
        "_bytes_of", "_text_of", "ids", "offset", "opened", "prompt_ids", "prompt_top",
        "prompt_values", "top", "values",
    )  # fmt: skip

    def __init__(
        self, text_of: Callable[[int], str], bytes_of: Callable[[int], bytes | None]
    ) -> None:
        self._text_of = text_of
        self._bytes_of = bytes_of
        self.opened = False  # the families of the prompt have come
        self.values: list[Any] = []
        self.ids: list[int] = []
        self.top: list[Position] = []
        self.prompt_values: list[Any] = []
        self.prompt_ids: list[int] = []
        self.prompt_top: list[Position] = []
        self.offset = 0  # characters of the tokens shown so far

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
        content: list[Any] = []
        for k, (value, token) in enumerate(zip(self.values, self.ids, strict=True)):
            entry = self._token(value, token)
            position = self.top[k] if k < len(self.top) else None
            entry["top_logprobs"] = (
                [self._token(v, i) for v, i in zip(*position, strict=True)] if position else []
            )
            content.append(entry)
        return native.to_json({"content": content})

    def _token(self, value: Any, token: int) -> dict[str, Any]:
        text = self._text_of(token)
        raw = self._bytes_of(token)
        if raw is None:
            raw = text.encode("utf-8", "replace")
        return {"token": text, "bytes": list(raw), "logprob": value}

    # -- text completions --------------------------------------------------------------

    def completion(self, with_prompt: bool) -> bytes:
        """Four parallel lists, the prompt's tokens first when `with_prompt`; `null` for none new.

        `text_offset` counts characters from the start of the text that the choice shows.
        """
        prompt = zip(self.prompt_values, self.prompt_ids, strict=True) if with_prompt else ()
        tokens: list[str] = []
        values: list[Any] = []
        offsets: list[int] = []
        for value, token in (*prompt, *zip(self.values, self.ids, strict=True)):
            text = self._text_of(token)
            tokens.append(text)
            values.append(value)
            offsets.append(self.offset)
            self.offset += len(text)
        if not tokens:
            return b"null"
        top = [*(self.prompt_top if with_prompt else ()), *self.top]
        return native.to_json(
            {
                "text_offset": offsets,
                "token_logprobs": values,
                "tokens": tokens,
                "top_logprobs": [self._alternatives(position) for position in top],
            }
        )

    def _alternatives(self, position: Position) -> dict[str, Any] | None:
        if position is None:
            return None
        text_of = self._text_of
        out: dict[str, Any] = {}
        for value, token in zip(*position, strict=True):
            out.setdefault(text_of(token), value)  # the likelier of two that look the same
        return out
