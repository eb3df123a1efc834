"""Chat templates: rendering, bounds, errors, messages as templates take them."""

from __future__ import annotations

import gc
import json
from datetime import datetime

import pytest

from tpc_server.contract.chat_messages import check_messages
from tpc_server.contract.errors import BadRequest
from tpc_server.text import chat_prompt, chat_template
from tpc_server.text.chat_prompt import ChatTemplateError
from tpc_server.text.chat_source import ChatSource
from tpc_server.text.chat_template import ChatTemplate

CHATML = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "hi"}


def made(*, kwargs=None, **templates):
    return ChatTemplate(ChatSource(templates, SPECIAL, kwargs))


def shown(template, messages=(USER,), tools=None, kwargs=None):
    """A template of its own, without a generation prompt."""
    return made(default=template).render(list(messages), tools, False, kwargs)


def prompt(template, messages, **more):
    return made(default=template).prompt(chat_prompt.chat(messages, **more))


# -- as transformers renders ---------------------------------------------------------


def test_a_conversation():
    messages = [{"role": "system", "content": "Be brief."}, USER]
    assert prompt(CHATML, messages) == (
        "<s><|system|>Be brief.<|end|><|user|>hi<|end|><|assistant|>", "",
    )  # fmt: skip


def test_blocks_take_their_line_with_them():
    assert shown("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_json_is_not_escaped_for_html_and_takes_options():
    value = {"b": "<é&'>", "a": 1}
    assert shown("{{ messages[0].content | tojson }}", [{"content": value}]) == json.dumps(
        value, ensure_ascii=False
    )
    options = "indent=2, ensure_ascii=true, sort_keys=true, separators=(',', ': ')"
    assert shown(f"{{{{ messages[0].content | tojson({options}) }}}}", [{"content": value}]) == (
        json.dumps(value, indent=2, sort_keys=True, separators=(",", ": "))
    )


def test_loop_controls_and_generation_blocks():
    template = (
        "{% for m in messages %}{% if m.content == 'stop' %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    )
    messages = [{"content": c} for c in ("a", "b", "stop", "c")]
    assert shown(template, messages) == "a;b;"


def test_the_date():
    year = datetime.now().year
    assert int(shown("{{ strftime_now('%Y') }}")) - year in (0, 1)


def test_variables_and_their_precedence():
    template = made(default="{{ a }}{{ b }}{{ bos_token }}{{ documents }}", kwargs={"a": 1, "b": 2})
    assert template.render([USER]) == "12<s>None"
    assert template.render([USER], kwargs={"b": 3, "bos_token": "<t>"}) == "13<t>None"
    assert template.render([USER], kwargs={"documents": [{"title": "x"}]}).endswith("'x'}]")


def test_an_undefined_variable_is_empty_and_its_attribute_an_error():
    assert shown("{{ nothing }}|{{ messages[0].nothing }}") == "|"
    assert shown("{{ messages[0].name is defined }}") == "False"
    with pytest.raises(ChatTemplateError, match="has no attribute 'nothing'"):
        shown("{{ messages[0].nothing.more }}")


def test_keys_named_like_methods_are_found_by_subscript():
    message = [{"role": "user", "content": "", "items": "mine"}]
    assert shown("{{ messages[0]['items'] }}", message) == "mine"
    assert shown("{% for k, v in messages[0].items() %}{{ k }};{% endfor %}", message) == (
        "role;content;items;"
    )


def test_formats_reach_no_attributes():
    assert shown("{{ '{0.__class__}{0}'.format(messages[0].role) }}") == "user"


def test_named_templates():
    template = made(default="D", tool_use="T", other="O")
    assert template.render([USER]) == "D"
    assert template.render([USER], [{"function": {"name": "f"}}]) == "T"
    assert template.render([USER], []) == "T"  # no tool is something else than no tools at all
    assert made(other="O", more="M").render([USER]) == "O"


# -- what goes wrong -----------------------------------------------------------------


def test_a_template_that_does_not_compile_is_named():
    with pytest.raises(ChatTemplateError, match=r"chat template 'tool_use' .*line 2"):
        made(default="fine", tool_use="\n{% if %}")
    with pytest.raises(ChatTemplateError, match="does not compile"):
        made(default="{% nonsense %}")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('only users') }}", "^only users$"),
        ("{{ undefined_thing | tojson }}", "Undefined is not JSON serializable"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__ }}{{ ''['__class__']['__mro__'] }}", "unsafe"),
        ("{% include 'x' %}", "loader"),
        ("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "recurses too deeply"),
        ("{{ 'x' * 100000000 }}", "more than .* characters"),
        ("{{ 100000000 * [1] }}", "more than .* characters"),
        ("{{ 10 ** 100000 }}", "power"),
        ("{% for i in range(100001) %}{% endfor %}", "too many numbers"),
        ("{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}",
         "too many numbers"),
    ],
)  # fmt: skip
def test_errors_of_templates_have_one_type(template, says):
    with pytest.raises(ChatTemplateError, match=says):
        shown(template)


