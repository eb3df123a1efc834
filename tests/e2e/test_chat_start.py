"""Chat templates at a server's start."""

from __future__ import annotations

import json

import pytest

from tests import tiny_tokenizer
from tpc_server import launch
from tpc_server.text.chat_prompt import ChatTemplateError


def test_a_template_of_the_model_is_there_for_the_cores(start, tmp_path):
    folder = tiny_tokenizer.write(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    server = start(model_path=str(folder), default_chat_template_kwargs='{"a": 1}').server
    source = server.setup.chat_template
    assert source.templates == {"default": "{{ messages }}"}
    assert source.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>"}
    assert source.default_kwargs == {"a": 1} and server.setup.bos_id == tiny_tokenizer.BOS


def test_without_a_template_the_server_starts(start):
    assert start().server.setup.chat_template is None


@pytest.mark.parametrize("template", ["{{", "nowhere.jinja"])
def test_a_template_that_is_no_good_ends_the_start(start, template):
    with pytest.raises(ChatTemplateError, match="chat template"):
        start(chat_template=template)


def test_the_program_says_which(tmp_path, capsys):
    from tpc_server.cli import parse

    folder = tiny_tokenizer.write(tmp_path)
    config = {"chat_template": [{"name": "broken", "template": "\n{% if %}"}]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    flags = ["--engine", "synthetic", "--tokenizer-path", str(folder), "--port", "0"]
    assert launch.run(parse(flags)) == 1
    assert "chat template 'broken' does not compile: line 2" in capsys.readouterr().err
    given = [*flags, "--chat-template", "nowhere"]
    assert launch.run(parse(given)) == 1
    assert "chat template 'nowhere' is neither a file" in capsys.readouterr().err
    given = [*flags, "--chat-template", "{{ 1 }}", "--default-chat-template-kwargs", "[]"]
    assert launch.run(parse(given)) == 1
    assert "default_chat_template_kwargs" in capsys.readouterr().err
