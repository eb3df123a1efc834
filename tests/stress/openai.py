"""The same requests by OpenAI's routes, and whether their answers are right, byte by byte.

Owner: stateless, or the stream it checks. What is wanted of an answer is what `checks.py` wants of
/generate's: every text is a prefix of the whole one, a success comes with all of it, one finish
reason a choice, one [DONE]; logprobs and usage are counted.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from tests.stress.checks import ABORTS, OK, Outcome, Wanted, error_of
from tests.stress.oracle import Expected, logprob, text_of
from tests.stress.wire import Wrong

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
TEMPLATE: Final = "{% for m in messages %}{{ m.content }}{% endfor %}"  # the prompt, as it is
_NAMES: Final = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def convert(wanted: Wanted, rng: Random, plain: bool) -> None:
    """Make a /generate request one of an OpenAI route, where that has it. `plain`: no tools."""
    body = wanted.body
    given = body["sampling_params"]
    if not given["max_new_tokens"]:
        return  # a completion has at least one token
    prompts: Any = body.get("text", body.get("input_ids"))
    one = not wanted.batch or len(prompts) == 1
    path = CHAT if one and rng.random() < 0.6 else COMPLETIONS
    out: dict[str, Any] = {_NAMES.get(name, name): value for name, value in given.items()}
    out |= {"rid": wanted.rid, "stream": wanted.stream, "model": "tiny"}
    if wanted.stream and rng.random() < 0.5:
        out["stream_options"] = {"include_usage": True}
        if rng.random() < 0.3:
            out["stream_options"]["continuous_usage_stats"] = True
    if path == COMPLETIONS:
        out["prompt"] = prompts
        if wanted.logprobs:
            out["logprobs"] = wanted.tops
    else:
        prompt = prompts[0] if wanted.batch else prompts
        if "text" in body:
            at = rng.randint(0, len(prompt))
            messages = [("system", prompt[:at]), ("user", prompt[at:])]
            out["messages"] = [{"role": role, "content": text} for role, text in messages]
        else:
            out["messages"] = [{"role": "user", "content": "not looked at"}]
            out["input_ids"] = prompt
        if wanted.logprobs:
            out |= {"logprobs": True, "top_logprobs": wanted.tops}
        if not plain and rng.random() < 0.3:
            out |= {"tools": [_TOOL], "tool_choice": rng.choice(("auto", "none"))}
    wanted.path = path
    wanted.body = out


class _Choice:
    """What was shown of one choice so far."""

    __slots__ = ("aborted", "finished", "last", "logprobs", "started", "text")

    def __init__(self) -> None:
        self.text = ""
        self.logprobs: list[Any] = []
        self.started = False
        self.finished = False
        self.last = False  # its text is one that only an abort explains, which must follow
        self.aborted = ""


class OpenAICheck:
    """Takes the chunks of one streamed answer in turn; Wrong at the first that cannot be."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.choices = [_Choice() for _ in wanted.items]
        self.done = False
        self.error: tuple[int, str] | None = None
        self.usage: Any = None

    def feed(self, event: Any) -> None:
        """One event."""
        if self.done:
            raise Wrong(f"an event after [DONE]: {event}")
        if event == "[DONE]":
            self.done = True
            return
        if self.error is not None or self.usage is not None:
            raise Wrong(f"an event after an error or the usage: {event}")
        if "error" in event:
            self.error = error_of(event)
            return
        if event["id"] != self.wanted.rid:
            raise Wrong(f"id {event['id']!r} instead of {self.wanted.rid!r}")
        if not event["choices"]:
            self.usage = event["usage"]
            return
        (choice,) = event["choices"]
        one = self.choices[choice["index"]]
        if one.finished:
            raise Wrong(f"a choice goes on after its end: {event}")
        delta = choice.get("delta")
        if (delta is None) != (self.wanted.path == COMPLETIONS):
            raise Wrong(f"a chunk of another route: {event}")
        if delta is not None and ("role" in delta) == one.started:
            raise Wrong(f"the role comes first, and once: {event}")
        one.started = True
        one.text += choice["text"] if delta is None else delta.get("content") or ""
        one.logprobs += _logprobs(self.wanted, choice)
        _check(self.wanted, choice["index"], one, choice["finish_reason"], choice["matched_stop"])

    def end(self) -> Outcome:
        """The response is complete."""
        if not self.done:
            raise Wrong("a stream ended without [DONE]")
        if self.error is not None:
            return Outcome("error", *self.error)
        if not all(one.finished for one in self.choices):
            raise Wrong("a stream ended before every choice had its finish reason")
        options = self.wanted.body.get("stream_options")
        if (self.usage is not None) != bool(options):
            raise Wrong(f"usage {self.usage} with {options}")
        return _outcome(self.wanted, self.choices, self.usage)