def test_output_and_time_are_bounded(monkeypatch):
    template = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}"
    assert len(shown(template)) == 2000
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 1999)
    with pytest.raises(ChatTemplateError, match="characters"):
        shown(template)
    monkeypatch.undo()
    monkeypatch.setattr(chat_template, "MAX_RENDER_S", -1.0)
    with pytest.raises(ChatTemplateError, match="seconds"):
        shown(template)


@pytest.mark.parametrize("look", ["n.role", "n['role']", "(messages | selectattr('tool') | list)"])
def test_a_loop_that_says_nothing_ends_too(look, monkeypatch):
    """Over the messages in a loop over the messages: a client decides how many they are."""
    loops = "{% for m in messages %}{% for n in messages %}{% if LOOK == 'x' %}{% endif %}"
    text = (loops + "{% endfor %}{% endfor %}").replace("LOOK", look)
    template = made(default=text)
    assert template.prompt(chat_prompt.chat([USER] * 3)) == ("", "")
    before = vars(template._environment).copy()
    with monkeypatch.context() as patched:
        patched.setattr(chat_template, "MAX_RENDER_S", 0.01)
        with pytest.raises(ChatTemplateError, match="seconds"):
            template.prompt(chat_prompt.chat([USER] * 400))
    assert vars(template._environment).keys() == before.keys()
    assert template.prompt(chat_prompt.chat([USER] * 60)) == ("", "")


def test_the_bound_of_ranges_counts_one_rendering():
    template = made(default="{% for i in range(90000) %}{% endfor %}ok")
    for _ in range(20):
        assert template.render([USER]) == "ok"


def test_values_too_deep_for_json():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ChatTemplateError, match="too deeply"):
        shown("{{ messages[0].content | tojson }}", [{"content": deep}])
    while deep:  # freed level by level: the destructor recurses as well
        deep = deep.pop()


@pytest.mark.parametrize("name", sorted(chat_template.RESERVED))
def test_reserved_variables_are_refused(name):
    with pytest.raises(ChatTemplateError, match=rf"chat_template_kwargs\.{name} "):
        shown("", kwargs={name: 1})
    with pytest.raises(ChatTemplateError, match=rf"chat_template_kwargs\.{name} "):
        made(default="", kwargs={name: 1})


def test_documents_are_objects():
    for bad in ("text", [1], {}):
        with pytest.raises(ChatTemplateError, match="documents"):
            shown("", kwargs={"documents": bad})


@pytest.mark.parametrize("last", ["", "{{ raise_exception('no') }}"], ids=["rendered", "failed"])
def test_a_rendering_leaves_nothing_for_the_collector(last):
    """It is off while requests are served (ADR 4); macros and their context hold each other."""
    template = made(
        default="{% macro one(x) %}{{ bos_token }}{{ two(x) }}{% endmacro %}"
        "{% macro two(x) %}{% if x %}{{ one(x - 1) }}{{ x | tojson }}{% endif %}{% endmacro %}"
        "{% set ns = namespace(a=messages) %}{% for m in messages %}{{ loop.index }}"
        "{% generation %}{{ one(3) }}{% endgeneration %}{% endfor %}" + last
    )
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            try:
                template.render([USER] * 3)
            except ChatTemplateError:
                pass
        assert gc.collect() == 0
    finally:
        gc.enable()


