"""Conversations in the tokenize stage: ids, one BOS, the helper thread, refusals."""

from __future__ import annotations

import json
import select
import threading
from types import SimpleNamespace

import pytest

from tests import tiny_tokenizer as tiny
from tests.unit.test_message_order import FakeSender, job
from tpc_server import frame
from tpc_server.contract.limits import Limits
from tpc_server.counters import Counters
from tpc_server.stages.base import Outbox, RemotePort
from tpc_server.stages.tokenize import TokenizeStage
from tpc_server.text import chat_prompt
from tpc_server.text.chat_source import ChatSource
from tpc_server.text.encode import Encoder, PromptEncoder

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
SOURCE = ChatSource({"default": TEMPLATE}, {"bos_token": "<bos>"})
USER = {"role": "user", "content": "hé"}
IDS = [tiny.BOS, *tiny.ids("hé|>")]


def adding_bos():
    """The byte tokenizer that puts a BOS before plain texts."""
    data = tiny.tokenizer_json()
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [tiny.BOS], "tokens": ["<bos>"]}},
    }  # fmt: skip
    return json.dumps(data)


@pytest.fixture
def prompts():
    return PromptEncoder(Encoder(adding_bos()), SOURCE, tiny.BOS)


def test_plain_texts_get_what_the_tokenizer_adds_unless_told_otherwise(prompts):
    assert prompts.encode("hé") == [tiny.BOS, *tiny.ids("hé")]
    assert prompts.encode(chat_prompt.text("hé", True)) == [tiny.BOS, *tiny.ids("hé")]
    assert prompts.encode(chat_prompt.text("hé", False)) == tiny.ids("hé")


@pytest.mark.parametrize("start", ["", "{{ bos_token }}"], ids=["once", "twice"])
def test_a_conversation_has_the_templates_bos_once(start):
    source = ChatSource({"default": start + TEMPLATE}, SOURCE.special_tokens)
    prompts = PromptEncoder(Encoder(adding_bos()), source, tiny.BOS)
    assert prompts.encode(chat_prompt.chat([USER])) == IDS


def test_a_template_without_bos_leaves_it_out():
    source = ChatSource({"default": "{{ messages[0].content }}"}, SOURCE.special_tokens)
    prompts = PromptEncoder(Encoder(adding_bos()), source, tiny.BOS)
    assert prompts.encode(chat_prompt.chat([USER])) == tiny.ids("hé")


def test_a_final_message_to_be_continued_gets_no_bos_of_its_own(prompts):
    final = {"role": "assistant", "content": "Well"}
    chat = chat_prompt.chat([USER, final], continue_final_message=True)
    assert prompts.encode(chat) == [*IDS, *tiny.ids("Well")]


def test_the_samples_of_a_request_are_rendered_once(prompts, monkeypatch):
    prompts.build()
    request = chat_prompt.chat([USER])
    first = prompts.encode(request)
    monkeypatch.setattr(prompts, "_template", None)
    monkeypatch.setattr(prompts, "_source", None)
    assert prompts.encode(request) == first
    with pytest.raises(chat_prompt.ChatTemplateError, match="no chat template"):
        prompts.encode(chat_prompt.chat([{**USER, "content": "other"}]))


@pytest.mark.parametrize("count", [2, 51])
def test_a_long_conversation_is_rendered_from_the_threads_own_dicts(count, prompts, monkeypatch):
    """Another thread's are slow to look into; a copy of a short one would only cost."""
    prompts.build()
    chat = chat_prompt.chat([USER] * count)
    seen = []

    def prompt(chat):
        seen.append(chat)
        return "x", ""

    monkeypatch.setattr(prompts, "_template", SimpleNamespace(prompt=prompt))
    prompts.encode(chat)
    assert seen == [chat] and (seen[0][1] is chat[1]) == (count == 2)


