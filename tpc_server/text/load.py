"""Finds and reads a model's tokenizer. Owner: the thread that starts the server.

From a folder, a tokenizer.json, a GGUF file, or a hub id that is in the local Hugging Face cache;
nothing is ever fetched. What comes back is plain data, from which every core builds its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tpc_server.text.bounds import chars_per_token
from tpc_server.text.chat_source import DEFAULT, folder_templates, gguf_templates
from tpc_server.text.gguf_meta import GgufError, read_metadata
from tpc_server.text.gguf_vocab import VocabError, bos_eos, tokenizer_json
from tpc_server.text.hub_cache import cached_snapshot
from tpc_server.text.pieces import PieceTable, compile_pieces, token_strings

#: Tokenizer classes of Hugging Face transformers that put BOS and EOS themselves, by two settings,
#: whatever post-processor the tokenizer.json has (SGLang runs these classes).
_SETS_BOS: Final = frozenset(("Llama", "CodeLlama", "Gemma", "Cohere"))
_ROLES: Final = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"),
    "mask_token",
)
#: Larger values in ``model_max_length`` mean that no length was set.
_NO_LENGTH: Final = 1 << 40


class TokenizerError(ValueError):
    """No usable tokenizer; the text says what was looked at and why it did not do."""


class LoadedTokenizer:
    """A tokenizer as plain data.

    ``json_text``: a tokenizer.json for ``Encoder``. ``pieces``: what each id emits, or ``None``
    when the decoder does not compile (``WindowedDetok`` then). ``add_bos``: whether encoding a
    plain text puts the BOS in front. ``chat_templates``: Jinja sources by name;
    ``special_tokens``: texts by role (``bos_token`` …), which they use. ``source``: the file it
    came from.
    """

    __slots__ = (
        "add_bos",
        "bos_id",
        "chat_templates",
        "eos_ids",
        "json_text",
        "model_max_length",
        "pieces",
        "source",
        "special_tokens",
        "token_chars",
        "vocab_size",
    )

    def __init__(
        self,
        json_text: str,
        pieces: PieceTable | None,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        add_bos: bool,
        vocab_size: int,
        chat_templates: dict[str, str],
        model_max_length: int | None,
        special_tokens: dict[str, str],
        source: str,
        token_chars: int | None = None,
    ) -> None:
        self.json_text = json_text
        self.pieces = pieces
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        self.add_bos = add_bos
        self.vocab_size = vocab_size
        self.chat_templates = chat_templates
        self.model_max_length = model_max_length
        self.special_tokens = special_tokens
        self.source = source
        self.token_chars = token_chars

    @property
    def chat_template(self) -> str | None:
        """The template that is used when no other is asked for."""
        return self.chat_templates.get(DEFAULT)


def load_tokenizer(path_or_id: str, revision: str | None = None) -> LoadedTokenizer:
    """The tokenizer at a path or of a cached hub id; raises ``TokenizerError``.

    ``revision`` (branch, tag or commit) counts for hub ids only.
    """
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        if path.suffix == ".gguf":
            return _from_gguf(path)
        if path.suffix == ".json":
            return _from_json(path)
        raise TokenizerError(f"{path}: neither a .gguf nor a .json file")
    if path.suffix in (".gguf", ".json") or path_or_id.startswith(("/", "./", "../", "~")):
        raise TokenizerError(f"{path_or_id}: no such file or folder")
    snapshot, tried = cached_snapshot(path_or_id, revision or "main")
    if snapshot is None:
        where = "; ".join(tried)
        raise TokenizerError(
            f"{path_or_id}: no such file or folder, nor in the local Hugging Face cache ({where})"
        )
    return _from_folder(snapshot)


def _from_folder(folder: Path) -> LoadedTokenizer:
    path = folder / "tokenizer.json"
    if path.is_file():
        return _from_json(path)
    models = sorted(p for p in folder.glob("*.gguf") if not p.name.startswith("mmproj"))
    if models:
        loaded = _from_gguf(models[0])
        # A template that somebody laid beside the model goes before the one inside.
        loaded.chat_templates = folder_templates(folder) or loaded.chat_templates
        return loaded
    found = [
        name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / name).exists()
    ]
    also = f" (there is {', '.join(found)}, which is not enough)" if found else ""
    raise TokenizerError(f"{folder}: neither a tokenizer.json nor a .gguf file in it{also}")


def _read_json(path: Path, required: bool) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise TokenizerError(f"{path}: no such file") from None
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return data


def _from_json(path: Path) -> LoadedTokenizer:
    data = _read_json(path, required=True)
    folder = path.parent
    config = _read_json(folder / "tokenizer_config.json", required=False)
    if not isinstance(data.get("model"), dict):
        raise TokenizerError(f"{path}: not a tokenizer.json (it has no model)")
    try:
        tokens, _ = token_strings(data)
        pieces = compile_pieces(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TokenizerError(f"{path}: damaged tokenizer.json: {error!r}") from None
    ids = {text: index for index, text in tokens.items()}
    special = _special_tokens(folder, config)
    bos = special.get("bos_token")
    _apply_bos_rule(data, config, ids, special)
    # Lengths are checked elsewhere; a cut or padded prompt would be a wrong one.
    data["truncation"] = data["padding"] = None
    length = config.get("model_max_length")
    return LoadedTokenizer(
        json_text=json.dumps(data, ensure_ascii=False),
        pieces=pieces,
        bos_id=ids.get(bos) if bos is not None else None,
        eos_ids=_eos_ids(folder, ids.get(special.get("eos_token", ""))),
        add_bos=bos is not None and _adds(data.get("post_processor"), bos),
        vocab_size=max(tokens, default=-1) + 1,
        chat_templates=folder_templates(folder, config),
        model_max_length=int(length) if length is not None and length < _NO_LENGTH else None,
        special_tokens=special,
        source=str(path),
        token_chars=chars_per_token(data),
    )


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    special: dict[str, str] = {}
    # What the configuration says counts, a null too; the older file fills the rest.
    said = {**_read_json(folder / "special_tokens_map.json", required=False), **config}
    more = said.get("extra_special_tokens")  # by name: `image_token` and the like
    for role, token in {**(more if isinstance(more, dict) else {}), **said}.items():
        if role not in _ROLES and not (isinstance(more, dict) and role in more):
            continue
        if isinstance(token, Mapping):
            token = token.get("content")
        if isinstance(token, str):
            special[role] = token
    return special


def _eos_ids(folder: Path, of_tokenizer: int | None) -> tuple[int, ...]:
    """Ids that end a text: the generation config's, the model config's, the tokenizer's."""
    ends: list[int] = []
    for name in ("generation_config.json", "config.json"):
        said = _read_json(folder / name, required=False).get("eos_token_id")
        for end in said if isinstance(said, list) else [said]:
            if isinstance(end, int) and end not in ends:
                ends.append(end)
    if of_tokenizer is not None and of_tokenizer not in ends:
        ends.append(of_tokenizer)
    return tuple(ends)