# -- messages ------------------------------------------------------------------------

STRING = "{% for message in messages %}{{ message.content }};{% endfor %}"
PARTS = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message['content'] | list %}<{{ part.text }}>{% endfor %}"
    "{% endif %};{% endfor %}"
)
LONG = [
    {"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "other"},
    ]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "c"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (STRING, "a b;;c;"),
        (PARTS, "<a><b><>;;c;"),
        (STRING + "{# knows an image #}", "[{'type': 'text', 'text': 'a'}, {'type': 'text', "
         "'text': 'b'}, {'type': 'other'}];;c;"),
        ("{% for m in messages %}{% for p in m.content[:1] %}{{ p.text }}{% endfor %}{% endfor %}",
         "a"),
        ("{% for msg in messages %}{% for p in msg.content %}{{ p.text }}{% endfor %}{% endfor %}",
         "ab"),
        # Not a name that counts: one string, whose characters it loops over.
        ("{% for x in messages %}{% for p in x.content %}{{ p }},{% endfor %}{% endfor %}",
         "a, ,b,c,"),
    ],
)  # fmt: skip
def test_content_parts_are_given_as_the_template_takes_them(template, text):
    assert prompt(template, LONG)[0] == text


def test_a_tools_text_parts_are_one_string_for_every_template():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "tool", "content": parts}, {"role": "user", "content": parts}]
    assert prompt(PARTS, messages)[0] == "a b;<a><b>;"
    messages[0]["content"] = [{"type": "tool_reference", "name": "x", "text": "y"}]
    assert prompt(PARTS, messages)[0] == "<y>;<a><b>;"


@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url", "input_audio"])
def test_media_are_refused(kind):
    messages = [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}]
    with pytest.raises(ChatTemplateError, match=r"messages\[1\]\.content\[1\]: \w+ input is not"):
        prompt(STRING, messages)


def test_a_text_part_without_text():
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]\.content\[0\]\.text"):
        prompt(STRING, [{"role": "user", "content": [{"type": "text", "text": 1}]}])


def call(arguments):
    function = {"name": "f", "arguments": arguments}
    return [{"role": "assistant", "content": None, "tool_calls": [{"function": function}]}, USER]


ARGUMENTS = "{{ messages[0].tool_calls[0].function.arguments.a }}"


def test_arguments_of_tool_calls_become_objects_in_a_copy():
    messages = call('{"a": "x"}')
    assert prompt(ARGUMENTS, messages)[0] == "x"
    assert messages == call('{"a": "x"}')
    assert prompt(ARGUMENTS, call({"a": "y"}))[0] == "y"


@pytest.mark.parametrize(("arguments", "says"), [("{", "valid JSON"), ("[1]", "JSON object")])
def test_arguments_that_are_no_object(arguments, says):
    path = r"messages\[0\]\.tool_calls\[0\]\.function\.arguments must be a? ?"
    with pytest.raises(ChatTemplateError, match=path + says):
        prompt(ARGUMENTS, call(arguments))


def test_nulls_are_left_out():
    messages = [{"role": "user", "content": "a", "name": None, "tool_calls": None}]
    assert prompt("{{ messages | tojson }}", messages)[0] == '[{"role": "user", "content": "a"}]'


FINAL = [USER, {"role": "assistant", "content": "Well,", "reasoning_content": "hm"}]


def test_the_final_assistant_message():
    assert prompt(CHATML, FINAL) == ("<s><|user|>hi<|end|><|user|>Well,<|end|><|assistant|>", "")
    assert prompt(CHATML, FINAL, continue_final_message=True) == (
        "<s><|user|>hi<|end|><|assistant|>", "Well,",
    )  # fmt: skip
    assert prompt(CHATML, FINAL, add_generation_prompt=False) == (
        "<s><|user|>hi<|end|><|assistant|>Well,<|end|>", "",
    )  # fmt: skip
    assert prompt(CHATML, FINAL, add_generation_prompt=True)[0].endswith(
        "<|assistant|>Well,<|end|><|assistant|>"
    )
    assert prompt(CHATML, [USER], continue_final_message=True)[1] == ""


