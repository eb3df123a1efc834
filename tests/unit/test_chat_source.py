"""Where chat templates are found, and what is said when one is not."""

from __future__ import annotations

import json

import pytest

from tests import text_samples as samples
from tests.gguf_files import gguf_bytes
from tests.unit.test_text_load import small_gguf
from tests.unit.test_text_load import write as write_files
from tpc_server.text.chat_prompt import ChatTemplateError
from tpc_server.text.chat_source import chat_source, choose, gguf_templates
from tpc_server.text.load import load_tokenizer


def folder_of(path, config=None, **files):
    write_files(
        path, tokenizer__json=samples.byte_level_dict(), tokenizer_config__json=config or {}
    )
    for name, text in files.items():
        place = path / name.replace("__", ".").replace("--", "/")
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    return load_tokenizer(str(path))


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("config", "files", "found"),
    [
        ({"chat_template": "C"}, {}, {"default": "C"}),
        ({"chat_template": NAMED}, {}, {"default": "D", "tool_use": "T"}),
        ({"chat_template": {"default": "D"}}, {}, {"default": "D"}),
        ({"chat_template": 3}, {}, {}),
        ({"chat_template": NAMED}, {"chat_template__jinja": "J"}, {"default": "J"}),
        (
            {"chat_template": "C"},
            {"additional_chat_templates--tool_use__jinja": "A", "chat_templates--x__jinja": "X",
             "chat_templates--tool_use__jinja": "B"},
            {"default": "C", "tool_use": "A", "x": "X"},
        ),
        ({}, {"chat_template__json": '{"chat_template": "L"}'}, {"default": "L"}),
        ({}, {"chat_template__json": "[]"}, {}),
    ],
)  # fmt: skip
def test_of_a_folder(tmp_path, config, files, found):
    assert folder_of(tmp_path, config, **files).chat_templates == found


def test_of_a_gguf_file_and_of_the_folder_around_it(tmp_path):
    (tmp_path / "m.gguf").write_bytes(small_gguf())
    assert load_tokenizer(str(tmp_path)).chat_templates == {"default": "{{ x }}"}
    (tmp_path / "chat_template.jinja").write_text("J")
    assert load_tokenizer(str(tmp_path)).chat_templates == {"default": "J"}
    meta = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T",
            "tokenizer.chat_templates": ["tool_use"], "other": "x"}  # fmt: skip
    assert gguf_templates(meta) == {"default": "D", "tool_use": "T"}


def test_special_tokens(tmp_path):
    config = {
        "bos_token": {"content": "<s>"}, "eos_token": None, "pad_token": "<p>",
        "mask_token": "<m>", "extra_special_tokens": {"image_token": "<i>"}, "add_bos_token": True,
        "image_token": "<i>", "video_token": "<v>",
    }  # fmt: skip
    more = {"eos_token": "</s>", "unk_token": {"content": "<u>"}}
    loaded = folder_of(tmp_path, config, special_tokens_map__json=json.dumps(more))
    assert loaded.special_tokens == {
        "bos_token": "<s>", "pad_token": "<p>", "mask_token": "<m>", "unk_token": "<u>",
        "image_token": "<i>",
    }  # fmt: skip


def test_the_argument_names_a_template(tmp_path):
    folder = tmp_path / "model"
    (folder / "chat_templates").mkdir(parents=True)
    (folder / "mine.jinja").write_text("\n\nM\n\n")
    (folder / "chat_templates" / "x.jinja").write_text("X")
    (folder / "one_line.jinja").write_text("a\\nb\n")
    (folder / "lines.jinja").write_text("a\\n\nb\n")
    (folder / "config.json").write_text(json.dumps({"chat_template": NAMED}))
    (folder / "empty.json").write_text("{}")
    (folder / "broken.json").write_text("{")

    def chosen(wanted):
        return choose(str(wanted), {"default": "D", "tool_use": "T"}, folder)

    assert chosen("tool_use") == {"default": "T"}
    assert chosen("{{ text }}") == {"default": "{{ text }}"}
    assert chosen("{% set x = 1 %}") == {"default": "{% set x = 1 %}"}
    assert chosen("mine") == chosen("mine.jinja") == chosen(folder / "mine.jinja")
    assert chosen("mine") == {"default": "M"}
    assert chosen("x") == {"default": "X"}
    assert chosen("one_line") == {"default": "a\nb"}
    assert chosen("lines") == {"default": "a\\n\nb"}
    assert chosen("config.json") == {"default": "D", "tool_use": "T"}
    for bad, says in (
        ("chatml", r"'chatml' is neither .*default, tool_use"),
        ("x" * 9000, "neither"),
        ("a\0b", "neither"),
        ("empty.json", "no `chat_template`"),
        ("broken.json", "not JSON"),
    ):
        with pytest.raises(ChatTemplateError, match=says):
            chosen(bad)


def test_the_source_of_a_server(tmp_path):
    config = {"chat_template": NAMED, "bos_token": "<s>"}
    loaded = folder_of(tmp_path, config)
    source = chat_source(loaded, None, '{"a": 1}')
    assert source is not None
    assert source.templates == {"default": "D", "tool_use": "T"}
    assert source.special_tokens == {"bos_token": "<s>"}
    assert source.default_kwargs == {"a": 1}
    named = chat_source(loaded, "tool_use", None)
    assert named is not None and named.templates == {"default": "T"}
    with pytest.raises(ChatTemplateError, match=r"chat template 'default' does not compile"):
        chat_source(loaded, "{{", "{}")
    with pytest.raises(ChatTemplateError, match=r"chat_template_kwargs\.messages"):
        chat_source(loaded, None, '{"messages": []}')
    assert chat_source(folder_of(tmp_path / "none"), None, None) is None


def test_gguf_bytes_are_read_as_written(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(
        gguf_bytes({"tokenizer.chat_template": (8, "D"), "tokenizer.chat_template.x": (8, "é")})
    )
    from tpc_server.text.gguf_meta import read_metadata

    assert gguf_templates(read_metadata(path)) == {"default": "D", "x": "é"}
