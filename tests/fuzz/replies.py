"""Whether an answer is one, and the same one as another. Owner: stateless."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import unquote

from tests import stream_rules
from tests.fuzz.bodies import CHAT, GENERATE, MESSAGES, OPENAI_NAMES, Ask
from tests.http_client import Answer

# Whose errors have OpenAI's form, at the top level; others are {"error": {"message", "code"}}.
# So have those of all paths under /v1/.
_FLAT: Final = (
    "/invocations", "/tokenize", "/detokenize", "/parse_function_call", "/separate_reasoning",
)  # fmt: skip
FULL: Final = ("the scheduler's queue is full", "the server is overloaded")
# Members of meta_info that two answers to one request need not share.
_OWN: Final = ("id", "e2e_latency", "output_token_logprobs_length", "weight_versions")
_GROWING: Final = (
    "output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs", "hidden_states",
)  # fmt: skip

# A refusal that is not of the field alone: lengths, and what the other fields say.
_TOGETHER: Final = re.compile(
    r"context length|single request|batch size|not both|cannot both|Only one of|Exactly one of|"
    r"stream to false|copies of this|parameters for \d+ prompts|generations, over|in_flight|"
    r"grammars|is not supported by the synthetic|max_(completion_)?tokens is too large|"
    r"messages cannot|input_embeds|parallel_sample_num"
)


def expect(said: bool, what: str, *about: Any) -> None:
    """AssertionError with everything that helps, when it is not so."""
    if not said:
        raise AssertionError(f"{what}: " + " | ".join([repr(a)[:1500] for a in about]))


def refusal(ask: Ask, answer: Answer) -> str:
    """The text of an answer that is no success; AssertionError when it is not allowed."""
    path = unquote(ask.path.partition("?")[0])
    path = path.removesuffix("/") if len(path) > 1 else path
    value = answer.json()
    if value.get("error", {}).get("code") == "model_not_found":  # as OpenAI has it
        expect(answer.status == 404, "an unknown model", ask, answer.status)
        return str(value["error"]["message"])
    if path.startswith(MESSAGES):
        error = value["error"]
        expect(
            sorted(value) == ["error", "type"] and sorted(error) == ["message", "type"],
            "the error's shape", ask, answer.body,
        )  # fmt: skip
        error["code"] = answer.status
    elif path in _FLAT or path.startswith("/v1/"):
        expect(
            sorted(value) == ["code", "message", "object", "param", "type"]
            and value["object"] == "error",
            "the error's shape", ask, answer.body,
        )  # fmt: skip
        error = value
    else:
        full = ["error", "object", "message", "type", "param", "code"]  # ended by the scheduler
        shapes = ["error"], *([full] if answer.status == 503 else [])
        expect(list(value) in shapes, "the error's shape", ask, answer.body)
        error = value["error"]
        expect(sorted(error) == ["code", "message"], "the error's shape", ask, answer.body)
    message = error["message"]
    expect(error["code"] == answer.status, "the code in the body", ask, answer.body)
    expect(isinstance(message, str) and message != "", "no message", ask, answer.body)
    message = str(message)
    if answer.status == 503:
        expect(message.startswith(FULL), "503", ask, message)
    else:
        expect(400 <= answer.status < 500, f"status {answer.status}", ask, message)
    return message


def names_its_field(ask: Ask, message: str) -> None:
    """The refusal of a body of which one field was changed tells of it."""
    names = {ask.changed, OPENAI_NAMES.get(ask.changed, ask.changed)}
    names |= {native for native, ours in OPENAI_NAMES.items() if ours == ask.changed}
    patterns = [re.escape(name).replace("_", "[_ -]") for name in names]  # a flag of its name
    named = any(re.search(rf"\b{pattern}\b", message, re.I) for pattern in patterns)
    expect(named or bool(_TOGETHER.search(message)), "the field is not named", ask, message)


# -- answers in one form -------------------------------------------------------------------


class Shown:
    """What one item of an answer shows."""

    def __init__(self) -> None:
        self.text = ""
        self.finish: Any = None
        self.more: dict[str, Any] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shown) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return json.dumps(vars(self), ensure_ascii=False)


def unary(path: str, value: Any) -> tuple[list[Shown], Any]:
    """The items of a whole answer, and its usage."""
    if path == GENERATE:
        return [_native(one) for one in (value if isinstance(value, list) else [value])], None
    if path == MESSAGES:
        usage = {"output_tokens": value["usage"]["output_tokens"]}
        return [_message(value["content"], value)], usage
    items = []
    for k, choice in enumerate(value["choices"]):
        expect(choice["index"] == k, "indices in order", value)
        one = Shown()
        if path == CHAT:
            message = choice["message"]
            one.text = message["content"]
            one.more["reasoning"] = message["reasoning_content"] or ""
            one.more["calls"] = [
                [c["function"]["name"], c["function"]["arguments"]]
                for c in message.get("tool_calls", ())
            ]
        else:
            one.text = choice["text"]
            for name in ("prompt_token_ids", "token_ids"):
                if name in choice:
                    one.more[name] = choice[name]
        one.finish = [choice["finish_reason"], choice["matched_stop"]]
        one.more["logprobs"] = choice["logprobs"]
        if choice.get("hidden_states"):
            one.more["hidden_states"] = choice["hidden_states"]
        items.append(one)
    return items, value["usage"]


def streamed(path: str, events: list[Any], incremental: bool) -> tuple[list[Shown], Any]:
    """The same of a stream without an error."""
    if path == MESSAGES:
        end = events[-2]
        return [_message(stream_rules.blocks(events), end["delta"])], end["usage"]
    found: dict[int, Any] = {}
    usage = None
    for event in events[:-1]:
        if path == GENERATE:
            _grow(found, event, incremental)
            continue
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            _add(path, found.setdefault(choice["index"], Shown()), choice)
    if path == GENERATE:
        return [_native(found[k]) for k in sorted(found)], None
    items = [found[k] for k in sorted(found)]
    for one in items:
        one.more.setdefault("logprobs", None)
        if path == CHAT:
            one.more.setdefault("reasoning", "")
            one.more.setdefault("calls", [])
    return items, usage


def _native(value: dict[str, Any]) -> Shown:
    one = Shown()
    one.text = value["text"]
    one.finish = value["meta_info"]["finish_reason"]
    one.more = {k: v for k, v in value["meta_info"].items() if k not in _OWN}
    one.more["output_ids"] = value["output_ids"]
    one.more["prompt_token_ids"] = value.get("prompt_token_ids")
    return one


def _message(blocks: list[dict[str, Any]], why: dict[str, Any]) -> Shown:
    one = Shown()
    one.finish = [why["stop_reason"], why.get("stop_sequence")]
    one.text = "".join([block["text"] for block in blocks if block["type"] == "text"])
    # An answer has an empty block where a stream has none.
    one.more["blocks"] = [block for block in blocks if block != {"type": "text", "text": ""}]
    return one


def _grow(found: dict[int, Any], event: dict[str, Any], incremental: bool) -> None:
    index = event.get("index", 0)
    before = found.get(index)
    if incremental and before is not None:
        event["text"] = before["text"] + event["text"]
        event["output_ids"] = before["output_ids"] + event["output_ids"]
        old, new = before["meta_info"], event["meta_info"]
        for name in _GROWING:
            if name in old or name in new:
                new[name] = old.get(name, []) + new.get(name, [])
        event["prompt_token_ids"] = event.get("prompt_token_ids", before.get("prompt_token_ids"))
    found[index] = event


def _add(path: str, one: Shown, choice: dict[str, Any]) -> None:
    if path == CHAT:
        delta = choice["delta"]
        one.text += delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or ""
        one.more["reasoning"] = one.more.get("reasoning", "") + reasoning
        calls = one.more.setdefault("calls", [])
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
        hidden = delta.get("hidden_states") or choice.get("hidden_states")
    else:
        one.text += choice["text"]
        hidden = choice.get("hidden_states")
        if "prompt_token_ids" in choice:
            one.more["prompt_token_ids"] = choice["prompt_token_ids"]
        if "token_ids" in choice:
            one.more["token_ids"] = one.more.get("token_ids", []) + choice["token_ids"]
    if hidden:
        one.more["hidden_states"] = hidden
    new = choice["logprobs"]
    if new is not None:
        old = one.more.get("logprobs") or {name: [] for name in new}
        one.more["logprobs"] = {name: old[name] + new[name] for name in new}
    if choice["finish_reason"] is not None:
        one.finish = [choice["finish_reason"], choice["matched_stop"]]


def counts(usage: dict[str, Any]) -> dict[str, int]:
    """The counts of a usage; members without one are left out."""
    found = {k: v for k, v in usage.items() if isinstance(v, int)}
    return {"reasoning_tokens": 0, **found}
