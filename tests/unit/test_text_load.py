"""Where tokenizers come from, and what is said when there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import text_samples as samples
from tests.gguf_files import gguf_bytes
from tpc_server.text.encode import Encoder
from tpc_server.text.hub_cache import cached_snapshot, hub_folders
from tpc_server.text.load import TokenizerError, load_tokenizer


def write(folder: Path, **files: Any) -> Path:
    """JSON files by name, dots written as double underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        text = data if isinstance(data, str) else json.dumps(data)
        (folder / name.replace("__", ".")).write_text(text, "utf-8")
    return folder


CONFIG = {
    "bos_token": {"content": "<s>"},
    "eos_token": "</s>",
    "model_max_length": 4096,
    "chat_template": "{{ messages }}",
}


def small_gguf() -> bytes:
    tokens = [*samples.ALPHABET, "he", "<|end|>"]
    return gguf_bytes(
        {
            "general.architecture": (8, "llama"),
            "llama.context_length": (4, 2048),
            "tokenizer.ggml.model": (8, "gpt2"),
            "tokenizer.ggml.pre": (8, "gpt-2"),
            "tokenizer.ggml.tokens": (9, 8, tokens),
            "tokenizer.ggml.token_type": (9, 5, [1] * 257 + [3]),
            "tokenizer.ggml.merges": (9, 8, ["h e"]),
            "tokenizer.ggml.eos_token_id": (4, 257),
            "tokenizer.ggml.bos_token_id": (4, 257),
            "tokenizer.ggml.add_bos_token": (7, True),
            "tokenizer.chat_template": (8, "{{ x }}"),
        }
    )


def test_a_folder(tmp_path):
    folder = write(
        tmp_path, tokenizer__json=samples.byte_level_dict(), tokenizer_config__json=CONFIG
    )
    loaded = load_tokenizer(str(folder))
    size = samples.tokenizer(samples.byte_level_dict()).get_vocab_size()
    assert loaded.vocab_size == size
    assert loaded.pieces is not None
    assert loaded.pieces.vocab_size == size
    assert (loaded.bos_id, loaded.eos_ids, loaded.add_bos) == (size - 4, (size - 3,), False)
    assert loaded.model_max_length == 4096
    assert loaded.chat_template == "{{ messages }}"
    assert loaded.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert loaded.source == str(folder / "tokenizer.json")
    assert Encoder(loaded.json_text).encode("ab") == [97, 98]


def test_a_file_alone(tmp_path):
    folder = write(tmp_path, tokenizer__json=samples.byte_level_dict())
    loaded = load_tokenizer(str(folder / "tokenizer.json"))
    assert (loaded.bos_id, loaded.eos_ids, loaded.chat_template) == (None, (), None)
    assert loaded.model_max_length is None


