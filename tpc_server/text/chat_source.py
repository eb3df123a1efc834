"""Where a server's chat templates come from. Owner: the thread that starts the server.

In order: --chat-template; chat_template.jinja and its like in the model folder; the tokenizer's
configuration; the metadata of a GGUF file. What comes back is plain data, from which every core
builds its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .chat_prompt import ChatTemplateError

if TYPE_CHECKING:
    from .load import LoadedTokenizer

#: The name of the template that is used when no other is asked for.
DEFAULT: Final = "default"
_GGUF: Final = "tokenizer.chat_template"
#: Folders with one file per named template; the first is what transformers writes.
_FOLDERS: Final = ("additional_chat_templates", "chat_templates")


class ChatSource:
    """Templates by name, texts of the special tokens by role, default variables; plain data.

    `compiled` has the templates as `chat_template.compile_templates` made them.
    """

    __slots__ = ("compiled", "default_kwargs", "special_tokens", "templates")

    def __init__(
        self,
        templates: dict[str, str],
        special_tokens: dict[str, str],
        default_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.templates = templates
        self.special_tokens = special_tokens
        self.default_kwargs = default_kwargs or {}
        self.compiled: dict[str, tuple[bytes, str]] = {}


def chat_source(
    tokenizer: LoadedTokenizer, wanted: str | None, default_kwargs: str | None
) -> ChatSource | None:
    """The source for a server, or None where there is no template.

    `wanted` is --chat-template, `default_kwargs` JSON text. Raises ChatTemplateError.
    """
    templates = tokenizer.chat_templates
    if wanted:
        templates = choose(wanted, templates, Path(tokenizer.source).parent)
    if not templates:
        return None
    kwargs = json.loads(default_kwargs or "{}")
    source = ChatSource(templates, tokenizer.special_tokens, kwargs)
    from .chat_template import check_kwargs, compile_templates  # imports jinja2

    check_kwargs(kwargs)
    source.compiled = compile_templates(templates)
    return source


def folder_templates(folder: Path, config: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Templates of a model folder by name; those in files go before the configuration's."""
    found: dict[str, str] = {}
    for name in _FOLDERS:
        for path in sorted((folder / name).glob("*.jinja")):
            found.setdefault(path.stem, _read(path))
    main = folder / "chat_template.jinja"
    if main.is_file():
        return {DEFAULT: _read(main), **found}
    said = (config or {}).get("chat_template")
    legacy = folder / "chat_template.json"
    if said is None and legacy.is_file():
        said = _from_json(legacy)
    return {**named(said), **found}


def named(said: Any) -> dict[str, str]:
    """Templates out of a configuration's `chat_template`: a text, a list of named ones, a dict."""
    if isinstance(said, str):
        return {DEFAULT: said}
    if isinstance(said, list):
        said = {entry.get("name"): entry.get("template") for entry in said if type(entry) is dict}
    if not isinstance(said, Mapping):
        return {}
    return {str(k): v for k, v in said.items() if isinstance(v, str)}


def gguf_templates(meta: Mapping[str, Any]) -> dict[str, str]:
    """Templates in the metadata of a GGUF file."""
    found = {}
    for key, value in meta.items():
        if isinstance(value, str) and (key == _GGUF or key.startswith(_GGUF + ".")):
            found[key[len(_GGUF) + 1 :] or DEFAULT] = value
    return found


def choose(wanted: str, templates: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What --chat-template names: one of the model's templates, a file, or the template itself.

    Raises ChatTemplateError.
    """
    if wanted in templates:
        return {DEFAULT: templates[wanted]}
    if "{{" in wanted or "{%" in wanted:
        return {DEFAULT: wanted}
    names = [Path(wanted).expanduser(), folder / wanted, folder / f"{wanted}.jinja"]
    names += [folder / name / f"{wanted}.jinja" for name in _FOLDERS]
    for path in names:
        try:
            is_file = path.is_file()
        except (OSError, ValueError):
            continue  # too long for a name, or holding a NUL
        if is_file:
            return _given_file(path)
    of_model = ", ".join(sorted(templates)) or "none"
    raise ChatTemplateError(
        f"chat template {wanted!r} is neither a file (here or in {folder}), nor the name of one of"
        f" the model's templates ({of_model}), nor a Jinja template"
    )


def _given_file(path: Path) -> dict[str, str]:
    if path.suffix == ".json":
        found = named(_from_json(path))
        if not found:
            raise ChatTemplateError(f"chat template {path}: there is no `chat_template` in it")
        return found
    text = _read(path).strip("\n")
    # A template copied out of a JSON file is one line with its line breaks spelled out.
    return {DEFAULT: text if "\n" in text else text.replace("\\n", "\n")}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ChatTemplateError(f"chat template {path}: cannot be read: {error}") from None


def _from_json(path: Path) -> Any:
    try:
        data = json.loads(_read(path))
    except ValueError as error:
        raise ChatTemplateError(f"chat template {path}: not JSON: {error}") from None
    return data.get("chat_template") if isinstance(data, dict) else None