def _apply_bos_rule(
    data: dict[str, Any],
    config: Mapping[str, Any],
    ids: Mapping[str, int],
    special: Mapping[str, str],
) -> None:
    """Replaces the post-processor where the tokenizer's class would."""
    name = str(config.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer")
    if name not in _SETS_BOS:
        return
    single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    pair: list[dict[str, Any]] = [{"Sequence": {"id": "B", "type_id": 1}}]
    used: dict[str, Any] = {}
    for role, at_start, default in (("bos", True, True), ("eos", False, False)):
        if not config.get(f"add_{role}_token", default):
            continue
        token = special.get(f"{role}_token")
        if token is None or token not in ids:
            raise TokenizerError(f"add_{role}_token is set, but there is no {role}_token")
        used[token] = {"id": token, "ids": [ids[token]], "tokens": [token]}
        place = 0 if at_start else len(single)
        single.insert(place, {"SpecialToken": {"id": token, "type_id": 0}})
        pair.insert(place, {"SpecialToken": {"id": token, "type_id": 1}})
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single + pair,
        "special_tokens": used,
    }


def _adds(processor: Any, token: str) -> bool:
    """Whether this post-processor puts ``token`` in front of a single text."""
    if not isinstance(processor, Mapping):
        return False
    if processor.get("type") == "Sequence":
        return any(_adds(inner, token) for inner in processor.get("processors", ()))
    if processor.get("type") != "TemplateProcessing" or not processor.get("single"):
        return False
    return bool(processor["single"][0].get("SpecialToken", {}).get("id") == token)


def _from_gguf(path: Path) -> LoadedTokenizer:
    try:
        meta = read_metadata(path)
        data = tokenizer_json(meta)
        bos_id, ends, add_bos, _ = bos_eos(meta)
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from None
    except GgufError as error:
        raise TokenizerError(str(error)) from None
    except VocabError as error:
        raise TokenizerError(f"{path}: {error}") from None
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    special: dict[str, str] = {}
    for role, key in (
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("sep_token", "seperator_token_id"),
        ("pad_token", "padding_token_id"),
        ("cls_token", "cls_token_id"),
        ("mask_token", "mask_token_id"),
    ):
        index = meta.get(f"tokenizer.ggml.{key}")
        if index is not None and 0 <= index < len(tokens):
            special[role] = tokens[index]
    length = meta.get(f"{meta.get('general.architecture')}.context_length")
    return LoadedTokenizer(
        json_text=json.dumps(data, ensure_ascii=False),
        pieces=compile_pieces(data),
        bos_id=bos_id,
        eos_ids=tuple(ends),
        add_bos=add_bos,
        vocab_size=len(tokens),
        chat_templates=gguf_templates(meta),
        model_max_length=int(length) if length is not None else None,
        special_tokens=special,
        source=str(path),
        token_chars=chars_per_token(data),
    )
