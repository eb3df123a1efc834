"""/v1/messages and its /count_tokens: Anthropic's API over the chat path. `stream_rules` checks the
order of every stream's events."""

from __future__ import annotations

import json

import pytest

from tests import stream_rules
from tests.e2e.test_chat import TEMPLATE, model, prompt_of, say  # noqa: F401
from tests.e2e.test_chat_tools import CALL
from tests.http_client import Client, call
from tpc_server.boundary.messages import GENERATE, SAMPLING
from tpc_server.render import anthropic, native

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
TOOL = {
    "name": "get_weather",
    "description": "Weather of a place",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def body_of(messages=None, **fields):
    return {"model": "tiny", "max_tokens": 200, "messages": messages or HI, **fields}


def ask(run, messages=None, **fields):
    return call(run.address, "POST", PATH, body_of(messages, **fields))


def error_of(answer):
    told = answer.json()
    assert list(told) == ["type", "error"] and told["type"] == "error"
    assert list(told["error"]) == ["type", "message"]
    return answer.status, told["error"]["type"], told["error"]["message"]


def test_unary(start, model):  # noqa: F811
    run = start(model_path=model, script=say('Hello "you"!'))
    assert ask(run, rid="c1").json() == {
        "id": "msg_c1", "type": "message", "role": "assistant",
        "content": [{"type": "text", "text": 'Hello "you"!'}],
        "model": "tiny", "stop_reason": "end_turn",
        "usage": {"input_tokens": 20, "output_tokens": 13},
    }  # fmt: skip
    assert prompt_of(run) == "[user]hi[assistant]"
    assert ask(run).json()["id"].startswith("msg_")


def test_stream(start, model):  # noqa: F811
    run = start(model_path=model, script=say("Hé!"))
    answer = ask(run, stream=True, rid="c2")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.events() == [
        {"type": "message_start", "message": {
            "id": "msg_c2", "type": "message", "role": "assistant", "content": [],
            "model": "tiny", "usage": {"input_tokens": 20, "output_tokens": 0}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[
            {"type": "content_block_delta", "index": 0,
             "delta": {"type": "text_delta", "text": text}}
            for text in "Hé!"
        ],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]  # fmt: skip


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_stream_ends_the_answer(start, model, version):  # noqa: F811
    """The connection is kept, or closed, as after any other answer; the bytes are whole."""
    run = start(model_path=model, script=say("ab" * 40))
    data = json.dumps(body_of(stream=True)).encode()
    with Client(run.address) as client:
        client.send(
            b"POST %b HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (PATH.encode(), version, len(data), data)
        )
        (block,) = stream_rules.blocks(client.answer().events())
        assert block == {"type": "text", "text": "ab" * 40}
        if version == b"1.1":
            assert client.call("GET", "/health").status == 200


def test_nothing_said(start, model):  # noqa: F811
    """No block in a stream, an empty one in an answer."""
    run = start(model_path=model, script=say(""))
    kinds = [event["type"] for event in ask(run, stream=True).events()]
    assert kinds == ["message_start", "message_delta", "message_stop"]
    assert ask(run).json()["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("finish", "said", "more"),
    [
        ({"type": "length", "length": 3}, "max_tokens", {}),
        ({"type": "stop", "matched": "!"}, "stop_sequence", {"stop_sequence": "!"}),
        ({"type": "abort", "message": "x"}, "end_turn", {}),
    ],
)
def test_why_it_ended(start, model, finish, said, more):  # noqa: F811
    run = start(model_path=model, script=say("abc!", finish))
    answer = ask(run, stop_sequences=["!"]).json()
    assert answer["stop_reason"] == said
    assert {name: answer[name] for name in answer if name == "stop_sequence"} == more
    *_, delta, _ = ask(run, stop_sequences=["!"], stream=True).events()
    assert delta["delta"] == {"stop_reason": said, **more}


def test_the_parameters_reach_the_scheduler(start, model):  # noqa: F811
    run = start(model_path=model, script=say("x"), preferred_sampling_params='{"top_k": 3}')
    asked = {
        "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 40,
        "stop_sequences": ["a", "b"], "metadata": {"user_id": "u"}, "betas": ["any"],
        "routed_dp_rank": 0, "a name of the future": {"b": [1]},
    }  # fmt: skip
    assert ask(run, **asked).status == 200
    sent = run.scheduler.received[-1]
    sampling = sent[GENERATE["sampling_params"]]
    told = {
        name: sampling[SAMPLING[name]]
        for name in ("max_new_tokens", "temperature", "top_p", "top_k", "stop_strs")
    }
    assert told == {
        "max_new_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 40,
        "stop_strs": ["a", "b"],
    }  # fmt: skip
    assert sent[GENERATE["routed_dp_rank"]] == 0
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}, "effort": "xhigh",
              "task_budget": {"type": "tokens", "total": 9}}  # fmt: skip
    assert ask(run, output_config=config).status == 200
    sampling = run.scheduler.received[-1][GENERATE["sampling_params"]]
    assert json.loads(sampling[SAMPLING["json_schema"]]) == schema


@pytest.mark.parametrize("stream", [False, True])
def test_a_call(start, model, stream):  # noqa: F811
    run = start(model_path=model, script=say("Let me see.\n" + CALL), tool_call_parser="hermes")
    answer = ask(run, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],
                 stream=stream)  # fmt: skip
    if stream:
        events = answer.events()
        text, use = stream_rules.blocks(events)
        why = events[-2]["delta"]["stop_reason"]
    else:
        text, use = answer.json()["content"]
        why = answer.json()["stop_reason"]
    assert text["text"].strip() == "Let me see." and why == "tool_use"
    assert use.pop("id").startswith("call_")
    assert use == {"type": "tool_use", "name": "get_weather", "input": {"city": 'Köln "x"'}}
    assert "<1 tools>" in prompt_of(run)


