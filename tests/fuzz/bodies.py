"""Requests out of the declared request types. Owner: stateless; one `random.Random` a request."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final, NamedTuple

from tests.fuzz.values import KEYS, STRINGS, good, near, scalar, wild
from tests.json_schema import valid
from tpc_server.openapi.document import document

TYPES: Final = document("0")["components"]["schemas"]
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
APIS: Final = (GENERATE, COMPLETIONS, CHAT)
GENERATING: Final = (*APIS, MESSAGES)
TYPE_OF: Final = {
    GENERATE: "GenerateRequest",
    COMPLETIONS: "CompletionRequest",
    CHAT: "ChatCompletionRequest",
    MESSAGES: "MessagesRequest",
    COUNT: "CountTokensRequest",
    "/tokenize": "TokenizeRequest",
    "/detokenize": "DetokenizeRequest",
    "/abort_request": "AbortRequest",
    "/parse_function_call": "ParseRequest",
    "/separate_reasoning": "SeparateRequest",
    "/weights_checker": "CheckWeightsRequest",
}
BASES: Final[dict[str, Any]] = {
    COUNT: {"model": "tiny", "messages": [{"role": "user", "content": "abc"}]},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [97, 98]},
    "/abort_request": {"rid": "no such"},
    "/parse_function_call": {"text": "abc", "tool_call_parser": "json", "tools": []},
    "/weights_checker": {},
    "/separate_reasoning": {"text": "<think>a</think>b", "reasoning_parser": "think"},
}
# Of /generate's sampling parameters, as /v1/completions and /v1/chat/completions call them.
OPENAI_NAMES: Final = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed",
}  # fmt: skip
_WORDS: Final = ("fox", "déjà", "世界", "🎉", "\\n", "0123", "a b", "lazy", "\u2028")
_STOPS: Final = (
    "fox",
    "o",
    "世",
    "🎉",
    "dog.\n",
    "lazy cat",
    "e ",
    "русский",
    "zzz",
    "\ufffd",
    "q",
)
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class Ask(NamedTuple):
    """One request of a client; `changed` names the one field that is not a good body's own."""

    path: str
    body: Any
    changed: str = ""
    fits: bool = True  # its value is of the field's schema


def prompt(rng: Random) -> str:
    """A short text."""
    return " ".join(rng.choices(_WORDS, k=rng.randint(1, 4)))


def ids(rng: Random) -> list[int]:
    """A short prompt of bytes."""
    return list(prompt(rng).encode())


def params(rng: Random) -> dict[str, Any]:
    """Sampling parameters that every generating route has, by /generate's names."""
    out: dict[str, Any] = {"max_new_tokens": rng.choice((1, 2, 5, 17, 40, 70))}
    if rng.random() < 0.4:
        out["sampling_seed"] = rng.getrandbits(rng.choice((3, 40)))
    for name, odds, make in (
        ("stop", 0.35, lambda: rng.sample(_STOPS, rng.randint(1, 3))),
        ("stop_token_ids", 0.15, lambda: rng.sample((32, 111, 0x9F, 256), 2)),
        ("stop_regex", 0.1, lambda: [rng.choice(("[a-z]{5}", r"\d", "[vx]", " . "))]),
        ("no_stop_trim", 0.2, lambda: True),
        ("ignore_eos", 0.2, lambda: True),
        ("skip_special_tokens", 0.2, lambda: rng.random() < 0.5),
        ("min_new_tokens", 0.1, lambda: rng.randint(0, out["max_new_tokens"])),
        ("temperature", 0.2, lambda: rng.choice((0, 0.0, 0.7, 1))),
        ("top_p", 0.1, lambda: rng.choice((0.1, 1))),
        ("logit_bias", 0.05, lambda: {"7": 1.5}),
        ("n", 0.2, lambda: rng.choice((1, 2, 3, 5))),
    ):
        if rng.random() < odds:
            out[name] = make()
    return out


def openai(native: dict[str, Any]) -> dict[str, Any]:
    """The same parameters by OpenAI's names."""
    return {OPENAI_NAMES.get(name, name): value for name, value in native.items()}


def base(rng: Random, path: str) -> dict[str, Any]:
    """A good body of a route."""
    if path in BASES:
        return dict(BASES[path])
    given = {"max_new_tokens": rng.choice((1, 3, 12))}
    if path == GENERATE:
        return {"text": prompt(rng), "sampling_params": given}
    if path == COMPLETIONS:
        return {"prompt": prompt(rng), **openai(given)}
    if path == MESSAGES:
        return {"model": "tiny", "messages": turns(rng), "max_tokens": given["max_new_tokens"]}
    return {"messages": messages(rng), **openai(given)}


