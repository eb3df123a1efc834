"""Scripts of the synthetic engine: what to emit for whom, and what to break. Owner: engine.

A documented interface (docs/SYNTHETIC.md): built in Python, or read from JSON with `load_script`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["FAULTS", "Fault", "Script", "ScriptError", "byte_ids", "load_script", "parse_script"]

FAULTS: Final = (
    "late",
    "silence",
    "malformed",
    "cut",
    "garbage",
    "duplicate",
    "unknown_rids",
    "giant_hidden",
    "out_of_vocabulary",
    "error",
    "abort",
)
_KINDS: Final = ", ".join(FAULTS)


class ScriptError(ValueError):
    """A script that cannot be used; the text names the place in it."""


class Fault:
    """Something to go wrong.

    kind   one of FAULTS
    at     the frame it happens to: of the request (in a Script) or of the engine (step count)
    every  instead of `at`: every so many frames
    ms     how long (late, silence; 0 with silence: for ever)
    size   how much: float values (giant_hidden), rows (unknown_rids)
    text   message (error, abort)
    status HTTP status of the abort, or None
    """

    __slots__ = ("at", "every", "kind", "ms", "size", "status", "text")

    def __init__(
        self,
        kind: str,
        at: int = 0,
        every: int = 0,
        ms: float = 0.0,
        size: int = 1,
        text: str = "scripted fault",
        status: int | None = None,
    ) -> None:
        if kind not in FAULTS:
            raise ScriptError(f"unknown fault {kind!r}, expected one of {_KINDS}")
        self.kind = kind
        self.at = at
        self.every = every
        self.ms = ms
        self.size = size
        self.text = text
        self.status = status

    def hits(self, count: int) -> bool:
        """Whether it happens to frame number `count` (from 0)."""
        if self.every:
            return count > 0 and count % self.every == 0
        return count == self.at


class Script:
    """What to answer to requests that match.

    rid         the request's id starts with this (None: any)
    prompt      the prompt is this text, or these token ids (None: any)
    frames      one entry a step: token ids, or text or bytes (one token a byte); None: the
                engine's own ids
    finish      the finish reason after the last frame; None: `{"type": "stop", "matched": null}`
    repeat      start over after the last frame, until a stop rule of the request ends it
    times       how many requests may use it (None: any number)
    faults      what goes wrong, counted in this request's frames
    """

    __slots__ = ("faults", "finish", "frames", "prompt", "repeat", "rid", "times")

    def __init__(
        self,
        rid: str | None = None,
        prompt: str | Sequence[int] | None = None,
        frames: Sequence[Sequence[int] | str | bytes] | None = None,
        finish: dict[str, Any] | None = None,
        repeat: bool = False,
        times: int | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.rid = rid
        self.prompt = list(prompt) if prompt is not None and type(prompt) is not str else prompt
        self.frames = frames
        self.finish = finish
        self.repeat = repeat
        self.times = times
        self.faults = tuple(faults)

    def matches(self, rid: str, text: Any, ids: Sequence[int]) -> bool:
        """Whether a request is meant. `rid` may carry a suffix of the frontend's."""
        if self.rid is not None and not rid.startswith(self.rid):
            return False
        if self.prompt is None:
            return True
        if type(self.prompt) is str:
            return bool(text == self.prompt)
        return self.prompt == list(ids)

    def token_frames(self, table: Sequence[int] | None) -> list[list[int]] | None:
        """The frames as token ids; `table` is `byte_ids` of the tokenizer."""
        if self.frames is None:
            return None
        return [_tokens(frame, table) for frame in self.frames]


def _tokens(frame: Sequence[int] | str | bytes, table: Sequence[int] | None) -> list[int]:
    if isinstance(frame, str):
        frame = frame.encode()
    if isinstance(frame, bytes):
        if table is None:
            raise ScriptError("a frame of text needs a tokenizer that has a token for every byte")
        return [table[byte] for byte in frame]
    return list(frame)


def byte_ids(token_bytes: Sequence[bytes] | None) -> list[int] | None:
    """The id of each single byte, or None if some byte has no token of its own."""
    if token_bytes is None:
        return None
    found: dict[int, int] = {}
    for token, piece in enumerate(token_bytes):
        if len(piece) == 1:
            found.setdefault(piece[0], token)
    return [found[byte] for byte in range(256)] if len(found) == 256 else None


