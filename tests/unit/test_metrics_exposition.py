"""The page of /metrics: names, labels, buckets, several cores, other processes' files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tpc_server.boundary.server_args import MetricsConfig
from tpc_server.metrics import buckets
from tpc_server.metrics.exposition import Exposition
from tpc_server.metrics.http import HttpMeter, endpoints, make_layout
from tpc_server.metrics.layout import UNMATCHED, Layout
from tpc_server.metrics.recorder import SERIES, Recorder

# SGLang's names (`TokenizerMetricsCollector` and its HTTP middleware), labels beside the common.
FAMILIES = {
    "sglang:prompt_tokens": ("counter", {"is_streaming"}),
    "sglang:generation_tokens": ("counter", {"is_streaming"}),
    "sglang:num_requests": ("counter", {"is_streaming"}),
    "sglang:cached_tokens": ("counter", {"cache_source"}),
    "sglang:num_so_requests": ("counter", set()),
    "sglang:num_aborted_requests": ("counter", set()),
    "sglang:spec_verify_calls": ("counter", None),  # never counted
    "sglang:time_to_first_token_seconds": ("histogram", {"is_streaming"}),
    "sglang:request_time_per_output_token_seconds": ("histogram", {"is_streaming"}),
    "sglang:e2e_request_latency_seconds": ("histogram", {"is_streaming"}),
    "sglang:inter_token_latency_seconds": ("histogram", set()),
    "sglang:prompt_tokens_histogram": ("histogram", set()),
    "sglang:uncached_prompt_tokens_histogram": ("histogram", set()),
    "sglang:generation_tokens_histogram": ("histogram", set()),
    "sglang:get_loads_duration_seconds": ("histogram", set()),
    "sglang:http_requests": ("counter", None),
    "sglang:http_responses": ("counter", None),
    "sglang:http_requests_active": ("gauge", None),
}


def page(layout, words, blocks):
    text = Exposition(layout, words, blocks).text().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def series(recorder, label):
    """Where the words of a new request's series start."""
    return recorder.open("r", label, False, 0, False)[SERIES]


def value(families, name, **labels):
    """The one sample with these labels."""
    samples = [s for family in families.values() for s in family.samples if s.name == name]
    found = [s.value for s in samples if s.labels == labels]
    assert len(found) == 1, (name, labels, samples)
    return found[0]


def test_the_names_types_and_labels_are_sglang_s():
    config = MetricsConfig(labels={"model_name": "m", "engine_type": "unified"})
    layout = Layout(config)
    words = [0] * layout.words
    Recorder(layout, words, 0)
    families = page(layout, words, [0])
    assert {name: f.type for name, f in families.items()} == {
        name: kind for name, (kind, _) in FAMILIES.items()
    }
    common = {"model_name", "engine_type"}
    for name, (_, extra) in FAMILIES.items():
        if extra is not None:
            seen = {frozenset(s.labels) - {"le"} for s in families[name].samples}
            assert seen == {frozenset(common | extra)}, name
    assert families["sglang:spec_verify_calls"].samples == []


def test_the_default_bounds_are_sglang_s():
    layout = Layout(MetricsConfig())
    words = [0] * layout.words
    Recorder(layout, words, 0)
    families = page(layout, words, [0])
    bounds = {
        name: [s.labels["le"] for s in f.samples if s.name.endswith("_bucket")]
        for name, f in families.items() if f.type == "histogram"
    }  # fmt: skip
    assert bounds["sglang:inter_token_latency_seconds"][:4] == ["0.002", "0.004", "0.006", "0.008"]
    assert bounds["sglang:prompt_tokens_histogram"][-3:] == ["1e+06", "1.1e+06", "+Inf"]
    sizes = {name.removeprefix("sglang:"): len(set(b)) for name, b in bounds.items()}
    assert sizes == {
        "time_to_first_token_seconds": 19, "e2e_request_latency_seconds": 23,
        "inter_token_latency_seconds": 24, "request_time_per_output_token_seconds": 24,
        "prompt_tokens_histogram": 36, "uncached_prompt_tokens_histogram": 36,
        "generation_tokens_histogram": 36, "get_loads_duration_seconds": 10,
    }  # fmt: skip


def test_given_bounds_are_used():
    config = MetricsConfig(
        bucket_time_to_first_token=[2, 0.5, 2.0], bucket_generation_tokens=[10.0],
        bucket_inter_token_latency=[], bucket_e2e_request_latency=[float("inf"), 1],
    )  # fmt: skip
    layout = Layout(config)
    assert layout.first_token.bounds == (0.5, 2.0)
    assert layout.generation_histogram.bounds == (10.0,)
    assert layout.prompt_histogram.bounds == buckets.TOKENS
    assert layout.inter_token.bounds == () and layout.e2e.bounds == (1.0,)


def test_cores_are_added_up():
    layout = Layout(MetricsConfig(labels={"team": ""}))
    words = [0] * (2 * layout.words)
    blocks = [0, layout.words]
    words[layout.aborted], words[layout.words + layout.aborted] = 1, 2
    for core, teams in zip(blocks, (("x", "y"), ("y", "z")), strict=True):
        recorder = Recorder(layout, words, core)
        for team in teams:
            at = series(recorder, layout.label_text({"team": team}, None))
            words[at + layout.e2e.at] += 1
            words[at + layout.inter_token.at + 1] += 5
            words[at + layout.inter_token.at + layout.inter_token.sum_at] += 2_000_000_000
    families = page(layout, words, blocks)
    for team, requests in (("x", 1), ("y", 2), ("z", 1)):
        labels = {"team": team, "is_streaming": "false"}
        assert value(families, "sglang:num_requests_total", **labels) == requests
        name = "sglang:inter_token_latency_seconds"
        assert value(families, name + "_count", team=team) == 5 * requests
        assert value(families, name + "_sum", team=team) == 2.0 * requests
        assert value(families, name + "_bucket", team=team, le="0.002") == 0
        assert value(families, name + "_bucket", team=team, le="0.004") == 5 * requests
    assert value(families, "sglang:num_aborted_requests_total", team="") == 3


