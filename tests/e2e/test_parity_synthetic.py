"""Requests of the recorded list whose frames were not recorded: they run on the synthetic engine.

Their names are those of `parity_choices.WITHOUT_PAIR`, which says why each has no frames.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import tiny_tokenizer
from tests.e2e.parity_choices import PYTHON, WITHOUT_PAIR
from tests.e2e.parity_replay import ABORTED, SERVED, answers, body_of
from tests.http_client import Client, call
from tests.synthetic_server import serving
from tpc_server import MetricsConfig

ANSWERS = answers()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tiny_tokenizer.write(tmp_path_factory.mktemp("synthetic"))
    args = {"served_model_name": SERVED, "metrics": MetricsConfig(labels={"model_name": SERVED})}
    with serving(folder, {}, args) as running:
        yield running


def shape(value: Any) -> Any:
    """The names and types of a JSON value, without its values."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


@pytest.mark.parametrize("name", WITHOUT_PAIR)
def test_requests_without_recorded_frames(run, name):
    recorded = ANSWERS[name][PYTHON]
    if name in ABORTED:
        run.until_idle()
        with Client(run.address) as client:
            client.request("POST", "/generate", ABORTED[name])
            run.wait_for(1)
            rid = ABORTED[name]["rid"]
            assert call(run.address, "POST", "/abort_request", {"rid": rid}).status == 200
            answer = client.answer()
        meta = answer.json()["meta_info"]
        assert answer.status == recorded["status"] and meta["id"] == rid
        assert meta["finish_reason"]["type"] == "abort"
        assert meta["completion_tokens"] == len(answer.json()["output_ids"])
        return
    row = ANSWERS[name]
    body = body_of(row) if row["request"] else None
    answer = call(run.address, "POST" if body else "GET", row["path"] or name, body)
    assert answer.status == recorded["status"]
    if name == "/metrics":
        found = {f.name for f in text_string_to_metric_families(answer.body.decode())}
        assert {"sglang:prompt_tokens", "sglang:e2e_request_latency_seconds"} <= found
        return
    shown = answer.json()
    if name == "/server_info":
        assert shown["served_model_name"] == SERVED and shown["internal_states"]
    elif name == "/v1/loads":
        assert shown["loads"] and shown["version"] and shown["timestamp"]
    else:  # the text is another one, nothing else is: see COMPATIBILITY.md
        assert shape(shown) == shape(json.loads(recorded["body"]))
