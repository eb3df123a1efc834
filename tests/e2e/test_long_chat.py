"""Conversations of hundreds of messages do not hold up the streams of their core, nor end it."""

from __future__ import annotations

import threading

from tests import tiny_tokenizer
from tests.http_client import Client
from tpc_server.text import chat_template
from tpc_server.text.chat_template import ChatTemplate

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }};{% endfor %}"


def test_other_streams_go_on_while_a_long_conversation_is_rendered(start, tmp_path, monkeypatch):
    """One core does everything; the rendering ends only when the other stream has gone on."""
    rendering, go_on = threading.Event(), threading.Event()
    real = ChatTemplate.prompt

    def held_up(self, chat):
        rendering.set()
        assert go_on.wait(30)
        return real(self, chat)

    folder = tiny_tokenizer.write(tmp_path)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    run = start(model_path=str(folder), manual=True)
    monkeypatch.setattr(ChatTemplate, "prompt", held_up)  # the start tries the template
    messages = [{"role": ("user", "assistant")[k % 2], "content": f"m{k}"} for k in range(201)]
    body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 9}}
    with Client(run.address) as streaming, Client(run.address) as chatting:
        streaming.request("POST", "/generate", body)
        run.scheduler.wait_for(lambda s: s.live)
        run.scheduler.step()
        assert streaming.head()[0] == 200 and streaming.chunk()
        chatting.request("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        assert rendering.wait(30)
        for _ in range(5):
            run.scheduler.step()
            assert streaming.chunk()
        assert len(run.scheduler.live) == 1
        go_on.set()
        run.scheduler.wait_for(lambda s: len(s.live) == 2)
        run.scheduler.step(3)
        assert chatting.answer().status == 200
    expected = "".join(m["content"] + ";" for m in messages)
    assert run.scheduler.prompts[1] == [tiny_tokenizer.BOS, *tiny_tokenizer.ids(expected)]


LOOPS = (
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% if c.x == 'x' %}"
    "{% endif %}{% endfor %}{% endfor %}{% endfor %}{{ messages[0].content }}"
)


def test_a_template_that_loops_for_ages_costs_its_request_alone(start, tmp_path, monkeypatch):
    """A client decides how many messages there are to loop over."""
    folder = tiny_tokenizer.write(tmp_path)
    (folder / "chat_template.jinja").write_text(LOOPS)
    run = start(model_path=str(folder))
    monkeypatch.setattr(chat_template, "MAX_RENDER_S", 0.001)
    message = {"role": "user", "content": "ab"}
    with Client(run.address) as client:
        for path in ("/v1/chat/completions", "/tokenize", "/invocations"):
            for _ in range(2):
                answer = client.call("POST", path, {"messages": [message] * 300})
                assert answer.status == 400, answer.body
                assert "ran longer than" in answer.json()["message"]
        few = {"messages": [message], "max_tokens": 2}
        assert client.call("POST", "/v1/chat/completions", few).status == 200
    assert not run.total("resets") and len(run.scheduler.prompts) == 1
