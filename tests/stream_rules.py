"""What holds for every stream, whatever was asked for. Owner: tests; stdlib only.

Every client of the tests gives what it reads to a `Watch`: the blocking one (`http_client`), the
load generator's (`stress/wire.py`) and the transport of OpenAI's own client. So a stream cannot be
read without its rules, also where a test looks at one event only, or leaves in the middle:

- I1: with text that grows from event to event, each text is the start of the next, and so are ids;
- I2: what was added by and by is the whole: `same_as_unary`, or `watch.text` of a test's own;
- I3: exactly one `[DONE]`, and nothing after it, also after an error (Anthropic's messages end
  with `message_stop` instead);
- I4: every index ends exactly once, with the finish reason on its last event, unless an error
  ended the stream;
- I5: each event is one `data:` line of strict JSON, before it at most the name of its type;
- I6: nobody is shown U+FFFD that the whole text does not have there. Where text comes in pieces
  only the last piece of an index may show one, unless the reader says that it compares the whole
  with what is right (`halves`). Where text grows, I1 sees to it.

Besides: counters never go back; a choice's role comes first and once; usage comes after all
choices, once; blocks of a message come one after the other, their deltas inside of them and of
their kind, the reason after them; and no event says nothing.
"""

from __future__ import annotations

import json
from typing import Any

DONE = "[DONE]"
FFFD = "\ufffd"


def parse_event(raw: bytes) -> Any:
    """One event: the JSON of its data line, or [DONE]. AssertionError for anything else."""
    named, line = b"", raw
    if raw.startswith(b"event: "):
        named, _, line = raw[7:].partition(b"\n")
    assert line.startswith(b"data: ") and b"\n" not in line, f"no data line: {raw[:300]!r}"
    data = line[6:]
    if data == b"[DONE]" and not named:
        return DONE
    try:
        event = json.loads(data, parse_constant=_refuse)
    except ValueError as error:
        raise AssertionError(f"no JSON ({error}): {data[:300]!r}") from None
    assert not named or event.get("type") == named.decode(), f"another type: {raw[:300]!r}"
    return event


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


