"""Requests that every frontend gets, the same ones for a seed. Owner: stateless.

Prompts in many scripts, stops of every kind, logprobs, batches, ids, streams. All greedy: two
frontends of one scheduler give the same ids.
"""

from __future__ import annotations

import random
from typing import Any, Final

SEED: Final = 20261130
COUNT: Final = 200
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
REGEXES: Final = ("[a-z]{3}", "\\d+", "[가-힣]", "x?y", "[一-龥]")


def generated(seed: int = SEED, count: int = COUNT) -> list[dict[str, Any]]:
    """Bodies for /generate."""
    return [_request(random.Random(f"{seed}/{k}"), k) for k in range(count)]


def _request(rng: random.Random, k: int) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": 0,
        "max_new_tokens": rng.choice((0, 1, 2, 5, 9, 17)),
        "ignore_eos": rng.random() < 0.8,
    }
    draw = rng.random()
    if draw < 0.25:
        params["stop"] = rng.sample(STOPS, rng.choice((1, 2, 3)))
        params["no_stop_trim"] = rng.random() < 0.3
    elif draw < 0.35:
        params["stop_regex"] = rng.choice(REGEXES)
    elif draw < 0.45:
        params["stop_token_ids"] = rng.sample((36327, 31669, 24256, 114907, 1820, 42789), 2)
    if rng.random() < 0.1:
        params["min_new_tokens"] = min(2, params["max_new_tokens"])
    if rng.random() < 0.1:
        params["repetition_penalty"] = 1.3
    if rng.random() < 0.1:
        params["frequency_penalty"] = 0.5
    if rng.random() < 0.1:
        params["skip_special_tokens"] = False
    if rng.random() < 0.1:
        params["logit_bias"] = {str(rng.randrange(1000, 2000)): 5.0}
    body: dict[str, Any] = {"rid": f"generated{k}", "sampling_params": params}
    draw = rng.random()
    if draw < 0.15:
        body["input_ids"] = [rng.randrange(2, 120_000) for _ in range(rng.choice((1, 3, 40)))]
    elif draw < 0.25:
        size = rng.choice((2, 3))
        body["text"] = [_text(rng) for _ in range(size)]
        body["rid"] = [f"generated{k}_{j}" for j in range(size)]
    else:
        body["text"] = _text(rng)
    if rng.random() < 0.3:
        body["return_logprob"] = True
        body["logprob_start_len"] = rng.choice((-1, 0, 1))
        body["top_logprobs_num"] = rng.choice((0, 1, 3))
        body["return_text_in_logprobs"] = rng.random() < 0.5
        if rng.random() < 0.3:
            body["token_ids_logprob"] = [5, 9, 1820]
    elif not isinstance(body.get("text"), list) and rng.random() < 0.35:
        body["stream"] = True
    return body


def _text(rng: random.Random) -> str:
    """One or some of the texts, cut anywhere."""
    text = " ".join(rng.sample(TEXTS, rng.choice((1, 1, 2, 4))))
    return text[: rng.randrange(1, len(text) + 1)]