def check_openai(wanted: Wanted, status: int, value: Any) -> Outcome:
    """A whole answer that is no stream."""
    if status != 200:
        return Outcome("error", *error_of({"error": value}, status))
    if value["id"] != wanted.rid:
        raise Wrong(f"id {value['id']!r} instead of {wanted.rid!r}")
    if [choice["index"] for choice in value["choices"]] != list(range(len(wanted.items))):
        raise Wrong(f"choices {value} for {len(wanted.items)} items")
    choices = []
    for index, choice in enumerate(value["choices"]):
        one = _Choice()
        one.text = choice["text"] if wanted.path == COMPLETIONS else choice["message"]["content"]
        one.logprobs = _logprobs(wanted, choice)
        _check(wanted, index, one, choice["finish_reason"], choice["matched_stop"])
        if not one.finished:
            raise Wrong(f"no finish reason: {choice}")
        choices.append(one)
    return _outcome(wanted, choices, value["usage"])


def _logprobs(wanted: Wanted, choice: dict[str, Any]) -> list[Any]:
    """(logprob, number of alternatives) of the new tokens."""
    shown = choice["logprobs"]
    if shown is None:
        return []
    if not wanted.logprobs:
        raise Wrong(f"logprobs that nobody asked for: {choice}")
    if wanted.path == CHAT:
        return [(entry["logprob"], len(entry["top_logprobs"])) for entry in shown["content"]]
    tops = shown["top_logprobs"] or [None] * len(shown["tokens"])
    if not len(shown["tokens"]) == len(shown["text_offset"]) == len(tops):
        raise Wrong(f"lists of several lengths: {shown}")
    return [(value, 0) for value in shown["token_logprobs"]]  # alternatives of one text are one


def _check(wanted: Wanted, index: int, one: _Choice, finish: Any, matched: Any) -> None:
    """One choice's newest state; marks it as finished."""
    expected: Expected = wanted.items[index]
    one.finished = finish is not None
    if finish == "abort":
        one.aborted = ABORTS[0]  # the routes do not tell which
    if wanted.blind:
        return
    count = len(one.logprobs)
    if [value for value, _ in one.logprobs] != [logprob(token) for token in expected.ids[:count]]:
        raise Wrong(f"logprobs {one.logprobs} for {expected.ids}")
    if wanted.path == CHAT and any(tops != wanted.tops for _, tops in one.logprobs):
        raise Wrong(f"not {wanted.tops} alternatives: {one.logprobs}")
    if finish == "abort":
        # Its unfinished character is shown; what a stop held back as well.
        steps = range(len(expected.ids) + 1)
        if one.text != expected.text and not any(
            one.text == text_of(expected.ids[:k]) for k in steps
        ):
            raise Wrong(f"aborted with {one.text!r}, of {expected.whole!r}")
        return
    if finish is None:
        if one.last:
            raise Wrong(f"{one.text!r} is not the start of {expected.text!r}")
        # The last text of a chat comes in a chunk of its own, before the finish reason.
        one.last = not expected.text.startswith(one.text)
        if one.last and wanted.path == COMPLETIONS:
            raise Wrong(f"{one.text!r} is not the start of {expected.text!r}")
        return
    want = (expected.finish["type"], expected.finish.get("matched"))
    if (finish, matched) != want:
        raise Wrong(f"finish {finish} {matched!r} instead of {want}")
    if one.text != expected.text or (wanted.logprobs and count != len(expected.ids)):
        raise Wrong(
            f"finished as {finish} with {one.text!r} and {count} logprobs: {expected.text!r}"
        )


def _outcome(wanted: Wanted, choices: list[_Choice], usage: Any) -> Outcome:
    told = [one.aborted for one in choices if one.aborted]
    if told:
        return Outcome("abort", 200, told[0])
    if usage is not None and not wanted.blind:
        n = wanted.body.get("n") or 1
        prompt = sum([item.prompt_tokens for item in wanted.items[::n]])
        completion = sum([len(item.ids) for item in wanted.items])
        counted = [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")]
        if counted != [prompt, completion, prompt + completion]:
            raise Wrong(f"usage {usage} instead of {prompt} + {completion}")
    return Outcome(OK)