@pytest.mark.parametrize("stream", [False, True])
def test_two_calls_are_two_blocks(start, model, stream):  # noqa: F811
    other = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
    run = start(model_path=model, script=say(CALL + other), tool_call_parser="hermes")
    answer = ask(run, tools=[TOOL], stream=stream)
    blocks = stream_rules.blocks(answer.events()) if stream else answer.json()["content"]
    assert [block["input"] for block in blocks] == [{"city": 'Köln "x"'}, {}]
    assert blocks[0]["id"] != blocks[1]["id"]


def test_a_call_cut_by_the_length(start, model):  # noqa: F811
    run = start(model_path=model, tool_call_parser="hermes",
                script=say(CALL[:-20], {"type": "length", "length": 60}))  # fmt: skip
    answer = ask(run, tools=[TOOL]).json()
    assert answer["stop_reason"] == "max_tokens"
    assert [block.get("input", {}) for block in answer["content"]] == [{}]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "any"}, True),
        ({"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}, True),
        ({"type": "none"}, False),
    ],
)
def test_tool_choice(start, model, choice, sent):  # noqa: F811
    run = start(model_path=model, script=say("x"), tool_call_parser="hermes")
    assert ask(run, tools=[TOOL], tool_choice=choice).status == 200
    sampling = run.scheduler.received[-1][GENERATE["sampling_params"]]
    assert bool(sampling[SAMPLING["json_schema"]]) == sent


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_block(start, model, stream):  # noqa: F811
    run = start(model_path=model, script=say("<think>2+2</think>\n\nFour."),
                reasoning_parser="qwen3")  # fmt: skip
    answer = ask(run, stream=stream, thinking={"type": "enabled", "budget_tokens": 1024})
    blocks = stream_rules.blocks(answer.events()) if stream else answer.json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert blocks[0]["thinking"].strip() == "2+2" and blocks[1]["text"].strip() == "Four."


