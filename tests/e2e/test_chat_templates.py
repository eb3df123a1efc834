"""Real chat templates are rendered as transformers renders them, errors included."""

from __future__ import annotations

import gc
import json
import subprocess
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiny_tokenizer as tiny
from tests.chat_templates import CASES, SPECIAL_TOKENS, templates
from tests.gil_env import clean_env, gil_env
from tests.unit.test_tokenize_chat import adding_bos
from tpc_server.text import chat_prompt, chat_template
from tpc_server.text.chat_prompt import ChatTemplateError
from tpc_server.text.chat_source import ChatSource
from tpc_server.text.chat_template import ChatTemplate, compile_templates
from tpc_server.text.encode import Encoder, PromptEncoder

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]
NOW = "2026-02-03T04:05:06"
#: What we put before an error that no template raised itself.
FAILED = "the chat template failed: "

#: (template, case) -> why ours is not what transformers gives. There is no difference.
EXPLAINED: dict[tuple[str, str], str] = {}

#: Templates that are given a list of content parts as it is, for the words in them or for a loop
#: over the content; as SGLang 0.5.23 tells them from the others.
TAKE_PARTS = {
    "Apriel-1.6-15b-Thinker-fixed", "Cohere2MoE", "GLM-4.6", "GLM-4.7-Flash", "Kimi-K2-Instruct",
    "Kimi-K2-Thinking", "Kimi-K3", "LFM2.5-8B-A1B", "MiniMax-M1", "MiniMax-M2", "MiniMax-M3",
    "Mistral-Small-3.2-24B-Instruct-2506", "Qwen3.5-4B", "Reka-Edge", "StepFun3.5-Flash",
    "google-gemma-4-31B-it-interleaved", "google-gemma-4-31B-it", "ibm-granite-granite-4.0",
    "ibm-granite-granite-4.1", "mistralai-Ministral-3-14B-Reasoning-2512", "moonshotai-Kimi-K2",
    "muse-glimmer", "unsloth-Apriel-1.5", "unsloth-mistral-Devstral-Small-2507",
}  # fmt: skip


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return templates()


@pytest.fixture(scope="module")
def compiled(texts: dict[str, str]) -> dict[str, tuple[bytes, str]]:
    return compile_templates(texts)


def source_of(compiled: Any, name: str, special: dict[str, str]) -> ChatSource:
    """What a server whose only template this is would have."""
    source = ChatSource({}, special)
    source.compiled = {"default": compiled[name]}
    return source


def ask(given: dict[str, str]) -> dict[str, dict[str, list[Any]]]:
    """What transformers answers."""
    questions = {
        "templates": given, "cases": CASES, "special_tokens": SPECIAL_TOKENS, "now": NOW,
    }  # fmt: skip
    done = subprocess.run(
        [gil_env("transformers"), Path(__file__).with_name("transformers_reference.py")],
        input=json.dumps(questions), capture_output=True, text=True, env=clean_env(), timeout=300,
        check=True,
    )  # fmt: skip
    answers: dict[str, dict[str, list[Any]]] = json.loads(done.stdout)
    return answers


def ours(template: ChatTemplate, given: dict[str, Any]) -> list[Any]:
    """What we answer, in the reference's form."""
    add = given.get("add_generation_prompt", True)
    try:
        return [
            template.render(given["messages"], given.get("tools"), add, given.get("kwargs")), None
        ]  # fmt: skip
    except ChatTemplateError as error:
        return [None, str(error).removeprefix(FAILED)]


def test_all_templates_render_as_transformers_does(texts, compiled, monkeypatch):
    clock = SimpleNamespace(now=lambda: datetime.fromisoformat(NOW))
    monkeypatch.setattr(chat_template, "datetime", clock)
    expected = ask(texts)
    assert len(texts) == 70
    differ = {}
    rendered = failed = 0
    for name in texts:
        template = ChatTemplate(source_of(compiled, name, SPECIAL_TOKENS))
        for case, given in CASES.items():
            want, got = expected[name][case], ours(template, given)
            rendered += want[1] is None
            failed += want[1] is not None
            if got != want:
                differ[name, case] = got, want
    assert set(differ) == set(EXPLAINED), {k: v for k, v in differ.items() if k not in EXPLAINED}
    assert rendered > 2000 and failed > 300  # both kinds are compared


def test_which_templates_take_parts(compiled):
    assert {name for name, (_, form) in compiled.items() if form == "openai"} == TAKE_PARTS


def test_no_rendering_leaves_a_cycle(texts, compiled):
    """The collector is off while requests are served (ADR 4)."""
    made = [ChatTemplate(source_of(compiled, name, SPECIAL_TOKENS)) for name in texts]
    gc.collect()
    gc.disable()
    try:
        for template in made:
            for given in CASES.values():
                ours(template, given)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_no_conversation_has_two_bos(texts, compiled):
    """With a tokenizer that puts one before plain texts; most of these templates put one."""
    encoder = Encoder(adding_bos())
    chat = chat_prompt.chat(
        [
            {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Well"},
        ],
        continue_final_message=True,
    )  # fmt: skip
    some = 0
    for name in texts:
        source = source_of(compiled, name, {"bos_token": "<bos>", "eos_token": "<eos>"})
        try:
            ids = PromptEncoder(encoder, source, tiny.BOS).encode(chat)
        except ChatTemplateError:
            continue
        assert ids.count(tiny.BOS) == (ids[0] == tiny.BOS), name
        assert bytes(ids[-4:]) == b"Well", name
        some += ids[0] == tiny.BOS
    assert some > 10
