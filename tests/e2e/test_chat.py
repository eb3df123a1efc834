"""/v1/chat/completions over real sockets. The scheduler echoes the rendered prompt's bytes."""

from __future__ import annotations

import json

import pytest

from tests import tiny_tokenizer
from tests.http_client import Client, call

PATH = "/v1/chat/completions"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}]"
    "{{ m.content }}{% endfor %}{% if tools %}<{{ tools | length }} tools>{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def model(tmp_path):
    """The byte tokenizer with a chat template."""
    folder = tiny_tokenizer.write(tmp_path / "chat-model")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": "<bos>", "eos_token": "<eos>"})
    )
    return str(folder)


def ask(run, messages=None, **fields):
    return call(run.address, "POST", PATH, {"model": "tiny", "messages": messages or HI, **fields})


def say(text, finish=None):
    """A script that answers with `text`, one byte a step."""

    def script(header, ids):
        data = text.encode()
        last = finish or {"type": "stop", "matched": 256}
        frames = [([byte], None) for byte in data]
        return [*frames, ([256], last)]

    return script


def prompt_of(run):
    """The prompt the scheduler got, as text."""
    return bytes(i for i in run.scheduler.prompts[-1] if i < 256).decode()


def test_unary(start, model):
    run = start(model_path=model, script=say("Hello!"))
    body = ask(run, rid="c1").json()
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": "c1", "object": "chat.completion", "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "reasoning_content": None},
                "logprobs": None, "finish_reason": "stop", "matched_stop": 256,
            }
        ],
        "usage": {
            "prompt_tokens": 20, "total_tokens": 27, "completion_tokens": 7,
            "prompt_tokens_details": None, "reasoning_tokens": 0,
            "completion_tokens_details": None,
        },
        "metadata": {"weight_version": "default"},
    }  # fmt: skip


def test_the_prompt_is_rendered_with_one_bos(start, model):
    run = start(model_path=model, script=say("x"))
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
         "name": "Ann"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]  # fmt: skip
    assert ask(run, messages).status == 200
    ids = run.scheduler.prompts[-1]
    assert ids[0] == tiny_tokenizer.BOS and ids.count(tiny_tokenizer.BOS) == 1
    shown = prompt_of(run)
    assert shown.startswith("[system]be brief[user Ann]a")
    assert shown.endswith("b[assistant]c[user]d[assistant]")


def test_no_limit_by_default(start, model):
    run = start(model_path=model, script=say("x"))
    ask(run)
    ask(run, max_tokens=5)
    ask(run, max_completion_tokens=6)
    ask(run, max_completion_tokens=7, max_tokens=9)  # its older name, wherever it stands
    ask(run, max_completion_tokens=None, max_tokens=9)
    # 0 is none, as SGLang's Python frontend has it.
    ask(run, max_tokens=0)
    ask(run, max_completion_tokens=0)
    ask(run, max_completion_tokens=0, max_tokens=8)
    ask(run, max_completion_tokens=8, max_tokens=0)
    asked = [m[8][0] for m in run.scheduler.received]
    assert asked == [None, 5, 6, 7, 9, None, None, 8, 8]


def test_stream(start, model):
    run = start(model_path=model, script=say("Hé!"))
    events = ask(run, stream=True, rid="c2").events()
    assert events.pop() == "[DONE]"
    assert all(e["id"] == "c2" and e["object"] == "chat.completion.chunk" for e in events)
    assert all(list(e) == ["id", "object", "created", "model", "choices"] for e in events)
    choices = [e["choices"][0] for e in events]
    assert [c["delta"] for c in choices] == [
        {"reasoning_content": None, "role": "assistant", "content": ""},
        {"reasoning_content": None, "content": "H"},
        {"reasoning_content": None, "content": "é"},
        {"reasoning_content": None, "content": "!"},
        {"reasoning_content": None},
    ]
    assert [c["finish_reason"] for c in choices] == [None, None, None, None, "stop"]
    assert choices[-1]["matched_stop"] == 256


@pytest.mark.parametrize(
    "options, chunks", [({"include_usage": True}, 1), ({"include_usage": False}, 0), ({}, 0),
                        (None, 0)],
)  # fmt: skip
def test_usage_chunk(start, model, options, chunks):
    run = start(model_path=model, script=say("abc"))
    events = ask(run, stream=True, stream_options=options).events()
    usages = [e for e in events[:-1] if not e["choices"]]
    assert len(usages) == chunks
    if chunks:
        assert events[-2] is usages[0]
        assert usages[0]["usage"]["completion_tokens"] == 4