def messages(rng: Random) -> list[dict[str, Any]]:
    """A good conversation."""
    out: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        out.append({"role": "system", "content": prompt(rng)})
    for _ in range(rng.randint(0, 2)):
        out.append({"role": "user", "content": prompt(rng)})
        out.append(
            rng.choice((
                {"role": "assistant", "content": prompt(rng), "reasoning_content": "hm"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function",
                     "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ))
        )  # fmt: skip
    text = prompt(rng)
    parts = [{"type": "text", "text": text}, {"type": "text", "text": "!"}]
    out.append({"role": "user", "content": rng.choice((text, parts))})
    return out


def turns(rng: Random) -> list[dict[str, Any]]:
    """A good conversation of Anthropic's."""
    out: list[dict[str, Any]] = []
    for _ in range(rng.randint(0, 2)):
        out.append({"role": "user", "content": prompt(rng)})
        out.append(
            rng.choice((
                {"role": "assistant", "content": prompt(rng)},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]},
                {"role": "system", "content": prompt(rng)},
            ))
        )  # fmt: skip
    text = prompt(rng)
    parts = [{"type": "text", "text": text}, {"type": "text", "text": "!"}]
    out.append({"role": "user", "content": rng.choice((text, parts))})
    return out


def one_changed(rng: Random, path: str) -> Ask:
    """A good body with one more field, or one other value: good, nearly good, or anything."""
    body = base(rng, path)
    named = TYPES[TYPE_OF[path]]["properties"]
    inner = path == GENERATE and rng.random() < 0.5
    if inner:
        named = TYPES["SamplingParams"]["properties"]
    name = rng.choice([n for n in named if n not in ("stream", "sampling_params", "abort_all")])
    kind = rng.random()
    make = good if kind < 0.45 else near if kind < 0.85 else (lambda r, *_: wild(r))
    value = make(rng, named[name], TYPES)
    if name == "n" and isinstance(value, int) and 40 < value < 5000:
        value = 33
    if path == "/abort_request" and isinstance(value, str):
        value = f"no-{value}"
    target = body["sampling_params"] if inner else body
    target[name] = value
    if name == "input_ids" and path == GENERATE:
        del body["text"]
    return Ask(path, body, name, valid(value, named[name], TYPES))


def several_changed(rng: Random, path: str) -> Ask:
    """A body of many fields, each good or not."""
    body = base(rng, path) if rng.random() < 0.7 else {}
    named = TYPES[TYPE_OF[path]]["properties"]
    for name in rng.sample(list(named), min(len(named), rng.randint(1, 8))):
        body[name] = rng.choice((good, good, good, near))(rng, named[name], TYPES)
    if rng.random() < 0.2:
        body[rng.choice(KEYS)] = wild(rng)
    return Ask(path, _tamed(path, body))


def anything(rng: Random, path: str) -> Ask:
    """Any JSON value, or bytes that are none."""
    kind = rng.random()
    if kind < 0.4:
        named = list(TYPES[TYPE_OF[path]]["properties"])
        body: Any = {rng.choice(named): wild(rng) for _ in range(rng.randint(0, 5))}
        if rng.random() < 0.5:
            body = {**base(rng, path), **body}
        return Ask(path, _tamed(path, body))
    if kind < 0.5:
        return Ask(path, json.dumps(scalar(rng) if rng.random() < 0.5 else [wild(rng)]).encode())
    raw = bytearray(json.dumps(base(rng, path)).encode())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw) + 1)
        what = rng.randrange(4)
        if what == 0:
            del raw[at : at + rng.randint(1, 4)]
        elif what == 1:
            raw[at:at] = rng.choice(
                (b"\\", b'"', b"{", b"]", b",", b"1e999", b"NaN", b"\xc3", b"\\ud83d", b"-", b"\0",
                 b"[" * 200)
            )  # fmt: skip
        elif what == 2:
            raw[at : at + 1] = bytes([rng.randrange(256)])
        else:
            raw = raw[:at] or bytearray(b"x")
    return Ask(path, bytes(raw))


def _tamed(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Without what would disturb others, or last for minutes."""
    sampling = body.get("sampling_params")
    for part in (body, *(sampling if isinstance(sampling, list) else [sampling])):
        if isinstance(part, dict) and isinstance(part.get("n"), int) and 40 < part["n"] < 5000:
            part["n"] = 33
    if path == "/abort_request":
        body.pop("abort_all", None)
        rid = body.get("rid")
        if isinstance(rid, str):
            body["rid"] = f"no-{rid}"
        elif isinstance(rid, list):
            body["rid"] = [f"no-{r}" if isinstance(r, str) else r for r in rid]
    return body


def conversation(rng: Random) -> Ask:
    """A chat request with something wrong deep inside its messages or tools."""
    body: dict[str, Any] = {"messages": messages(rng), "tools": [_TOOL], "max_tokens": 3}
    body = json.loads(json.dumps(body))
    place: Any = body[rng.choice(("messages", "messages", "tools"))]
    while True:
        inside = list(place) if isinstance(place, dict) else range(len(place))
        at = rng.choice(list(inside))
        if not isinstance(place[at], dict | list) or not place[at] or rng.random() < 0.3:
            break
        place = place[at]
    kind = rng.random()
    if kind < 0.2:
        del place[at]
    elif kind < 0.3 and isinstance(place, dict):
        place[rng.choice((*KEYS, "tool_calls", "tools", "reasoning_content", "prefix"))] = wild(rng)
    else:
        place[at] = wild(rng)
    if rng.random() < 0.3:
        body["tool_choice"] = rng.choice(
            ("required", "none", {"function": {"name": "x"}}, wild(rng))
        )
    if rng.random() < 0.3:
        body["continue_final_message"] = True
    if rng.random() < 0.3:
        body["chat_template_kwargs"] = wild(rng)
    return Ask(CHAT, body)


def with_tools(rng: Random, body: dict[str, Any]) -> dict[str, Any]:
    """A chat request that may call a function."""
    choice = rng.choice((None, "auto", "none"))
    return {
        **body,
        "tools": [_TOOL],
        "tool_choice": choice,
        "parallel_tool_calls": rng.random() < 0.7,
    }


def query(rng: Random) -> str:
    """A query string for the info routes."""
    return rng.choice(
        ("", "", "?", "?timeout=0", "?timeout=-1", "?timeout=x", "?timeout=0&timeout=1e-3",
         "?format=prometheus", "?format=json", "?format=x", "?include=all", "?include=core,queues",
         "?include=zzz", "?dp_rank=0", "?dp_rank=7", "?dp_rank=x", "?dp_rank=-1", "?%00=%ff",
         "?name[]=sglang:num_requests_total", "?" + rng.choice(STRINGS[:8]).encode().hex())
    )  # fmt: skip
