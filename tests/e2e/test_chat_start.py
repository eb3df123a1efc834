"""Chat templates at a server's start."""

from __future__ import annotations

import json

import pytest

from tests import tiny_tokenizer
from tests.http_client import call
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
    assert launch.run(parse([*flags, "--chat-template", "{{ 1"])) == 1
    told = capsys.readouterr().err
    assert told.startswith(
        "tpc-server: error: --chat-template {{ 1: chat template 'default' does not"
    )
    given = [*flags, "--chat-template", "{{ 1 }}", "--default-chat-template-kwargs", '{"tools":1}']
    assert launch.run(parse(given)) == 1
    assert "error: --default-chat-template-kwargs: " in capsys.readouterr().err
    given = [*flags, "--chat-template", "{{ 1 }}", "--default-chat-template-kwargs", "[]"]
    assert launch.run(parse(given)) == 1
    assert "--default-chat-template-kwargs []: not a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "parser", "told"),
    [
        ("{{ messages[0].content }}", None, []),
        ("{{ tools }}", "hermes", []),
        ("{{ messages[0].content }}", "hermes", ["--tool-call-parser hermes", "never mentions"]),
        ("{{ nothing.there }}", None, ["cannot render a plain message", "'nothing' is undefined"]),
    ],
)
def test_a_template_is_tried_before_the_first_request(start, capfd, template, parser, told):
    one = start(chat_template=template, tool_call_parser=parser, log_level="warning")
    if "undefined" in str(told):
        body = {"model": "x", "messages": [{"role": "user", "content": "a"}]}
        answer = call(one.address, "POST", "/v1/chat/completions", body)
        assert answer.status == 400
        assert answer.json()["message"] == "the chat template failed: 'nothing' is undefined"
    one.server.shutdown()
    log = capfd.readouterr().err
    assert ("WARNING" in log) is bool(told) and all(word in log for word in told)
