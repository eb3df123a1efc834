"""Whether an answer is right, byte by byte. Owner: stateless, or the stream it checks.

The invariants: cumulative texts grow (I1); the whole is what the ids say (I2); one [DONE], last
(I3); one finish reason per index (I4); strict JSON (I5, by the reader); no U+FFFD before it is
certain (I6: every text is a prefix of the whole one). A finish that tells of success must come
with the whole text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.stress.oracle import Expected, logprob, text_of
from tests.stress.wire import Wrong

OK: Final = "ok"
ABORTS: Final = ("Aborted", "Abort in waiting queue")


class Wanted:
    """One generating request and its answer."""

    __slots__ = (
        "batch", "blind", "body", "ids", "items", "logprobs", "may", "path", "rid", "stream",
        "tops",
    )  # fmt: skip

    def __init__(
        self, rid: str, body: dict[str, Any], items: list[Expected], ids: list[str | None],
        batch: bool,
    ) -> None:  # fmt: skip
        self.path = "/generate"  # or an OpenAI route: see openai.py
        self.rid = rid
        self.body = body
        self.items = items
        self.ids = ids  # `meta_info.id` of each item, None: any
        self.batch = batch
        self.stream = bool(body.get("stream"))
        self.logprobs = bool(body.get("return_logprob"))
        self.tops = int(body.get("top_logprobs_num") or 0)
        self.blind = False  # ids are not what the engine was asked for
        # Which other ends its own client, or a fault it asked for, explains.
        self.may: Callable[[Outcome], bool] | None = None


class Outcome:
    """How a request ended: ok, abort, error, with what the server said."""

    __slots__ = ("code", "kind", "message")

    def __init__(self, kind: str, code: int = 200, message: str = "") -> None:
        self.kind = kind
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"{self.kind} {self.code} {self.message!r}"


class _Item:
    """What was shown of one index so far."""

    __slots__ = ("aborted", "finished", "ids", "logprobs", "text")

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.logprobs: list[Any] = []
        self.finished = False
        self.aborted = ""


class StreamCheck:
    """Takes the events of one streamed answer in turn; Wrong at the first that cannot be."""

    def __init__(self, wanted: Wanted, incremental: bool) -> None:
        self.wanted = wanted
        self.incremental = incremental
        self.items = [_Item() for _ in wanted.items]
        self.done = False
        self.error: tuple[int, str] | None = None
        self.events = 0

    def feed(self, event: Any) -> None:
        """One event."""
        self.events += 1
        if self.done:
            raise Wrong(f"an event after [DONE]: {event}")
        if event == "[DONE]":
            self.done = True
            return
        if self.error is not None:
            raise Wrong(f"an event after an error: {event}")
        if type(event) is dict and "error" in event:
            self.error = error_of(event)
            return
        wanted = self.wanted
        if ("index" in event) != wanted.batch:
            raise Wrong(f"index of a batch only: {event}")
        at = event.get("index", 0)
        if not 0 <= at < len(self.items):
            raise Wrong(f"index {at} of {len(self.items)}")
        item = self.items[at]
        if item.finished:
            raise Wrong(f"two finishes of index {at}: {event}")
        meta = event["meta_info"]
        if self.incremental:
            item.text += event["text"]
            item.ids += event["output_ids"]
            item.logprobs += meta.get("output_token_logprobs", ())
        else:
            if not event["text"].startswith(item.text):
                raise Wrong(f"text shrank from {item.text!r} to {event['text']!r}")
            if event["output_ids"][: len(item.ids)] != item.ids:
                raise Wrong(f"ids changed from {item.ids} to {event['output_ids']}")
            item.text = event["text"]
            item.ids = event["output_ids"]
            item.logprobs = meta.get("output_token_logprobs", [])
        item.finished, item.aborted = _check(wanted, at, item.text, item.ids, meta, item.logprobs)

    def end(self) -> Outcome:
        """The response is complete."""
        if not self.done:
            raise Wrong("a stream ended without [DONE]")
        if self.error is not None:
            return Outcome("error", *self.error)
        if not all(item.finished for item in self.items):
            raise Wrong("a stream ended before every index had its finish reason")
        told = [item.aborted for item in self.items if item.aborted]
        return Outcome("abort", 200, told[0]) if told else Outcome(OK)

    @property
    def succeeded(self) -> bool:
        """Whether every index has told of success."""
        return all(item.finished and not item.aborted for item in self.items)


def check_unary(wanted: Wanted, status: int, value: Any) -> Outcome:
    """A whole answer that is no stream."""
    if status != 200:
        return Outcome("error", *error_of(value, status))
    if (type(value) is list) != wanted.batch:
        raise Wrong(f"an array for a batch only: {str(value)[:200]}")
    answers = value if wanted.batch else [value]
    if len(answers) != len(wanted.items):
        raise Wrong(f"{len(answers)} answers to {len(wanted.items)} prompts")
    told = ""
    for at, entry in enumerate(answers):
        if "index" in entry:
            raise Wrong("a unary answer with an index")
        meta = entry["meta_info"]
        shown = meta.get("output_token_logprobs", [])
        finished, aborted = _check(wanted, at, entry["text"], entry["output_ids"], meta, shown)
        if not finished:
            raise Wrong(f"a unary answer without a finish reason: {entry}")
        told = told or aborted
    return Outcome("abort", 200, told) if told else Outcome(OK)


def error_of(value: Any, status: int | None = None) -> tuple[int, str]:
    """Code and message of an error object; Wrong when it is none."""
    try:
        error = value["error"]
        code, message = error["code"], error["message"]
    except (TypeError, KeyError):
        raise Wrong(f"no error object: {str(value)[:300]}") from None
    if type(code) is not int or type(message) is not str or status not in (None, code):
        raise Wrong(f"status {status} with {value}")
    return code, message


def _check(
    wanted: Wanted, at: int, text: str, ids: list[int], meta: dict[str, Any], shown: list[Any]
) -> tuple[bool, str]:
    """One object of an answer: (whether it is the last of its index, what an abort said)."""
    expected = wanted.items[at]
    finish = meta["finish_reason"]
    name = wanted.ids[at]
    if name is not None and meta["id"] != name:
        raise Wrong(f"id {meta['id']!r} instead of {name!r}")
    if meta["completion_tokens"] != len(ids):
        raise Wrong(f"completion_tokens {meta['completion_tokens']} with {len(ids)} ids")
    if wanted.logprobs:
        _check_logprobs(wanted, ids, meta, shown)
    if wanted.blind:
        return finish is not None, ""
    if ids != expected.ids[: len(ids)]:
        raise Wrong(f"ids {ids} are not the start of {expected.ids}")
    if finish is not None and finish["type"] == "abort":
        # Its unfinished character is shown; what a stop held back as well.
        if text != text_of(ids) and text != expected.text:
            raise Wrong(f"aborted with {text!r} for the ids {ids}")
        return True, str(finish["message"])
    if meta["prompt_tokens"] != expected.prompt_tokens:
        raise Wrong(f"prompt_tokens {meta['prompt_tokens']} instead of {expected.prompt_tokens}")
    if finish is None:
        if not expected.text.startswith(text):
            raise Wrong(f"{text!r} is not the start of {expected.text!r}")
        return False, ""
    if finish != expected.finish:
        raise Wrong(f"finish {finish} instead of {expected.finish}")
    if ids != expected.ids or text != expected.text:
        raise Wrong(f"finished as {finish} with {text!r} {ids}: not {expected.text!r}")
    return True, ""


def _check_logprobs(wanted: Wanted, ids: list[int], meta: dict[str, Any], shown: list[Any]) -> None:
    want = [[logprob(token), token, None] for token in ids]
    if shown != want:
        raise Wrong(f"output_token_logprobs {shown} for {ids}")
    tops = meta.get("output_top_logprobs")
    if wanted.tops and tops is not None:
        for position in tops:
            if len(position) != wanted.tops:
                raise Wrong(f"{len(position)} top logprobs instead of {wanted.tops}")
