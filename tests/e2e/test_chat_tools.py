"""Reasoning and tool calls on /v1/chat/completions; the parsers' own tests are unit tests."""

from __future__ import annotations

import json

import pytest

from tests.e2e.test_chat import HI, PATH, TEMPLATE, ask, model, prompt_of, say  # noqa: F401
from tests.http_client import call

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln \\"x\\""}}\n</tool_call>'


def gathered(events):
    """Content, reasoning, calls and finish reason of a stream."""
    content = reasoning = ""
    calls: dict[int, dict[str, str]] = {}
    finish = None
    for event in events[:-1]:
        (choice,) = event["choices"]
        delta = choice["delta"]
        assert "reasoning_content" in delta
        content += delta.get("content") or ""
        reasoning += delta["reasoning_content"] or ""
        for part in delta.get("tool_calls", ()):
            made = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            if "id" in part:
                assert not made["id"] and part["type"] == "function"
                made["id"] = part["id"]
                made["name"] = part["function"]["name"]
            made["arguments"] += part["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    assert events[-1] == "[DONE]"
    return content, reasoning, [calls[k] for k in sorted(calls)], finish


def test_a_call_unary(start, model):  # noqa: F811
    run = start(model_path=model, script=say("Let me see.\n" + CALL), tool_call_parser="hermes")
    (choice,) = ask(run, tools=[WEATHER]).json()["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["matched_stop"] is None
    message = choice["message"]
    assert message["content"].strip() == "Let me see."
    (made,) = message["tool_calls"]
    assert made["type"] == "function" and made["id"].startswith("call_")
    assert made["function"]["name"] == "get_weather"
    assert json.loads(made["function"]["arguments"]) == {"city": 'Köln "x"'}
    assert "<1 tools>" in prompt_of(run)


def test_a_call_streamed(start, model):  # noqa: F811
    run = start(model_path=model, script=say("Hm.\n" + CALL), tool_call_parser="hermes")
    events = ask(run, tools=[WEATHER], stream=True).events()
    content, reasoning, calls, finish = gathered(events)
    assert content.strip() == "Hm." and not reasoning and finish == "tool_calls"
    assert [c["name"] for c in calls] == ["get_weather"] and calls[0]["id"].startswith("call_")
    assert json.loads(calls[0]["arguments"]) == {"city": 'Köln "x"'}


def test_no_call_stays_text(start, model):  # noqa: F811
    run = start(model_path=model, script=say("It is <b>sunny</b>."), tool_call_parser="hermes")
    assert gathered(ask(run, tools=[WEATHER], stream=True).events()) == (
        "It is <b>sunny</b>.", "", [], "stop"
    )  # fmt: skip
    (choice,) = ask(run, tools=[WEATHER]).json()["choices"]
    assert choice["message"] == {
        "role": "assistant", "content": "It is <b>sunny</b>.", "reasoning_content": None
    }  # fmt: skip


def test_tool_choice_none_parses_nothing(start, model):  # noqa: F811
    run = start(model_path=model, script=say(CALL), tool_call_parser="hermes")
    (choice,) = ask(run, tools=[WEATHER], tool_choice="none").json()["choices"]
    assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_demanded_call_is_a_grammar_and_json(start, model, choice, stream):  # noqa: F811
    from tpc_server.boundary.messages import SAMPLING

    text = '[{"name": "get_weather", "parameters": {"city": "Rome"}}]'
    run = start(model_path=model, script=say(text))
    answer = ask(run, tools=[WEATHER], tool_choice=choice, stream=stream)
    if stream:
        _, _, calls, finish = gathered(answer.events())
        (made,) = calls
    else:
        (one,) = answer.json()["choices"]
        finish = one["finish_reason"]
        made = one["message"]["tool_calls"][0]["function"]
    assert finish == "tool_calls" and made["name"] == "get_weather"
    assert json.loads(made["arguments"]) == {"city": "Rome"}
    sent = run.scheduler.received[-1][8]
    schema = json.loads(sent[SAMPLING["json_schema"]])
    assert schema["type"] == "array" and "get_weather" in json.dumps(schema)


def test_a_demanded_call_needs_grammars(start, model):  # noqa: F811
    run = start(model_path=model, options={"grammars": False})
    answer = ask(run, tools=[WEATHER], tool_choice="required")
    assert answer.status == 400 and "grammars" in answer.json()["message"]


def test_tool_results_reach_the_template(start, model, tmp_path):  # noqa: F811
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.city }})"
        "{% endfor %}{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %};{% endfor %}"
    )
    run = start(model_path=model, script=say("ok"), chat_template=str(tmp_path / "t.jinja"),
                tool_call_parser="hermes")  # fmt: skip
    called = {
        "role": "assistant", "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
        ],
    }  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    assert ask(run, [*HI, called, result], tools=[WEATHER]).status == 200
    assert prompt_of(run) == "user:hi;assistant:(get_weather Oslo);tool:rain#c1;"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_apart_from_content(start, model, stream):  # noqa: F811
    run = start(model_path=model, script=say("<think>2+2</think>\n\nFour."),
                reasoning_parser="qwen3")  # fmt: skip
    answer = ask(run, stream=stream)
    if stream:
        content, reasoning, _, finish = gathered(answer.events())
    else:
        (choice,) = answer.json()["choices"]
        finish = choice["finish_reason"]
        content, reasoning = choice["message"]["content"], choice["message"]["reasoning_content"]
    assert (content.strip(), reasoning.strip(), finish) == ("Four.", "2+2", "stop")