def test_tools_are_tried_without_their_frame():
    """Some templates read `tool.name` and fail on the usual frame."""
    template = "{% for t in tools %}{{ t.name + ';' }}{% endfor %}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert prompt(template, [USER], tools=tools)[0] == "f;"
    with pytest.raises(ChatTemplateError, match="no attribute 'name'"):
        prompt(template, [USER], tools=[{"type": "function", "function": {}}])
    assert tools == [{"type": "function", "function": {"name": "f"}}]


# -- how long a prompt is ------------------------------------------------------------


def test_long_prompts():
    def long(*args, **more):
        return chat_prompt.is_long(chat_prompt.chat(*args, **more), 1000)

    assert not long([USER] * 20) and long([USER] * 51)
    assert not chat_prompt.exceeds(chat_prompt.chat([USER] * 51), 10_000)
    assert chat_prompt.exceeds(chat_prompt.chat([USER] * 51), 1000)
    assert long([{"role": "user", "content": "x" * 1000}])
    assert long([{"role": "user", "content": [{"type": "text", "text": "x" * 1000}]}])
    assert long([USER], tools=[{"function": {"description": "x" * 1000}}])
    assert long([USER], kwargs={"documents": ["x" * 1000]})
    assert long([USER], kwargs={"many": [0] * 1000})
    deep = {}
    for _ in range(100):
        deep = {"a": deep}
    assert not long([{"role": "user", "content": deep}])
    assert chat_prompt.is_long("x" * 1001, 1000) and not chat_prompt.is_long("x" * 1000, 1000)
    assert chat_prompt.is_long(chat_prompt.text("x" * 1001, False), 1000)
    assert chat_prompt.text("x", True) == "x"


def test_how_long_a_conversation_is_is_told_without_its_messages():
    """A look into another thread's dicts costs the core seconds where there are very many."""
    messages = [{"role": "user", "content": "x" * 1000}]
    prompt = chat_prompt.chat(messages)
    messages[0].clear()
    assert chat_prompt.is_long(prompt, 1000) and not chat_prompt.is_long(prompt, 2000)


def test_plain_messages_are_taken_as_they_are():
    said = [{"role": "user", "content": "hé"}, {"role": "assistant", "content": ""}]
    taken, texts = check_messages(said)
    assert taken is said and texts == 2
    known, counted = [chat_prompt.chat(said, None, {"a": "b"}, texts=n) for n in (texts, -1)]
    assert known[-2] == counted[-2] and known[-1] and not counted[-1]
    source = "{% for m in messages %}{{ m }}{{ a }}{% endfor %}"
    assert made(default=source).prompt(known) == made(default=source).prompt(counted)


@pytest.mark.parametrize(
    "entry",
    [
        {"content": "x", "role": "user"},  # a template may show a message whole: role comes first
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": "x", "name": None},
        {"role": "User", "content": "x"},
        {"role": "assistant", "content": None},
    ],
)
def test_other_messages_are_written_anew(entry):
    said = [{"role": "user", "content": "y"}, entry]
    taken, texts = check_messages(said)
    assert texts == -1 and list(taken[1]) == ["role", "content"]
    assert taken[1]["role"] in ("user", "assistant")


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ("rc", r"messages\[1\]"), (["role", "content"], r"messages\[1\]"), (7, r"messages\[1\]"),
        ({"role": [], "content": "x"}, r"messages\[1\]\.role"),
        ({"role": "nobody", "content": "x"}, r"messages\[1\]\.role"),
        ({"role": "user", "content": 7}, r"messages\[1\]\.content"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_named(entry, field):
    with pytest.raises(BadRequest, match=field):
        check_messages([{"role": "user", "content": "y"}, entry])
