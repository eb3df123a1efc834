"""Usage counts what the scheduler said: prompts once, whatever `n`, reasoning of all samples,
cached tokens where they are asked for. Formats are forwarded as grammars, on both OpenAI routes.
"""

from __future__ import annotations

import json
from array import array
from typing import Any

import msgpack
import pytest

from tests.e2e.known_bugs import APIS, body_of, write_model
from tests.http_client import Client, call
from tpc_server.boundary.messages import SAMPLING

# route, prompts, n
SHAPES = [(APIS[1], 1, 1), (APIS[1], 1, 3), (APIS[1], 2, 2), (APIS[2], 1, 1), (APIS[2], 1, 3)]
PROMPT, TOKENS = 20, 2  # of each


def end_all(run: Any, first: bool) -> None:
    """A row for each live request: its first token, or the end; counts that tell them apart."""
    # Numbers are in the order in which they were made: prompt * n + sample.
    rids = [m[1] for m in run.scheduler.received if m[1] in run.scheduler.live]
    count = len(rids)
    finish = None if first else {"type": "length", "length": TOKENS}
    header = [
        rids, [finish] * count, [PROMPT] * count, [1] * count,
        [1 + k for k in range(count)], [(0 if first else 10 + k) for k in range(count)],
    ]  # fmt: skip
    if not first:
        with run.scheduler.changed:
            run.scheduler.live.clear()
    data = array("q", [97] * count).tobytes()
    assert run.server.push_decode_result_batch(msgpack.packb(header), [data])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("report", [False, True])
@pytest.mark.parametrize(("api", "prompts", "n"), SHAPES)
def test_usage(start, tmp_path, api, prompts, n, report, stream):
    run = start(
        manual=True, model_path=str(write_model(tmp_path)), options={"cache_report": report}
    )  # fmt: skip
    text: Any = "x" if prompts == 1 else ["x"] * prompts
    body = body_of(api, text, stream, n=n, max_tokens=TOKENS)
    if stream:
        body["stream_options"] = {"include_usage": True}
    count = prompts * n
    with Client(run.address) as client:
        client.request("POST", api, body)
        run.scheduler.wait_for(lambda s: len(s.live) == count)
        end_all(run, True)
        end_all(run, False)
        answer = client.answer()
    usage = answer.events()[-2]["usage"] if stream else answer.json()["usage"]
    assert usage["prompt_tokens"] == PROMPT * prompts
    assert usage["completion_tokens"] == TOKENS * count
    assert usage["total_tokens"] == PROMPT * prompts + TOKENS * count
    assert usage["reasoning_tokens"] == sum(10 + k for k in range(count))
    cached = sum(1 + k for k in range(0, count, n))  # of each prompt's first sample
    told = usage.get("prompt_tokens_details")
    assert told == ({"cached_tokens": cached} if report else None)


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TAG = {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}],
       "triggers": ["<f>"]}  # fmt: skip
FORMATS: list[tuple[Any, str, Any]] = [
    (None, "", None),
    ({"type": "text"}, "", None),
    ({"type": "json_object"}, "json_schema", {"type": "object"}),
    (
        {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        "json_schema",
        SCHEMA,
    ),
    (TAG, "structural_tag", TAG),
]  # fmt: skip


@pytest.mark.parametrize("api", APIS[1:])
@pytest.mark.parametrize(("wanted", "name", "value"), FORMATS)
def test_formats(start, tmp_path, api, wanted, name, value):
    run = start(model_path=str(write_model(tmp_path)))
    body = body_of(api, max_tokens=1, response_format=wanted)
    assert call(run.address, "POST", api, body).status == 200
    sent = run.scheduler.received[-1][8]
    for grammar in ("json_schema", "regex", "ebnf", "structural_tag"):
        got = sent[SAMPLING[grammar]]
        assert (json.loads(got) if got else None) == (value if grammar == name else None)
