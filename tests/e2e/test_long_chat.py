"""A conversation of 200 messages does not hold up the streams of its core."""

from __future__ import annotations

import threading

from tests import tiny_tokenizer
from tests.http_client import Client
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
