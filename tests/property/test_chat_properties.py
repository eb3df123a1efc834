"""Whatever a client sends, a conversation is rendered or refused by one exception."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_server.text import chat_prompt
from tpc_server.text.chat_prompt import ChatTemplateError
from tpc_server.text.chat_source import ChatSource
from tpc_server.text.chat_template import ChatTemplate

TEMPLATES = (
    "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.content | trim }}{% endfor %}",
    "{% for message in messages %}{% for part in message.content %}{{ part.text + part['type'] }}"
    "{% endfor %}{% for call in message.tool_calls %}{% set f = call.function %}{{ f.name }}"
    "{% for k, v in f.arguments.items() %}{{ k ~ v }}{{ v | tojson }}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "{% macro show(x) %}{% if x is mapping %}{% for k in x %}{{ k }}{{ show(x[k]) }}{% endfor %}"
    "{% elif x is iterable and x is not string %}{% for v in x %}{{ show(v) }}{% endfor %}"
    "{% else %}{{ x * 1000 }}{% endif %}{% endmacro %}"
    "{{ show(messages) }}{{ show(tools) }}{{ show(thinking) }}{% for i in range(n) %}{% endfor %}"
    "{{ x ** n }}{{ messages[0].content.split('</think>')[-1][:n] }}",
)
MADE = [ChatTemplate(ChatSource({"default": text}, {"bos_token": "<s>"})) for text in TEMPLATES]

KEYS = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "arguments", "items", "n", "x", ""]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["text", "image_url", "{}", '{"a": [1]}', "[", "\ud800", "a</think>b"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
OBJECTS = st.dictionaries(KEYS | st.sampled_from(["tool_calls", "thinking"]), VALUES, max_size=5)
MESSAGES = st.builds(
    lambda role, content, more: {**more, "role": role, "content": content},
    st.sampled_from(["user", "assistant", "tool"]) | VALUES,
    VALUES | st.lists(OBJECTS, max_size=3),
    OBJECTS,
)


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=4),
    tools=st.none() | st.lists(OBJECTS, max_size=2),
    kwargs=st.none() | st.dictionaries(KEYS | st.sampled_from(["range", "messages"]), VALUES),
    add=st.sampled_from([None, True, False]),
    continue_final=st.booleans(),
)
def test_rendered_or_refused(messages, tools, kwargs, add, continue_final):
    chat = chat_prompt.chat(messages, tools, kwargs, add, continue_final)
    before = repr(chat)
    for template in MADE:
        try:
            text: Any = template.prompt(chat)
        except ChatTemplateError as error:
            assert str(error)
        else:
            assert [type(part) for part in text] == [str, str]
    assert chat_prompt.exceeds(chat, 0)
    assert repr(chat) == before  # it may be another stage's as well