_SCRIPT_KEYS: Final = ("rid", "prompt", "prompt_ids", "frames", "finish", "repeat", "times",
                       "faults")  # fmt: skip
_FAULT_KEYS: Final = ("kind", "at", "every", "ms", "size", "text", "status")


def load_script(path: str | Path) -> tuple[list[Script], list[Fault]]:
    """Scripts and engine-wide faults of a JSON file. Raises ScriptError."""
    try:
        value = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ScriptError(f"{path}: {error}") from None
    try:
        return parse_script(value)
    except ScriptError as error:
        raise ScriptError(f"{path}: {error}") from None


def parse_script(value: Any) -> tuple[list[Script], list[Fault]]:
    """The same from parsed JSON: `{"scripts": […], "faults": […]}`. Raises ScriptError."""
    body = _object(value, "the script", ("scripts", "faults"))
    scripts = [
        _script(entry, f"scripts[{k}]")
        for k, entry in enumerate(_list(body.get("scripts", []), "scripts"))
    ]
    return scripts, _faults(body.get("faults", []), "faults")


def _script(value: Any, where: str) -> Script:
    body = _object(value, where, _SCRIPT_KEYS)
    if "prompt" in body and "prompt_ids" in body:
        raise ScriptError(f"{where} has both prompt and prompt_ids")
    frames = body.get("frames")
    if frames is not None:
        frames = [
            _frame(entry, f"{where}.frames[{k}]")
            for k, entry in enumerate(_list(frames, f"{where}.frames"))
        ]
    finish = body.get("finish")
    if finish is not None and not isinstance(finish, dict):
        raise ScriptError(f"{where}.finish is not an object")
    prompt = _typed(body, "prompt", str, None, where)
    if "prompt_ids" in body:
        prompt = _ids(body["prompt_ids"], f"{where}.prompt_ids")
    return Script(
        rid=_typed(body, "rid", str, None, where),
        prompt=prompt,
        frames=frames,
        finish=finish,
        repeat=_typed(body, "repeat", bool, False, where),
        times=_typed(body, "times", int, None, where),
        faults=_faults(body.get("faults", []), f"{where}.faults"),
    )


def _frame(value: Any, where: str) -> list[int] | str | bytes:
    """A list of ids, a text, or `{"hex": "f09f"}`."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        body = _object(value, where, ("hex",))
        try:
            return bytes.fromhex(body.get("hex", ""))
        except (TypeError, ValueError):
            raise ScriptError(f"{where}.hex is not hexadecimal") from None
    return _ids(value, where)


def _ids(value: Any, where: str) -> list[int]:
    ids = _list(value, where)
    for entry in ids:
        if type(entry) is not int:
            raise ScriptError(f"{where} holds something other than token ids")
    return ids


def _faults(value: Any, where: str) -> list[Fault]:
    out: list[Fault] = []
    for k, entry in enumerate(_list(value, where)):
        place = f"{where}[{k}]"
        body = _object(entry, place, _FAULT_KEYS)
        if "kind" not in body:
            raise ScriptError(f"{place} has no kind")
        kind = _typed(body, "kind", str, "", place)
        if kind not in FAULTS:
            raise ScriptError(f"{place}: unknown fault {kind!r}, expected one of {_KINDS}")
        out.append(
            Fault(
                kind,
                at=_typed(body, "at", int, 0, place),
                every=_typed(body, "every", int, 0, place),
                ms=float(_typed(body, "ms", (int, float), 0, place)),
                size=_typed(body, "size", int, 1, place),
                text=_typed(body, "text", str, "scripted fault", place),
                status=_typed(body, "status", int, None, place),
            )
        )
    return out


def _object(value: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScriptError(f"{where} is not an object")
    for key in value:
        if key not in keys:
            raise ScriptError(f"{where} has no field {key!r}, expected one of {', '.join(keys)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ScriptError(f"{where} is not a list")
    return value


def _typed(body: dict[str, Any], key: str, kind: Any, default: Any, where: str) -> Any:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ScriptError(f"{where}.{key} is not of its type")
    return value