def test_thinking_is_switched(start, model, tmp_path):  # noqa: F811
    (tmp_path / "t.jinja").write_text("{{ enable_thinking }}")
    run = start(model_path=model, script=say("x"), reasoning_parser="qwen3",
                chat_template=str(tmp_path / "t.jinja"))  # fmt: skip
    for thinking, shown in (({"type": "disabled"}, "False"), ({"type": "adaptive"}, "True")):
        assert ask(run, thinking=thinking).status == 200 and prompt_of(run) == shown
    always = start(model_path=model, script=say("x"), reasoning_parser="deepseek-r1")
    status, _, message = error_of(ask(always, thinking={"type": "disabled"}))
    assert status == 400 and "always" in message
    assert ask(always, thinking={"type": "adaptive"}).status == 200
    without = start(model_path=model, script=say("x"))
    assert ask(without, thinking={"type": "disabled"}).status == 200
    status, _, message = error_of(ask(without, thinking={"type": "adaptive"}))
    assert status == 400 and "--reasoning-parser" in message


def test_a_conversation(start, model, tmp_path):  # noqa: F811
    """Blocks become the messages of a chat request, in their order."""
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }}"
        " {{ c.function.arguments.city }}){% endfor %}"
        "{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %};{% endfor %}"
    )
    run = start(model_path=model, script=say("ok"), chat_template=str(tmp_path / "t.jinja"),
                tool_call_parser="hermes", reasoning_parser="qwen3")  # fmt: skip
    found = {"type": "search_result", "title": "T", "source": "s",
             "content": [{"type": "text", "text": "c"}]}  # fmt: skip
    messages = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I ask.", "signature": "s"},
            {"type": "text", "text": "See."},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [
            {"type": "text", "text": "Here:"},
            {"type": "tool_result", "tool_use_id": "t1", "content": "wet"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [
                {"type": "text", "text": "a"}]},
            {"type": "tool_result", "id": "t3", "content": [found], "is_error": True},
            {"type": "tool_result", "id": "t4"},
            {"type": "text", "text": "And now?"}]},
        {"role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ]  # fmt: skip
    assert ask(run, messages, system=[{"type": "text", "text": "Be brief."}]).status == 200
    assert prompt_of(run) == (
        "system:Be brief.;user:Rain?;"
        "assistant:<think>I ask.\n</think> See.(t1 get_weather Oslo);user:Here:;tool:wet#t1;"
        "tool:a#t2;tool:Title: T\nSource: s\nContent: c#t3;tool:#t4;user:And now?;assistant:;"
        "user:Go on.;"
    )


@pytest.mark.parametrize("inline", [True, False])
def test_system_messages_in_the_middle(start, model, tmp_path, inline):  # noqa: F811
    """They stay where a template shows them, else they go in front."""
    shown = "" if inline else "{% if loop.first or m.role != 'system' %}"
    (tmp_path / "t.jinja").write_text(
        f"{{% for m in messages %}}{shown}{{{{ m.role }}}}:{{{{ m.content }}}};"
        + ("" if inline else "{% endif %}") + "{% endfor %}"
    )  # fmt: skip
    run = start(model_path=model, script=say("x"), chat_template=str(tmp_path / "t.jinja"))
    messages = [*HI, {"role": "system", "content": "In French."}, *HI]
    assert ask(run, messages, system="Be brief.").status == 200
    if inline:
        assert prompt_of(run) == "system:Be brief.;user:hi;system:In French.;user:hi;"
    else:
        assert prompt_of(run) == "system:Be brief.\nIn French.;user:hi;user:hi;"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": None}, "missing field `model`"),
        ({"model": 1}, "expected a string at `model`"),
        ({"max_tokens": None}, "missing field `max_tokens`"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": 1.5}, "expected an integer at `max_tokens`"),
        ({"max_tokens": 5000}, "max_tokens is too large"),
        ({"messages": []}, "messages cannot be empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be one of"),
        ({"messages": [{"role": "user"}]}, "at `messages[0].content`"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0].type image is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "expected a string at `messages[0].content[0].text`"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]},
         "redacted_thinking is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]},
         "messages[0].content[0].type must be one of"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]}]},
         "messages[0].content[0].content[0].type image"),
        ({"messages": [{"role": "user", "content": []}]}, "messages have no content"),
        ({"system": 1}, "expected a string or an array of blocks at `system`"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": "hot"}, "expected a number at `temperature`"),
        ({"top_k": 0.5}, "expected an integer at `top_k`"),
        ({"stop_sequences": [""]}, "stop_sequences cannot contain an empty string"),
        ({"stop_sequences": "x"}, "expected an array of strings at `stop_sequences`"),
        ({"stop_sequences": [1]}, "expected a string at `stop_sequences[0]`"),
        ({"stream": 1}, "expected a boolean at `stream`"),
        ({"tools": [{"name": "a"}]}, "expected an object at `tools[0].input_schema`"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "at `tools[0].name`"),
        ({"tools": [{"name": "a", "input_schema": {"required": 1}}]},
         "at `tools[0].input_schema.required`"),
        ({"tools": [TOOL]}, "--tool-call-parser"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type any needs a tool"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type must be"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "b"}},
         "tool_choice.name: 'b' is not among the tools"),
        ({"system": [{"type": "image", "source": {}}]}, "system[0].type must be text, got 'image'"),
        ({"system": [{"type": "text", "text": "a"}, {"type": "tool_use"}]},
         "system[1].type must be text"),
        ({"messages": [*HI, {"role": "user", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]},
         "messages[1].content[0].type must not be tool_use"),
        ({"tool_choice": {}}, "invalid type: null, expected a string at `tool_choice.type`"),
        ({"thinking": {}}, "invalid type: null, expected a string at `thinking.type`"),
        ({"output_config": {"effort": [None]}}, "array, expected a string at `output_config.eff"),
        ({"thinking": {"type": "enabled"}}, "at `thinking.budget_tokens`"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "must be at least 1024"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "cannot be given"),
        ({"thinking": {"type": "maybe"}}, "thinking.type must be"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort must be"),
        ({"output_config": {"format": {"type": "text"}}}, "format.type must be json_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}},
         "at `output_config.format.schema`"),
        ({"metadata": {"a": float("1e308") * 10}}, "not valid JSON"),
    ],
)  # fmt: skip
def test_refused(start, model, fields, told):  # noqa: F811
    run = start(model_path=model, script=say("x"))
    status, kind, message = error_of(call(run.address, "POST", PATH, {**body_of(), **fields}))
    assert (status, kind) == (400, "invalid_request_error") and told in message
    assert not run.scheduler.received


