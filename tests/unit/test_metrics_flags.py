"""Metrics flags of the command line."""

from __future__ import annotations

import pytest

from tpc_server.cli import parse
from tpc_server.metrics.flags import metrics_config


def config(*flags):
    return metrics_config(parse(["--enable-metrics", *flags]), "m")


def test_off_unless_asked_for():
    assert metrics_config(parse([]), "m") is None
    made = config()
    assert made.labels == {"model_name": "m", "engine_type": "unified"}
    assert made.bucket_prompt_tokens is None and made.bucket_e2e_request_latency is None


def test_buckets_and_labels():
    made = config(
        "--bucket-time-to-first-token", "0.5", "1", "--bucket-inter-token-latency", "0.01",
        "--bucket-e2e-request-latency", "1", "--prompt-tokens-buckets", "custom", "10", "5",
        "--generation-tokens-buckets", "tse", "100", "2", "2",
        "--extra-metric-labels", '{"zone": "a"}',
        "--tokenizer-metrics-allowed-custom-labels", "team", "user",
        "--prometheus-multiproc-dir", "/x",
    )  # fmt: skip
    assert made.bucket_time_to_first_token == [0.5, 1.0]
    assert made.bucket_inter_token_latency == [0.01]
    assert made.bucket_prompt_tokens == [5.0, 10.0]
    assert made.bucket_generation_tokens == [98.0, 100.0, 102.0]
    assert made.labels == {
        "model_name": "m", "engine_type": "unified", "team": "", "user": "", "zone": "a",
    }  # fmt: skip
    assert made.multiproc_dir == "/x"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--prompt-tokens-buckets", "steps", "1"], "--prompt-tokens-buckets"),
        (["--generation-tokens-buckets", "tse", "1"], "--generation-tokens-buckets"),
        (["--extra-metric-labels", "{"], "--extra-metric-labels"),
        (["--extra-metric-labels", '{"a": 1}'], "--extra-metric-labels"),
        (["--extra-metric-labels", '{"le": "1"}'], "--extra-metric-labels"),
        (["--extra-metric-labels", '{"a-b": "1"}'], "--extra-metric-labels"),
        (["--tokenizer-metrics-allowed-custom-labels", "model_name"], "custom-labels"),
        (["--tokenizer-metrics-allowed-custom-labels", "a", "a"], "custom-labels"),
    ],
)
def test_bad_values_name_their_flag(flags, named):
    with pytest.raises(ValueError, match=named):
        config(*flags)
    with pytest.raises(ValueError, match=named):  # also where metrics are off
        metrics_config(parse(flags), "m")
