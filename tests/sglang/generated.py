"""Requests that every frontend gets, drawn by Hypothesis. Owner: stateless.

Prompts in many scripts, stops of every kind, logprobs, batches, ids, streams, and batches of which
some items have a logit processor. All greedy: two frontends of one scheduler give the same ids.

What was drawn is recorded beside the answers (`requests.json`): another version of Hypothesis draws
others. `python -m tests.sglang.record requests` draws anew; both frontends' answers are to be
recorded after that.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.sglang.processors import Forced

SEED: Final = 20261130
#: How many of each kind: Hypothesis alone would draw few of some.
KINDS: Final = {"text": 110, "ids": 30, "batch": 35, "processors": 25}
REQUESTS: Final = Path(__file__).parents[1] / "data" / "sglang" / "requests.json"
TEXTS: Final = (
    "The capital of France is",
    "Die Straße führt über die Brücke",
    "Il était une fois, à l'orée du bois",
    "Съешь ещё этих мягких французских булок",
    "الطقس جميل اليوم في القاهرة",
    "今日はとても良い天気です。散歩に行きましょう",
    "春眠不觉晓,处处闻啼鸟",
    "오늘은 날씨가 정말 좋네요",
    "हिन्दी में एक छोटा वाक्य",
    "สวัสดีครับ วันนี้อากาศดี",
    "👩‍👩‍👧‍👦 🎉 emoji 🇫🇷 and more 🧵",
    "def f(x):\n    return x ** 2\n\n",
    "   leading and   inner   spaces  ",
    "\ttabs\tand\nnew\r\nlines",
    "1234567890 3.14159 0x1F",
    "naïve café coöperate e\u0301 \u00e9",
)
# Words that this model's answers are made of, and some that they are not.
STOPS: Final = ("示", "例", " re", "a", "e", " Bri", "왕", "zzz", "\n", "o", "한")
STOP_IDS: Final = (36327, 31669, 24256, 114907, 1820, 42789)
REGEXES: Final = ("[a-z]{3}", "\\d+", "[가-힣]", "x?y", "[一-龥]")
#: As SGLang writes one: the class by its name, which its scheduler imports.
FORCED: Final = json.dumps({"callable": pickle.dumps(Forced, 4).hex()})


def generated() -> list[dict[str, Any]]:
    """Bodies for /generate, as they were drawn."""
    found: list[dict[str, Any]] = json.loads(REQUESTS.read_text(encoding="utf-8"))
    return found


def draw() -> list[dict[str, Any]]:
    """The bodies, drawn now."""
    out: list[dict[str, Any]] = []
    for kind, count in KINDS.items():

        @seed(SEED)
        @settings(
            max_examples=count, database=None, phases=[Phase.generate], deadline=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(bodies(kind))
        def each(body: dict[str, Any]) -> None:
            out.append(body)

        each()
    return [_named(body, k) for k, body in enumerate(out)]


def _named(body: dict[str, Any], k: int) -> dict[str, Any]:
    text = body.get("text")
    rids = [f"generated{k}_{j}" for j in range(len(text))] if isinstance(text, list) else None
    return {"rid": rids or f"generated{k}", **body}


@st.composite
def prompts(draw: st.DrawFn) -> str:
    """One or some of the texts and any characters between, cut anywhere."""
    some = st.one_of(st.sampled_from(TEXTS), st.text(max_size=8))
    text = " ".join(draw(st.lists(some, min_size=1, max_size=4)))
    return text[: draw(st.integers(1, 120))] or "a"


@st.composite
def params(draw: st.DrawFn) -> dict[str, Any]:
    """Sampling parameters; most requests have few."""
    out: dict[str, Any] = {
        "temperature": 0,
        "max_new_tokens": draw(st.sampled_from((0, 1, 2, 5, 9, 17))),
        "ignore_eos": draw(st.booleans()),
    }
    kind = draw(st.sampled_from(("", "", "", "strings", "strings", "regex", "ids")))
    if kind == "strings":
        out["stop"] = draw(st.lists(st.sampled_from(STOPS), min_size=1, max_size=3, unique=True))
        out["no_stop_trim"] = draw(st.booleans())
    elif kind == "regex":
        out["stop_regex"] = draw(st.sampled_from(REGEXES))
    elif kind == "ids":
        out["stop_token_ids"] = draw(
            st.lists(st.sampled_from(STOP_IDS), min_size=1, max_size=3, unique=True)
        )
    more = draw(st.sampled_from((
        {}, {}, {}, {}, {"min_new_tokens": min(2, out["max_new_tokens"])},
        {"repetition_penalty": 1.3}, {"frequency_penalty": 0.5}, {"presence_penalty": 0.25},
        {"skip_special_tokens": False}, {"spaces_between_special_tokens": False},
    )))  # fmt: skip
    if draw(st.sampled_from((True, *[False] * 9))):
        out["logit_bias"] = {str(draw(st.integers(1000, 1999))): 5.0}
    return {**out, **more}


@st.composite
def bodies(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """One request of a kind."""
    body: dict[str, Any] = {"sampling_params": draw(params())}
    if kind == "ids":
        body["input_ids"] = draw(st.lists(st.integers(2, 119_999), min_size=1, max_size=40))
    elif kind == "text":
        body["text"] = draw(prompts())
    else:
        body["text"] = draw(st.lists(prompts(), min_size=2, max_size=3))
    if kind == "processors":
        # SGLang's penalties beside processors depend on which requests share a step.
        for name in ("repetition_penalty", "frequency_penalty", "presence_penalty"):
            body["sampling_params"].pop(name, None)
        size = len(body["text"])
        processors = st.sampled_from((None, FORCED))
        body["custom_logit_processor"] = draw(
            st.lists(processors, min_size=size, max_size=size).filter(any)
        )
        forced = {"custom_params": {"token_id": draw(st.sampled_from(STOP_IDS))}}
        body["sampling_params"] = [{**body["sampling_params"], **forced} for _ in range(size)]
        return body
    if draw(st.sampled_from((True, False, False))):
        body["return_logprob"] = True
        body["logprob_start_len"] = draw(st.sampled_from((-1, 0, 1)))
        body["top_logprobs_num"] = draw(st.sampled_from((0, 1, 3)))
        body["return_text_in_logprobs"] = draw(st.booleans())
        if draw(st.booleans()):
            body["token_ids_logprob"] = [5, 9, 1820]
    elif kind != "batch" and draw(st.sampled_from((True, False))):
        body["stream"] = True
    return body