def test_errors_outside_of_the_handler(start, model):  # noqa: F811
    run = start(model_path=model, script=say("x"), options={"max_body_bytes": 1000})
    assert error_of(call(run.address, "POST", PATH, b"not json"))[:2] == (
        400, "invalid_request_error")  # fmt: skip
    assert error_of(call(run.address, "GET", PATH))[:2] == (405, "invalid_request_error")
    assert error_of(call(run.address, "POST", PATH + "/batches", {}))[:2] == (
        404, "not_found_error")  # fmt: skip
    assert error_of(call(run.address, "POST", COUNT, {"messages": HI}))[0] == 400


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_scheduler(start, model, stream):  # noqa: F811
    finish = {"type": "abort", "status_code": 503, "message": "too busy"}
    run = start(model_path=model, script=say("ab", finish))
    answer = ask(run, stream=stream)
    if not stream:
        assert error_of(answer) == (503, "overloaded_error", "too busy")
        return
    events = answer.events()
    assert events[-2] == {
        "type": "error", "error": {"type": "overloaded_error", "message": "too busy"}
    }  # fmt: skip
    assert stream_rules.blocks(events) == [{"type": "text", "text": "ab"}]


def test_count_tokens(start, model):  # noqa: F811
    run = start(model_path=model, script=say("x"), tool_call_parser="hermes")
    for fields in ({}, {"system": "Be brief."}, {"tools": [TOOL]},
                   {"messages": [{"role": "user", "content": "word " * 3000}]}):  # fmt: skip
        body = {"model": "tiny", "messages": HI, **fields}
        answer = call(run.address, "POST", COUNT, body)
        assert answer.status == 200 and list(answer.json()) == ["input_tokens"]
        if len(str(fields)) < 1000:
            asked = call(run.address, "POST", PATH, {**body, "max_tokens": 1}).json()
            assert asked["usage"]["input_tokens"] == answer.json()["input_tokens"]
        else:
            assert answer.json()["input_tokens"] > 3000