def test_separate_reasoning_false(start, model):  # noqa: F811
    run = start(model_path=model, script=say("<think>a</think>b"), reasoning_parser="qwen3")
    (choice,) = ask(run, separate_reasoning=False).json()["choices"]
    assert choice["message"]["content"] == "<think>a</think>b"


def test_reasoning_then_a_call(start, model):  # noqa: F811
    run = start(model_path=model, script=say("<think>look up</think>" + CALL),
                reasoning_parser="qwen3", tool_call_parser="qwen25")  # fmt: skip
    content, reasoning, calls, finish = gathered(ask(run, tools=[WEATHER], stream=True).events())
    assert (content.strip(), reasoning, finish) == ("", "look up", "tool_calls")
    assert [c["name"] for c in calls] == ["get_weather"]


def test_a_call_cut_by_the_length(start, model):  # noqa: F811
    run = start(model_path=model, tool_call_parser="hermes",
                script=say(CALL[:60], {"type": "length", "length": 60}))  # fmt: skip
    events = call(
        run.address, "POST", PATH, {"messages": HI, "tools": [WEATHER], "stream": True}
    ).events()  # fmt: skip
    _, _, calls, finish = gathered(events)
    assert finish == "length" and len(calls) <= 1


def test_the_template_says_where_the_answer_starts(start, model):  # noqa: F811
    """Inside reasoning only where the prompt's end opens it, or the request's own beginning."""
    run = start(model_path=model, script=say("Four."), reasoning_parser="qwen3")
    (choice,) = ask(run).json()["choices"]
    assert choice["message"]["content"] == "Four."
    begun = [*HI, {"role": "assistant", "content": "<think>2+2 is"}]
    (choice,) = ask(run, begun, continue_final_message=True).json()["choices"]
    assert choice["message"]["reasoning_content"] == "Four."

    opening = TEMPLATE + "<think>{% if enable_thinking is false %}</think>{% endif %}"
    run = start(model_path=model, script=say("2+2</think>Four."), reasoning_parser="qwen3",
                chat_template=opening)  # fmt: skip
    for fields in ({}, {"reasoning_effort": "high"}):
        (choice,) = ask(run, **fields).json()["choices"]
        assert choice["message"]["reasoning_content"] == "2+2"
        assert choice["message"]["content"] == "Four."
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    for fields in ({"reasoning_effort": "none"}, off):
        (choice,) = ask(run, **fields).json()["choices"]
        assert choice["message"]["reasoning_content"] is None
        assert choice["message"]["content"] == "2+2</think>Four."