def test_usage_in_every_chunk(start, model):
    run = start(model_path=model, script=say("abc"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(run, stream=True, stream_options=options).events()
    assert [e["usage"]["completion_tokens"] for e in events[:-1]] == [1, 1, 2, 3, 4, 4]


@pytest.mark.parametrize("stream", [False, True])
def test_n(start, model, stream):
    run = start(model_path=model, script=say("ab"))
    answer = ask(run, n=3, stream=stream, stream_options={"include_usage": True})
    if not stream:
        body = answer.json()
        assert [c["index"] for c in body["choices"]] == [0, 1, 2]
        assert {c["message"]["content"] for c in body["choices"]} == {"ab"}
        usage = body["usage"]
    else:
        events = answer.events()
        texts, roles, ends = ["", "", ""], [0, 0, 0], [0, 0, 0]
        for event in events[:-2]:
            (choice,) = event["choices"]
            k = choice["index"]
            assert not ends[k]
            roles[k] += "role" in choice["delta"]
            texts[k] += choice["delta"].get("content", "")
            ends[k] += choice["finish_reason"] is not None
        assert texts == ["ab"] * 3 and roles == ends == [1, 1, 1]
        assert len({e["id"] for e in events[:-1]}) == 1
        usage = events[-2]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 9)
    assert run.scheduler.prompts[0] == run.scheduler.prompts[1] == run.scheduler.prompts[2]


def test_continue_final_message(start, model):
    run = start(model_path=model, script=say("x"))
    messages = [*HI, {"role": "assistant", "content": "Once upon"}]
    ask(run, messages, continue_final_message=True)
    assert prompt_of(run) == "[user]hi[assistant]Once upon"


def test_template_variables(start, model, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}|{{ mood }}|{{ enable_thinking }}")
    run = start(
        model_path=model, script=say("x"), chat_template=str(tmp_path / "t.jinja"),
        default_chat_template_kwargs='{"mood": "calm", "enable_thinking": true}',
    )  # fmt: skip
    ask(run)
    assert prompt_of(run) == "hi|calm|True"
    ask(run, chat_template_kwargs={"mood": "gay"}, reasoning_effort="none")
    assert prompt_of(run) == "hi|gay|False"


def test_sampling_parameters_reach_the_scheduler(start, model):
    from tpc_server import DefaultSamplingParams, ModelConfig
    from tpc_server.boundary.messages import SAMPLING

    config = ModelConfig(
        context_len=4096, vocab_size=tiny_tokenizer.VOCAB,
        default_sampling_params=DefaultSamplingParams(
            temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1
        ),
    )  # fmt: skip
    run = start(model_path=model, script=say("x"), model_config=config)
    ask(run, top_p=0.5, seed=7, stop=["zz"], frequency_penalty=0.5, logit_bias={"5": 1},
        min_tokens=2, ignore_eos=True, response_format={"type": "json_object"})  # fmt: skip
    sent = run.scheduler.received[-1][8]
    got = {name: sent[at] for name, at in SAMPLING.items()}
    wanted = {
        "temperature": 0.6, "top_p": 0.5, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
        "sampling_seed": 7, "stop_strs": ["zz"], "stop_str_max_len": 2, "frequency_penalty": 0.5,
        "logit_bias": {"5": 1.0}, "min_new_tokens": 2, "ignore_eos": True,
        "json_schema": '{"type": "object"}', "n": 1,
    }  # fmt: skip
    assert {name: got[name] for name in wanted} == wanted


def test_json_schema_is_forwarded(start, model):
    from tpc_server.boundary.messages import SAMPLING

    run = start(model_path=model, script=say("x"))
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    assert ask(run, response_format=wanted).status == 200
    assert json.loads(run.scheduler.received[-1][8][SAMPLING["json_schema"]]) == schema


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"messages": []}, "messages cannot be empty."),
        ({"messages": "hi"}, "`messages`"),
        ({"messages": [1]}, "`messages[0]`"),
        ({"messages": [{"content": "x"}]}, "`messages[0].role`"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role must be one of"),
        ({"messages": [{"role": "user"}]}, "`messages[0].content`"),
        ({"messages": [{"role": "user", "content": 5}]}, "`messages[0].content`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "`messages[0].content[0].text`",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text only"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "`messages[0].tool_calls[0].function`",
        ),
        ({"tools": {}}, "`tools`"),
        ({"tools": [{"type": "function", "function": {"name": 1}}]}, "`tools[0].function.name`"),
        ({"tools": [{"type": "x", "function": {"name": "f"}}]}, "tools[0].type must be function"),
        (
            {
                "tools": [{"function": {"name": "f", "parameters": {"$defs": [1]}}}],
                "tool_choice": "required",
            },
            "`tools[0].function.parameters.$defs`",
        ),
        ({"tool_choice": "required"}, "tools cannot be empty"),
        ({"tool_choice": "often"}, "tool_choice must be"),
        (
            {
                "tools": [{"function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "not among the tools",
        ),
        ({"tools": [{"function": {"name": "f"}}]}, "--tool-call-parser (hermes"),
        ({"tools": [{"function": {"name": "f"}}]}, "tool_choice none leaves the tools uncalled"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 259}, "top_logprobs must be in [0, 258]"),
        ({"logprobs": 1}, "`logprobs`"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort must be one of"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": []}, "`chat_template_kwargs`"),
        ({"stream": True, "return_token_ids": True}, "return_token_ids is not supported with"),
        ({"max_tokens": 100000}, "max_tokens is too large"),
        ({"max_completion_tokens": False}, "`max_completion_tokens`"),
        ({"functions": [{"name": "f"}]}, "functions is not supported by this server: use tools"),
        ({"function_call": {"name": "f"}}, "function_call is not supported by this server"),
        ({"function_call": "auto"}, "function_call is not supported by this server"),
        ({"audio": {"voice": "alloy"}}, "audio is not supported by this server"),
        ({"prediction": {"type": "content"}}, "prediction is not supported by this server"),
        ({"web_search_options": {"a": 1}}, "web_search_options is not supported by this server"),
        ({"return_flat_raw_top_logprobs_b64": 3}, "`return_flat_raw_top_logprobs_b64`"),
        ({"n": 5000}, "n must be at most 4096, got 5000."),
        ({"n": 4096, "user": "x" * 20000}, "n is too large: 4096 copies of this conversation"),
        ({"temperature": None, "top_k": 0}, "top_k must be -1"),
    ],
)
def test_bad_requests_name_the_field(start, model, fields, text):
    run = start(model_path=model, script=say("x"))
    with Client(run.address) as client:
        answer = client.call("POST", PATH, {"messages": HI, **fields})
        assert answer.status == 400, answer.body
        assert text in answer.json()["message"]
        assert answer.json()["type"] == "BadRequestError"
        assert client.call("POST", PATH, {"messages": HI}).status == 200


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": -1, "max_tokens": 5}, "max_completion_tokens"),
        ({"max_completion_tokens": None, "max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1 << 31}, "max_tokens"),
        ({"max_completion_tokens": 1 << 31}, "max_completion_tokens"),
        ({"max_completion_tokens": 1, "min_tokens": 2}, "min_tokens"),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"function": {"name": "f"}, "type": None}]}, "tools[0].type"),
        ({"n": 4097}, "n"),
        ({"n": 1 << 40}, "n"),
        ({"n": 4096, "user": "x" * 20000}, "n"),
        ({"n": 4096, "stop_token_ids": [1] * 2000}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"custom_logit_processor": "x"}, "custom_logit_processor"),
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"lora_path": "eve"}, "lora_path"),
        ({"rid": "r" * 129}, "rid"),
        ({"bootstrap_room": (1 << 63) - 1}, "bootstrap_room"),
    ],
)
def test_refusals_name_the_field_in_param(start, model, fields, param):
    """The one that the client wrote, in the text too."""
    run = start(model_path=model, script=say("x"), options={"grammars": False})
    answer = call(run.address, "POST", PATH, {"messages": HI, **fields})
    assert answer.status == 400
    assert (answer.json()["param"], param in answer.json()["message"]) == (param, True)
    absent = {"max_tokens", "max_completion_tokens"} - fields.keys()
    assert not any(name in answer.json()["message"] for name in absent)


def test_no_template(start):
    answer = ask(start())
    assert answer.status == 400 and "no chat template" in answer.json()["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_template_refuses_is_a_real_status(start, model, tmp_path, stream):
    (tmp_path / "t.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    run = start(model_path=model, chat_template=str(tmp_path / "t.jinja"))
    answer = ask(run, stream=stream)
    assert answer.status == 400 and "roles must alternate" in answer.json()["message"]


def test_token_ids_and_meta_info(start, model):
    run = start(model_path=model, script=say("ab"))
    (choice,) = ask(run, return_token_ids=True, return_meta_info=True).json()["choices"]
    assert choice["response_token_ids"] == [97, 98, 256]
    assert choice["prompt_token_ids"] == run.scheduler.prompts[-1]
    assert choice["meta_info"]["completion_tokens"] == 3
    assert choice["meta_info"]["finish_reason"] == {"type": "stop", "matched": 256}


def test_input_ids_replace_the_messages(start, model):
    run = start(model_path=model, script=say("ab"))
    assert ask(run, input_ids=[5, 6, 7]).status == 200
    assert run.scheduler.prompts[-1] == [5, 6, 7]