def test_count_tokens_of_what_cannot_be_rendered(start, model, tmp_path):  # noqa: F811
    (tmp_path / "t.jinja").write_text("{{ raise_exception('no such talk') }}")
    run = start(model_path=model, chat_template=str(tmp_path / "t.jinja"))
    for text in ("hi", "long " * 5000):
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
        status, kind, message = error_of(call(run.address, "POST", COUNT, body))
        assert (status, kind) == (400, "invalid_request_error") and "no such talk" in message


def test_cached_tokens_are_told_where_they_are_wanted(start, model):  # noqa: F811
    run = start(model_path=model, script=say("x"), options={"cache_report": True})
    usage = ask(run).json()["usage"]
    assert usage["input_tokens"] + usage.get("cache_read_input_tokens", 0) == 20


def test_a_large_body_is_decoded_beside_the_core(start, model):  # noqa: F811
    run = start(model_path=model, script=say("x"))
    messages = [{"role": "user", "content": "a,b"}, {"role": "assistant", "content": "c"}] * 600
    assert call(run.address, "POST", COUNT, body_of(messages)).json()["input_tokens"] > 10_000


def test_an_abort_by_rid(start, model):  # noqa: F811
    run = start(model_path=model, manual=True)
    with Client(run.address) as client:
        client.request("POST", PATH, body_of(rid="mine"))
        run.scheduler.wait_for(lambda s: s.received)
        assert call(run.address, "POST", "/abort_request", {"rid": "mine"}).status == 200
        run.scheduler.wait_for(lambda s: s.aborted)


@pytest.mark.parametrize("arguments", ['{"x": NaN}', '{"x": -Infinity}', '{"x": 1e999}', "[7]"])
def test_arguments_that_are_no_object_are_none(start, model, arguments):  # noqa: F811
    """What a model writes ends no core, and no answer."""
    told = '<tool_call>\n{"name": "get_weather", "arguments": ' + arguments + "}\n</tool_call>"
    run = start(model_path=model, script=say(told), tool_call_parser="hermes")
    for _ in range(2):
        answer = ask(run, tools=[TOOL], max_tokens=400)
        assert answer.status == 200, answer.body[:300]
        for block in answer.json()["content"]:
            assert block["type"] != "tool_use" or block["input"] == {}
    assert run.total("resets") == 0


@pytest.mark.parametrize("arguments", ["[" * 12000, '{"x": ' * 12000, '{"x": "\\ud800"}', ""])
def test_arguments_beyond_reason_are_none(arguments):
    (block,) = anthropic._blocks([("call", 0, "call_1", "f", arguments)])
    assert block["type"] == "tool_use" and block["input"] in ({}, {"x": "\ud800"})
    native.to_json([block])  # what is shown can be written


def test_an_effort_of_a_thinking_that_is_off_is_refused(start, model):  # noqa: F811
    """Where both are one variable of the template the one would silently win over the other."""
    run = start(model_path=model, reasoning_parser="mistral")
    off = {"thinking": {"type": "disabled"}}
    assert ask(run, **off, max_tokens=1).status == 200
    status, _, told = error_of(ask(run, **off, output_config={"effort": "high"}))
    assert status == 400 and told.startswith("output_config.effort cannot be given with thinking")