class Watch:
    """The events of one stream, in turn; AssertionError at the first that cannot be.

    `cumulative`: whether native text grows; None: as the stream itself shows.
    """

    def __init__(self, cumulative: bool | None = None, halves: bool = False) -> None:
        self.last: Any = None  # the last event; the others are not kept
        self.text: dict[int, str] = {}  # of each index, all of it so far
        self._halves = halves
        self._cumulative = cumulative is not False  # may still be the one, or the other
        self._pieces = cumulative is not True
        self._shown: dict[int, Any] = {}  # the last of each index, of native streams
        self._added: dict[int, str] = {}  # their texts, as pieces
        self._counted: dict[int, int] = {}  # their ids, as pieces
        self._ended: set[int] = set()
        self._broken: set[int] = set()  # indices that have shown U+FFFD in a piece before the last
        self._usage = False
        self._failed = False
        self._is_message = False  # one of Anthropic's
        self._block = ""  # its block that has not ended: its type
        self._blocks = 0  # that have ended
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """Bytes as they come; the events they complete."""
        *parts, self._rest = (self._rest + data).split(b"\n\n")
        found = [parse_event(part) for part in parts if not part.startswith(b":")]
        for event in found:
            self.event(event)
        return found

    def event(self, event: Any) -> None:
        """One event."""
        before, self.last = self.last, event
        assert before != DONE, f"after the [DONE]: {event}"
        if before is None:
            self._is_message = type(event) is dict and "type" in event
        if self._is_message:
            self._message(before, event)
            return
        if event == DONE:
            return
        assert not self._failed, f"after an error: {event}"
        if "error" in event:
            self._failed = True
        elif "meta_info" in event:
            self._native(event)
        else:
            self._openai(event)

    def end(self) -> None:
        """The response is complete."""
        assert not self._rest, f"bytes after the last event: {self._rest[-300:]!r}"
        if self._is_message:
            assert self.last["type"] == "message_stop", f"a message without its end: {self.last}"
            return
        assert self.last == DONE, f"no [DONE]: {self.last}"
        if self._failed:
            return
        assert self.text, "neither an event nor an error"
        assert set(self.text) == self._ended, f"never ended: {set(self.text) - self._ended}"
        if not self._halves and not self._grows():
            assert not self._broken, f"half a character was shown: {self.text}"

    def _grows(self) -> bool:
        """Whether this is a native stream whose text grew."""
        return bool(self._shown) and self._cumulative

    def _native(self, event: dict[str, Any]) -> None:
        index = event.get("index", 0)
        assert index not in self._ended, f"index {index} goes on after its end: {event}"
        meta = event["meta_info"]
        text, ids = event.get("text", ""), event.get("output_ids", [])
        before = self._shown.get(index)
        finish = meta["finish_reason"]
        count = meta["completion_tokens"]
        if before is not None:
            known = before["meta_info"]["completion_tokens"]
            assert count >= known, f"completion_tokens from {known} to {count}"
            assert count > known or finish is not None, f"an event that says nothing: {event}"
            old = before.get("output_ids", [])
            grown = text.startswith(before.get("text", "")) and ids[: len(old)] == old
            self._cumulative = self._cumulative and grown
        self._counted[index] = self._counted.get(index, 0) + len(ids)
        if "output_ids" in event:  # one or the other is told by the first that can be only one
            self._cumulative = self._cumulative and len(ids) == count
            self._pieces = self._pieces and self._counted[index] == count
        assert self._cumulative or self._pieces, f"neither grows nor adds: {before} {event}"
        self._shown[index] = event
        self._added[index] = self._added.get(index, "") + text
        self._show(index, text, finish is not None)
        if self._cumulative:
            self.text[index] = text
        else:
            self.text.update(self._added)

    def _openai(self, event: dict[str, Any]) -> None:
        if not event["choices"]:
            assert not self._usage and event["usage"], f"usage, once: {event}"
            assert set(self.text) == self._ended, f"usage before the end of {self.text}"
            self._usage = True
            return
        assert not self._usage, f"a choice after the usage: {event}"
        (choice,) = event["choices"]
        index, finish = choice["index"], choice["finish_reason"]
        delta = choice.get("delta")
        shown = choice if delta is None else delta
        text = choice["text"] if delta is None else delta.get("content") or ""
        hidden = "hidden_states" in choice or "hidden_states" in shown
        # Hidden states of a whole choice follow it; of a single token there are none to show.
        assert index not in self._ended or (hidden and finish is None), f"after its end: {event}"
        if delta is not None:
            first = index not in self.text
            assert ("role" in delta) == first, f"the role comes first, and once: {event}"
        says = ("content", "reasoning_content", "tool_calls", "role", "text", "token_ids",
                "prompt_token_ids")  # fmt: skip
        told = any(shown.get(name) for name in says) or finish or choice.get("logprobs") or hidden
        assert told, f"an event that says nothing: {event}"
        self._show(index, text, finish is not None)

    def _message(self, before: Any, event: dict[str, Any]) -> None:
        last = None if before is None else before["type"]
        kind = event["type"]
        assert (kind == "message_start") == (last is None), f"the start is the first: {event}"
        assert last is not None or event["message"]["content"] == [], event
        assert last != "message_stop", f"after the end: {event}"
        ending = last in ("message_delta", "error")
        assert (kind == "message_stop") == ending, f"the end follows its reason: {before} {event}"
        if kind == "message_delta":
            assert not self._block, f"a block that never ends: {event}"
        elif kind == "content_block_start":
            assert not self._block, f"a block in a block: {event}"
            self._block = event["content_block"]["type"]
        elif kind == "content_block_delta":
            delta = event["delta"]
            wanted = "input_json" if self._block == "tool_use" else self._block
            assert self._block and delta["type"] == f"{wanted}_delta", event
            assert any(delta[name] for name in delta if name != "type"), f"says nothing: {event}"
        elif kind == "content_block_stop":
            assert self._block, f"no block: {event}"
            self._block = ""
        if kind.startswith("content_block"):
            assert event["index"] == self._blocks, f"another block: {event}"
            self._blocks += kind == "content_block_stop"
            return
        assert kind in ("message_start", "message_delta", "message_stop", "error"), event

    def _show(self, index: int, text: str, last: bool) -> None:
        """What an event adds to the text of an index."""
        self.text[index] = self.text.get(index, "") + text
        if last:
            self._ended.add(index)
        elif FFFD in text:
            self._broken.add(index)


def check(events: list[Any], cumulative: bool | None = None, halves: bool = False) -> Watch:
    """A whole stream; what was seen of it. AssertionError when a rule is broken."""
    watch = Watch(cumulative, halves)
    for event in events:
        watch.event(event)
    watch.end()
    return watch


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
    """All text of one index: of pieces together, of text that grows the last."""
    watch = Watch(halves=True)
    for event in events:
        watch.event(event)
    return watch.text.get(index, "")


def same_as_unary(events: list[Any], unary: str, index: int = 0) -> None:
    """I2 and I6: the pieces are the unary text; none shows U+FFFD where that has none."""
    watch = Watch(halves=True)
    for event in events:
        watch.event(event)
        assert unary.startswith(watch.text.get(index, "")), (unary, event)
    assert watch.text.get(index, "") == unary
