"""What holds for every stream whatever was asked for. Owner: tests.

The client applies `check` to every event stream that any test reads whole:

- exactly one `[DONE]`, and nothing after it, also after an error;
- every index ends exactly once, with the finish reason on its last event, unless an error ended
  the stream;
- `output_ids` and counters of a native stream never go back; with text that grows from event to
  event, each text is the start of the next (`cumulative=True` demands it);
- a choice's role comes first and once; usage comes after all choices, once;
- a message (Anthropic's) starts once and stops once and last, without a `[DONE]`; its blocks come
  one after the other, their deltas inside of them and of their kind; the reason comes after all
  blocks, once, unless an error does.

(Every data line is strict JSON: the client's parser sees to that.)
"""

from __future__ import annotations

import json
from typing import Any


def check(events: list[Any], cumulative: bool | None = None) -> None:
    """AssertionError when a rule is broken."""
    assert events, "an empty stream"
    if type(events[-1]) is dict and events[-1].get("type") == "message_stop":
        _message(events)
        return
    assert events.count("[DONE]") == 1 and events[-1] == "[DONE]", events[-3:]
    shown = events[:-1]
    failed = [e for e in shown if "error" in e]
    assert len(failed) <= 1 and (not failed or shown[-1] is failed[0]), "something after an error"
    if failed:
        shown = shown[:-1]
    if not shown:
        assert failed, "neither an event nor an error"
        return
    if "meta_info" in shown[0]:
        _native(shown, bool(failed), cumulative)
    elif "choices" in shown[0]:
        _openai(shown, bool(failed))


def _native(events: list[Any], failed: bool, cumulative: bool | None) -> None:
    ended: set[int] = set()
    last: dict[int, Any] = {}
    for event in events:
        index = event.get("index", 0)
        assert index not in ended, f"index {index} goes on after its end"
        meta = event["meta_info"]
        before = last.get(index)
        if before is not None:
            counted = "completion_tokens"
            assert meta[counted] >= before["meta_info"][counted]
            if cumulative:
                assert event.get("text", "").startswith(before.get("text", ""))
                ids = before["output_ids"]
                assert event["output_ids"][: len(ids)] == ids
        if meta["finish_reason"] is not None:
            ended.add(index)
        last[index] = event
    assert failed or ended == set(last), f"never ended: {set(last) - ended}"


def _openai(events: list[Any], failed: bool) -> None:
    ended: set[int] = set()
    started: set[int] = set()
    usages = 0
    for event in events:
        if not event["choices"]:
            usages += 1
            continue
        assert not usages, "a choice after the usage"
        (choice,) = event["choices"]
        index = choice["index"]
        delta = choice.get("delta")
        hidden = "hidden_states" in choice or "hidden_states" in (delta or {})
        assert index not in ended or hidden, f"choice {index} goes on after its end"
        if delta is not None:
            assert ("role" in delta) == (index not in started), "the role comes first, once"
            said = any(delta.get(k) for k in ("content", "reasoning_content", "tool_calls"))
            says_why = choice["finish_reason"] or choice["logprobs"] or hidden
            assert said or "role" in delta or says_why, "an event that says nothing"
        started.add(index)
        if choice["finish_reason"] is not None:
            ended.add(index)
    assert usages <= 1
    assert failed or ended == started, f"never ended: {started - ended}"


def _message(events: list[Any]) -> None:
    assert events[0]["type"] == "message_start" and events[0]["message"]["content"] == []
    kinds = [event["type"] for event in events]
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    assert kinds.count("message_delta") + kinds.count("error") == 1
    assert kinds[-2] in ("message_delta", "error"), "something between the end and its reason"
    opened, index = None, 0
    for event in events[1:-2]:
        kind = event["type"]
        assert event["index"] == index, event
        if kind == "content_block_start":
            assert opened is None, "a block in a block"
            opened = event["content_block"]["type"]
        elif kind == "content_block_delta":
            wanted = "input_json" if opened == "tool_use" else opened
            assert event["delta"]["type"] == f"{wanted}_delta", event
            assert any(event["delta"][k] for k in event["delta"] if k != "type"), "says nothing"
        else:
            assert kind == "content_block_stop" and opened is not None, event
            opened, index = None, index + 1
    assert opened is None, "a block that never ends"


def blocks(events: list[Any]) -> list[dict[str, Any]]:
    """The blocks of a message's stream, put together as an answer that is not streamed has them."""
    out: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            out.append({**event["content_block"]})
            said = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            member = next(name for name in delta if name != "type")
            said += delta[member]
            if member == "partial_json":
                continue
            out[-1][member] = said
        elif event["type"] == "content_block_stop" and out[-1]["type"] == "tool_use":
            out[-1]["input"] = json.loads(said or "{}")
    return out


def joined(events: list[Any], index: int = 0) -> str:
    """All text of one index: of deltas together, of cumulative events the last."""
    texts = []
    for event in events:
        if event == "[DONE]" or "error" in event:
            continue
        if "meta_info" in event:
            if event.get("index", 0) == index:
                texts = [event["text"]]
            continue
        for choice in event["choices"]:
            if choice["index"] == index:
                delta = choice.get("delta")
                texts.append(choice["text"] if delta is None else delta.get("content") or "")
    return "".join(texts)


def same_as_unary(events: list[Any], unary: str, index: int = 0) -> None:
    """Joined deltas are the unary text; no event but the last shows U+FFFD unless it is there."""
    assert joined(events, index) == unary
    at = 0
    deltas = [e for e in events if e != "[DONE]" and "choices" in e and e["choices"]]
    for event in deltas:
        choice = event["choices"][0]
        if choice["index"] != index:
            continue
        delta = choice.get("delta")
        text = choice["text"] if delta is None else delta.get("content") or ""
        assert unary[at : at + len(text)] == text
        at += len(text)