def test_label_values_are_escaped():
    layout = Layout(MetricsConfig(labels={"model_name": 'a"b\\c\nd', "team": ""}))
    words = [0] * layout.words
    team = '"}\n\u2028é\\'
    at = series(Recorder(layout, words, 0), layout.label_text({"team": team}, None))
    words[at + layout.structured] = 1
    families = page(layout, words, [0])
    name = "sglang:num_so_requests_total"
    assert value(families, name, model_name='a"b\\c\nd', team=team) == 1


def test_http_requests_by_route():
    layout = make_layout(MetricsConfig())
    assert layout is not None
    assert ("/generate", "PUT") in endpoints() and ("/health", "HEAD") in endpoints()
    words = [0] * layout.words
    meter = HttpMeter(layout, words, 0)
    generate = meter.exact(b"/generate", b"POST")
    for status in (200, 200, 400, 418):
        meter.began(generate)
        meter.answering(generate, status)
        meter.ended(generate)
    meter.began(generate)
    lost = meter.number(None, b"GET")
    meter.began(lost)
    meter.answering(lost, 404)
    meter.answering(-1, 500)  # nobody's
    families = page(layout, words, [0])
    labels = {"endpoint": "/generate", "method": "POST"}
    assert value(families, "sglang:http_requests_total", **labels) == 5
    assert value(families, "sglang:http_requests_active", **labels) == 1
    name = "sglang:http_responses_total"
    assert value(families, name, status_code="200", **labels) == 2
    assert value(families, name, status_code="400", **labels) == 1
    assert value(families, name, status_code="other", **labels) == 1
    endpoint, method = UNMATCHED
    assert value(families, name, status_code="404", endpoint=endpoint, method=method) == 1
    HttpMeter(layout, words, 0)  # a core that was rebuilt has no connections
    families = page(layout, words, [0])
    assert value(families, "sglang:http_requests_active", **labels) == 0
    assert value(families, "sglang:http_requests_total", **labels) == 5


WRITER = """
from prometheus_client import Counter, Gauge, Histogram
Gauge("sglang:num_running_reqs", "now", ["tp_rank"], multiprocess_mode="mostrecent")\
.labels("0").set(4)
Counter("sglang:num_requests_total", "theirs", ["model_name", "is_streaming"])\
.labels("m", "false").inc(10)
h = Histogram("sglang:queue_time_seconds", "theirs", buckets=(1.0, 2.0))
h.observe(0.5)
h.observe(9)
"""


@pytest.fixture
def multiproc(tmp_path: Path) -> Path:
    """A directory that two other processes have written to."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", WRITER], env=env, check=True, timeout=60)
    assert list(tmp_path.glob("*.db"))
    return tmp_path


def test_files_of_other_processes_are_merged(multiproc):
    layout = Layout(MetricsConfig(labels={"model_name": "m"}, multiproc_dir=str(multiproc)))
    words = [0] * layout.words
    at = series(Recorder(layout, words, 0), "")
    words[at + layout.e2e.at] = 1
    for _ in range(2):  # what was read is not counted again
        families = page(layout, words, [0])
        assert value(families, "sglang:num_running_reqs", tp_rank="0") == 4
        assert value(families, "sglang:queue_time_seconds_count") == 4
        assert value(families, "sglang:queue_time_seconds_bucket", le="1.0") == 2
        labels = {"model_name": "m", "is_streaming": "false"}
        assert value(families, "sglang:num_requests_total", **labels) == 21
        labels["is_streaming"] = "true"
        assert value(families, "sglang:num_requests_total", **labels) == 0


def test_a_file_that_cannot_be_read_leaves_ours(multiproc):
    (multiproc / "counter_1.db").write_bytes(b"\xff" * 100)
    (multiproc / "what.db").write_bytes(b"")
    layout = Layout(MetricsConfig(multiproc_dir=str(multiproc)))
    words = [0] * layout.words
    Recorder(layout, words, 0)
    exposition = Exposition(layout, words, [0])
    for count in (1, 2):
        text = exposition.text().decode()
        assert f"tpc_multiproc_failures_total {count}.0\n" in text
        assert "sglang:num_requests_total{" in text and "queue_time_seconds" not in text


def test_a_directory_that_is_not_there_is_nothing(tmp_path):
    layout = Layout(MetricsConfig(multiproc_dir=str(tmp_path / "gone")))
    words = [0] * layout.words
    Recorder(layout, words, 0)
    assert "sglang:num_requests" in page(layout, words, [0])


def test_rules_of_buckets():
    assert buckets.by_rule(None, "--x") is None and buckets.by_rule(["default"], "--x") is None
    assert buckets.by_rule(["custom", "500", "10", "50", "10"], "--x") == [10.0, 50.0, 500.0]
    assert buckets.by_rule(["tse", "1000", "2", "8"], "--x") == [
        984.0, 992.0, 996.0, 998.0, 1000.0, 1002.0, 1004.0, 1008.0, 1016.0,
    ]  # fmt: skip
    for bad in (["custom"], ["tse", "1", "2"], ["tse", "1", "1", "4"], ["custom", "a"], ["z", "1"]):
        with pytest.raises(ValueError, match="--x"):
            buckets.by_rule(bad, "--x")