@pytest.fixture
def stage():
    setup = SimpleNamespace(
        tokenizer_json=adding_bos(), limits=Limits(1 << 20, 256), needs_context=False,
        chat_template=SOURCE, bos_id=tiny.BOS,
    )  # fmt: skip
    outbox, to_scheduler, to_detok = Outbox(), FakeSender(), FakeSender()
    made = TokenizeStage(0, setup, Counters(), outbox, to_scheduler, None)
    made.connect({7: RemotePort(to_detok, outbox)})
    hooked = []
    made.helper_hook = lambda fd, stage: hooked.append(fd)
    yield SimpleNamespace(
        stage=made, to_scheduler=to_scheduler, to_detok=to_detok, hooked=hooked, setup=setup
    )
    made.close()


def encoded(stage, prompt, rid="a#1"):
    """What detok is told of one job; across the ring, as between cores."""
    _, _, _, wanted, logprobs, _ = job(rid)
    message = (frame.T_JOB, 7, [(rid, prompt, None, wanted, logprobs, True)])
    stage.stage.inbox.append(frame.decode(frame.encode(message)))
    stage.stage.poll(100)
    while not stage.to_detok.posted:
        assert select.select(stage.hooked, [], [], 30)[0], "no result within 30 s"
        stage.stage.on_events(stage.hooked[0], select.EPOLLIN)
    told = stage.to_detok.messages()
    stage.to_detok.posted.clear()
    return told


def test_a_conversation_goes_to_the_scheduler_as_ids(stage):
    told = encoded(stage, chat_prompt.chat([USER]))
    assert told[0][:4] == (frame.D_ENCODED, "a#1", len(IDS), IDS)
    assert stage.to_scheduler.posted and not stage.hooked


def test_long_conversations_go_to_the_helper(stage):
    before = set(threading.enumerate())
    for many in ([USER] * 60, [{**USER, "content": "x" * 20_000}]):
        told = encoded(stage, chat_prompt.chat(many))
        expected = [tiny.BOS, *tiny.ids("".join(m["content"] + "|" for m in many) + ">")]
        assert told[0][:4] == (frame.D_ENCODED, "a#1", len(expected), expected)
    assert len(set(threading.enumerate()) - before) == 1


@pytest.mark.parametrize("count", [1, 60], ids=["on the core", "on the helper"])
def test_a_conversation_that_cannot_be_rendered_is_a_bad_request(stage, count):
    bad = {"role": "user", "content": [{"type": "image_url"}]}
    told = encoded(stage, chat_prompt.chat([*[USER] * (count - 1), bad]))
    text = f"messages[{count - 1}].content[0]: image input is not supported by this server"
    assert told == [(frame.D_FAIL, "a#1", 400, text)]
    assert encoded(stage, chat_prompt.chat([USER]))[0][0] == frame.D_ENCODED


def test_text_that_no_tokenizer_takes_is_a_bad_request(stage):
    told = encoded(stage, chat_prompt.chat([{"role": "user", "content": "\ud800"}]))
    assert told[0][:3] == (frame.D_FAIL, "a#1", 400) and "could not be tokenized" in told[0][3]


def test_without_a_template_a_conversation_is_a_bad_request(stage):
    stage.setup.chat_template = None
    made = TokenizeStage(0, stage.setup, Counters(), Outbox(), stage.to_scheduler, None)
    made.connect({7: RemotePort(stage.to_detok, Outbox())})
    stage.stage = made
    told = encoded(stage, chat_prompt.chat([USER]))
    assert told == [(frame.D_FAIL, "a#1", 400, "this model has no chat template")]


def test_the_ids_of_a_conversation_are_those_of_its_own_request():
    """Samples of one request are rendered once; an equal conversation may look different."""
    source = ChatSource({"default": "{{ flag }}"}, SOURCE.special_tokens)
    prompts = PromptEncoder(Encoder(adding_bos()), source, tiny.BOS)
    first = chat_prompt.chat([USER], kwargs={"flag": True})
    assert prompts.encode(first) == tiny.ids("True")
    assert prompts.encode(first) is prompts.encode(first)
    assert prompts.encode(chat_prompt.chat([USER], kwargs={"flag": 1})) == tiny.ids("1")
    assert prompts.encode(chat_prompt.chat([USER], kwargs={"flag": 1.0})) == tiny.ids("1.0")