def test_truncation_and_padding_of_the_file_are_dropped(tmp_path):
    data = samples.byte_level_dict()
    data["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    folder = write(tmp_path, tokenizer__json=data)
    assert Encoder(load_tokenizer(str(folder)).json_text).encode("abc") == [97, 98, 99]


def test_a_decoder_that_does_not_compile_leaves_no_pieces(tmp_path):
    folder = write(tmp_path, tokenizer__json=samples.suffix_dict())
    loaded = load_tokenizer(str(folder))
    assert loaded.pieces is None
    assert loaded.vocab_size == 9


def test_ends_of_text_are_collected(tmp_path):
    folder = write(
        tmp_path,
        tokenizer__json=samples.byte_level_dict(),
        tokenizer_config__json=CONFIG,
        generation_config__json={"eos_token_id": [7, 9]},
        config__json={"eos_token_id": 9},
    )
    loaded = load_tokenizer(str(folder))
    assert loaded.eos_ids == (7, 9, loaded.vocab_size - 3)


@pytest.mark.parametrize(
    ("config", "jinja", "found"),
    [
        ({"chat_template": [{"name": "x", "template": "X"}, {"name": "default", "template": "D"}]},
         None, "D"),
        ({"chat_template": [{"name": "x", "template": "X"}]}, None, None),
        ({"chat_template": "C"}, "J", "J"),
        ({}, None, None),
        ({"model_max_length": 1e30}, None, None),
    ],
)  # fmt: skip
def test_chat_templates(tmp_path, config, jinja, found):
    files = {"tokenizer__json": samples.byte_level_dict(), "tokenizer_config__json": config}
    if jinja is not None:
        files["chat_template__jinja"] = jinja
    loaded = load_tokenizer(str(write(tmp_path, **files)))
    assert loaded.chat_template == found
    assert loaded.model_max_length is None


@pytest.mark.parametrize(
    ("name", "more", "ids"),
    [
        ("LlamaTokenizerFast", {}, ["<s>", "a"]),
        ("LlamaTokenizer", {"add_bos_token": False}, ["a"]),
        ("LlamaTokenizer", {"add_eos_token": True}, ["<s>", "a", "</s>"]),
        ("GemmaTokenizerFast", {}, ["<s>", "a"]),
        ("PreTrainedTokenizerFast", {"add_bos_token": True}, ["a"]),
        ("Qwen2Tokenizer", {}, ["a"]),
    ],
)
def test_classes_that_put_the_bos_themselves(tmp_path, name, more, ids):
    config = CONFIG | {"tokenizer_class": name} | more
    folder = write(
        tmp_path, tokenizer__json=samples.byte_level_dict(), tokenizer_config__json=config
    )
    loaded = load_tokenizer(str(folder))
    assert loaded.add_bos == (ids[0] == "<s>")
    assert Encoder(loaded.json_text).tokenizer.encode("a").tokens == ids
    assert Encoder(loaded.json_text).encode("a", add_special_tokens=False) == [97]


def test_a_bos_that_is_wanted_and_missing(tmp_path):
    folder = write(
        tmp_path,
        tokenizer__json=samples.byte_level_dict(),
        tokenizer_config__json={"tokenizer_class": "LlamaTokenizer"},
    )
    with pytest.raises(TokenizerError, match="there is no bos_token"):
        load_tokenizer(str(folder))


def test_gguf_files_and_folders_with_one(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(small_gguf())
    (tmp_path / "mmproj-model.gguf").write_bytes(b"something else")
    for name in (str(path), str(tmp_path)):
        loaded = load_tokenizer(name)
        assert loaded.source == str(path)
        assert (loaded.bos_id, loaded.eos_ids, loaded.add_bos) == (257, (257,), True)
        assert (loaded.vocab_size, loaded.model_max_length) == (258, 2048)
        assert loaded.chat_template == "{{ x }}"
        assert loaded.special_tokens == {"bos_token": "<|end|>", "eos_token": "<|end|>"}
        assert loaded.pieces is not None
        assert Encoder(loaded.json_text).encode("he") == [257, 256]


def test_hub_ids_come_from_the_local_cache(tmp_path, monkeypatch):
    model = tmp_path / "hub" / "models--org--name"
    commit = "0123456789abcdef0123456789abcdef01234567"
    write(model / "snapshots" / commit, tokenizer__json=samples.byte_level_dict())
    write(model / "refs", main=commit)
    write(model / "refs" / "pr", **{"1": commit})
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    for revision in (None, "main", commit, "pr/1"):
        loaded = load_tokenizer("org/name", revision)
        assert loaded.source == str(model / "snapshots" / commit / "tokenizer.json")
    for revision in ("v9", "../main", ""):
        if revision:
            with pytest.raises(TokenizerError, match=f"no revision '{revision}'"):
                load_tokenizer("org/name", revision)


def test_hub_folders_follow_the_environment():
    home = str(Path.home())
    assert hub_folders({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == [Path("/a")]
    assert hub_folders({"HUGGINGFACE_HUB_CACHE": "/c"}) == [Path("/c")]
    assert hub_folders({"HF_HOME": "/b"}) == [Path("/b/hub")]
    assert hub_folders({"XDG_CACHE_HOME": "/x"}) == [Path("/x/huggingface/hub")]
    assert hub_folders({}) == [Path(home, ".cache/huggingface/hub")]


@pytest.mark.parametrize("name", ["a/b/c", "../x", "a//b", ""])
def test_what_is_no_hub_id(name, tmp_path):
    folder, tried = cached_snapshot(name, "main", {"HF_HUB_CACHE": str(tmp_path)})
    assert folder is None
    assert "no hub id" in tried[0]


def test_errors_say_what_was_tried(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "slow", tokenizer__model="x", vocab__json="{}")
    write(tmp_path / "bad", tokenizer__json="{")
    write(tmp_path / "array", tokenizer__json="[]")
    write(tmp_path / "nomodel", tokenizer__json="{}")
    write(tmp_path / "half", tokenizer__json='{"model": {"type": "BPE", "vocab": [1]}}')
    write(tmp_path / "config", tokenizer__json=samples.byte_level_dict(), config__json="nope")
    (tmp_path / "cut.gguf").write_bytes(small_gguf()[:500])
    (tmp_path / "alien.gguf").write_bytes(gguf_bytes({"tokenizer.ggml.model": (8, "rwkv")}))
    (tmp_path / "x.bin").write_bytes(b"")
    for name, reason in {
        "org/absent": str(tmp_path / "cache"),
        "./absent": "no such file or folder",
        "absent.gguf": "no such file or folder",
        "empty": "neither a tokenizer.json nor a .gguf file",
        "slow": r"there is tokenizer.model, vocab.json",
        "bad": "tokenizer.json: cannot be read",
        "array": "not a JSON object",
        "nomodel": "it has no model",
        "half": "damaged tokenizer.json",
        "config": "config.json: cannot be read",
        "cut.gguf": "cut short",
        "alien.gguf": "alien.gguf: tokenizer.ggml.tokens is missing",
        "x.bin": "neither a .gguf nor a .json file",
    }.items():
        with pytest.raises(TokenizerError) as error:
            load_tokenizer(name)
        assert reason in str(error.value), name
