"""/metrics of a running server: known requests give known numbers, on one core and on several."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http_client import Client, call
from tests.stress.clock import until as awaited
from tpc_server import MetricsConfig
from tpc_server import core as cores
from tpc_server.affinity.cores_arg import parse_cores
from tpc_server.affinity.plan import PlanSettings, plan
from tpc_server.affinity.topology import read
from tpc_server.counters import snapshot

pytestmark = pytest.mark.timeout(120)

COMMON = {"model_name": "tiny", "engine_type": "unified"}
STREAM = {**COMMON, "is_streaming": "true"}
UNARY = {**COMMON, "is_streaming": "false"}


def config(**given):
    return MetricsConfig(**{"labels": COMMON, **given})


def scrape(one):
    """All samples, by name and labels."""
    answer = call(one.address, "GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    out = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in out, f"{key} twice"
            out[key] = sample.value
    return out


def at(samples, name, labels=COMMON, **more):
    return samples.get(("sglang:" + name, frozenset({**labels, **more}.items())))


def until(one, wanted, timeout=20.0):
    """Samples once `wanted(samples)` holds: what a core counts is published with a delay."""
    deadline = time.monotonic() + timeout
    while True:
        samples = scrape(one)
        if wanted(samples):
            return samples
        assert time.monotonic() < deadline, "not reached"


def generate(one, tokens, prompt="hello", **more):
    body = {"text": prompt, "sampling_params": {"max_new_tokens": tokens}, **more}
    return call(one.address, "POST", "/generate", body)


def test_without_metrics_there_is_no_page(start):
    one = start()
    for path in ("/metrics", "/metrics/"):
        answer = call(one.address, "GET", path)
        assert answer.status == 404 and "--enable-metrics" in answer.body.decode()
    assert generate(one, 3).status == 200


def test_known_requests_give_known_numbers(start):
    one = start(metrics=config())
    assert generate(one, 5, "hello").status == 200
    assert generate(one, 3, "good morning", stream=True).status == 200
    assert generate(one, 1, "x", stream=True).status == 200
    assert generate(one, 2, "quiet", log_metrics=False).status == 200
    assert generate(one, 4, ["one", "three"]).status == 200
    assert generate(one, 0, "nothing").status == 200
    samples = scrape(one)
    assert at(samples, "num_requests_total", UNARY) == 4
    assert at(samples, "num_requests_total", STREAM) == 2
    assert at(samples, "prompt_tokens_total", UNARY) == 5 + 3 + 5 + 7
    assert at(samples, "prompt_tokens_total", STREAM) == 12 + 1
    assert at(samples, "generation_tokens_total", UNARY) == 5 + 4 + 4
    assert at(samples, "generation_tokens_total", STREAM) == 3 + 1
    assert at(samples, "cached_tokens_total", cache_source="device") == 0
    assert at(samples, "num_so_requests_total") == 0
    assert at(samples, "time_to_first_token_seconds_count", STREAM) == 2
    assert at(samples, "time_to_first_token_seconds_count", UNARY) == 4
    assert at(samples, "inter_token_latency_seconds_count") == 4 + 2 + 3 + 3
    assert at(samples, "request_time_per_output_token_seconds_count", STREAM) == 1
    assert at(samples, "request_time_per_output_token_seconds_count", UNARY) == 3
    assert at(samples, "e2e_request_latency_seconds_count", STREAM) == 2
    assert at(samples, "e2e_request_latency_seconds_bucket", STREAM, le="+Inf") == 2
    assert at(samples, "prompt_tokens_histogram_sum") == 33
    assert at(samples, "uncached_prompt_tokens_histogram_sum") == 33
    assert at(samples, "generation_tokens_histogram_sum") == 17
    assert at(samples, "generation_tokens_histogram_bucket", le="100.0") == 6
    spent = at(samples, "e2e_request_latency_seconds_sum", UNARY)
    assert 0 < at(samples, "time_to_first_token_seconds_sum", UNARY) <= spent < 60
    route = {"endpoint": "/generate", "method": "POST"}
    assert at(samples, "http_requests_total", route) == 6
    assert at(samples, "http_responses_total", route, status_code="200") == 6
    assert at(samples, "http_requests_active", {"endpoint": "/metrics", "method": "GET"}) == 1


def test_intervals_are_those_of_the_steps(start):
    one = start(manual=True, metrics=config(bucket_inter_token_latency=[0.05, 30.0]))
    with Client(one.address) as client:
        body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 4}}
        client.request("POST", "/generate", body)
        one.scheduler.wait_for(lambda s: s.live)
        one.scheduler.step()
        client.head()
        client.chunk()
        until(one, lambda s: at(s, "time_to_first_token_seconds_count", STREAM) == 1)
        began = time.monotonic()
        while time.monotonic() - began < 0.06:  # longer than the first bucket
            scrape(one)
        one.scheduler.step(3)
        while client.chunk():
            pass
    samples = scrape(one)
    assert at(samples, "inter_token_latency_seconds_count") == 3
    assert at(samples, "inter_token_latency_seconds_bucket", le="0.05") <= 2
    assert at(samples, "inter_token_latency_seconds_bucket", le="30.0") == 3
    assert at(samples, "inter_token_latency_seconds_sum") >= 0.05


def test_the_warm_up_counts_and_health_probes_do_not(start):
    one = start(metrics=config(), skip_server_warmup=False)
    samples = until(one, lambda s: at(s, "num_requests_total", UNARY))
    for _ in range(3):
        assert call(one.address, "GET", "/health").status == 200
    samples = scrape(one)
    assert at(samples, "num_requests_total", UNARY) == 1
    assert at(samples, "generation_tokens_total", UNARY) == 8
    assert at(samples, "num_aborted_requests_total") == 0
    health = {"endpoint": "/health", "method": "GET"}
    assert at(samples, "http_responses_total", health, status_code="200") == 3


def test_aborts_are_counted_and_a_queue_abort_is_no_request(start):
    from array import array

    import msgpack

    one = start(manual=True, metrics=config())
    with Client(one.address) as client:
        client.request("POST", "/generate", {"text": "abc", "rid": "r", "stream": True})
        one.scheduler.wait_for(lambda s: s.live)
        one.scheduler.silent = True
        assert call(one.address, "POST", "/abort_request", {"rid": "r"}).status == 200
        one.scheduler.wait_for(lambda s: s.aborted)
        # As the scheduler says that it ended in its queue: column 23.
        abort = {"type": "abort", "message": "Abort in waiting queue"}
        header = [one.scheduler.aborted, [abort], [3], [0], [0], [0], *[[]] * 17, [True]]
        one.server.push_decode_result_batch(msgpack.packb(header), [array("q").tobytes()])
        assert b"Abort in waiting queue" in client.answer().body
    samples = until(one, lambda s: at(s, "num_aborted_requests_total") == 1)
    assert at(samples, "num_requests_total", STREAM) == 0
    assert at(samples, "e2e_request_latency_seconds_count", STREAM) == 0


def test_a_client_that_goes_is_one_aborted_request_and_no_active_one(start):
    one = start(manual=True, metrics=config())
    client = Client(one.address)
    client.request("POST", "/generate", {"text": "abc", "stream": True})
    one.scheduler.wait_for(lambda s: s.live)
    route = {"endpoint": "/generate", "method": "POST"}
    assert at(scrape(one), "http_requests_active", route) == 1
    client.reset()
    samples = until(one, lambda s: at(s, "num_aborted_requests_total") == 1)
    assert at(samples, "http_requests_active", route) == 0
    assert at(samples, "http_responses_total", route, status_code="200") is None


def test_labels_of_requests(start):
    labels = {**COMMON, "team": ""}
    one = start(metrics=config(labels=labels, priority_label=True))
    generate(one, 2, custom_labels={"team": "x", "model_name": "forged", "more": "y"}, priority=5)
    generate(one, 2, custom_labels={"team": "x"}, priority=5, stream=True)
    generate(one, 2)
    samples = scrape(one)
    mine = {**COMMON, "team": "x", "priority": "5"}
    assert at(samples, "num_requests_total", mine, is_streaming="false") == 1
    assert at(samples, "num_requests_total", mine, is_streaming="true") == 1
    assert at(samples, "inter_token_latency_seconds_count", mine) == 2
    nobody = {**COMMON, "team": "", "priority": ""}
    assert at(samples, "inter_token_latency_seconds_count", nobody) == 1
    assert {dict(k[1])["model_name"] for k in samples if "model_name" in dict(k[1])} == {"tiny"}


def test_requests_of_the_openai_routes(start):
    labels = {**COMMON, "team": ""}
    one = start(metrics=config(labels=labels))
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
    with Client(one.address) as client:
        for given in ('{"team": "x", "other": "y"}', '{"team": 1}', "[" * 9999, "[1]"):
            answer = client.call("POST", "/v1/completions", body, x_custom_labels=given)
            assert answer.status == 200
        client.request("POST", "/v1/completions", {**body, "stream": True})
        assert client.answer().status == 200
    samples = scrape(one)
    assert at(samples, "num_requests_total", {**COMMON, "team": "x"}, is_streaming="false") == 1
    assert at(samples, "num_requests_total", {**COMMON, "team": ""}, is_streaming="false") == 3
    assert at(samples, "num_requests_total", {**COMMON, "team": ""}, is_streaming="true") == 1
    assert at(samples, "generation_tokens_histogram_sum", {**COMMON, "team": ""}) == 12
    route = {"endpoint": "/v1/completions", "method": "POST", "status_code": "200"}
    assert at(samples, "http_responses_total", route) == 5


def test_numbers_outlive_a_core(start):
    one = start(metrics=config())
    assert generate(one, 3).status == 200
    one.server.command(cores.CMD_THROW)
    deadline = time.monotonic() + 20
    while one.total("resets") != 1:
        assert time.monotonic() < deadline
    assert generate(one, 3).status == 200
    samples = scrape(one)
    assert samples["tpc_core_restarts_total", frozenset({("core", "0")})] == 1
    assert at(samples, "num_requests_total", UNARY) == 2
    assert at(samples, "http_requests_active", {"endpoint": "/metrics", "method": "GET"}) == 1


def test_structured_requests(start):
    one = start(metrics=config())
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1, "regex": "a+"}}
    assert call(one.address, "POST", "/generate", body).status == 200
    assert at(scrape(one), "num_so_requests_total") == 1


@pytest.mark.parametrize("spec", [["3"], ["ingress=0", "tokenize=1", "detok=2", "egress=1"]])
def test_several_cores_are_one_page(start, spec):
    placed = plan(read(), PlanSettings(cores=parse_cores(spec), unpinned=True))
    one = start(metrics=config(), options={"plan": placed})
    for k in range(12):  # connections are spread by the kernel
        assert generate(one, 1 + k % 3, stream=bool(k % 2)).status == 200
    route = {"endpoint": "/generate", "method": "POST"}
    samples = until(one, lambda s: at(s, "http_requests_active", route) == 0)
    assert at(samples, "num_requests_total", UNARY) == 6
    assert at(samples, "num_requests_total", STREAM) == 6
    assert at(samples, "generation_tokens_histogram_sum") == 4 * (1 + 2 + 3)
    assert at(samples, "inter_token_latency_seconds_count") == 4 * (1 + 2)
    assert at(samples, "http_responses_total", route, status_code="200") == 12
    assert {dict(k[1])["core"] for k in samples if k[0] == "tpc_frames_total"} == {"0", "1", "2"}


def test_errors_and_unknown_paths_are_counted_by_status(start):
    one = start(metrics=config())
    call(one.address, "POST", "/generate", b"{")
    call(one.address, "GET", "/generate")
    for path in ("/nope", "/nope/2", "/v1/models/a/b"):
        call(one.address, "GET", path)
    call(one.address, "GET", "/v1/m%6fdels")
    samples = scrape(one)
    post = {"endpoint": "/generate", "method": "POST", "status_code": "400"}
    assert at(samples, "http_responses_total", post) == 1
    lost = {"endpoint": "(unmatched)", "method": "(any)"}
    assert at(samples, "http_responses_total", lost, status_code="405") == 1
    assert at(samples, "http_responses_total", lost, status_code="404") == 2
    model = {"endpoint": "/v1/models/{model}", "method": "GET", "status_code": "404"}
    assert at(samples, "http_responses_total", model) == 1
    models = {"endpoint": "/v1/models", "method": "GET", "status_code": "200"}
    assert at(samples, "http_responses_total", models) == 1


def test_our_own_counters(start):
    one = start(manual=True, metrics=config())
    with Client(one.address) as client:
        client.request("POST", "/generate", {"text": "abc", "stream": True})
        one.scheduler.wait_for(lambda s: s.live)

        def of(samples, name, **labels):
            return samples[name, frozenset(labels.items())]

        state = "tpc_live_requests"
        samples = until(one, lambda s: of(s, state, core="0", state="queued") == 1)
        assert of(samples, state, core="0", state="decoding") == 0
        one.scheduler.step()
        samples = until(one, lambda s: of(s, state, core="0", state="decoding") == 1)
        assert of(samples, "tpc_frames_total", core="0") >= 1
        assert of(samples, "tpc_sends_total", core="0") >= 1
        assert of(samples, "tpc_loop_busy_seconds_total", core="0") > 0
        assert of(samples, "tpc_loop_idle_seconds_total", core="0") > 0
        assert of(samples, "tpc_pushes_blocked_total") == 0
        ring = {"from": "scheduler", "to": "0", "lane": "data"}
        assert of(samples, "tpc_ring_size_bytes", **ring) == 4 << 20
        assert 0 <= of(samples, "tpc_ring_used_bytes", **ring) < 4 << 20


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize(
    ("words", "writers"),
    [
        (["1"], {0}),
        (["ingress=0", "tokenize=1", "detok=2", "egress=3"], {3}),
        (["ingress=0,1", "tokenize=2", "detok=0,1", "egress=0"], {0}),
    ],
)
def test_bytes_are_counted_once_by_who_writes_them(start, words, writers, cumulative):
    placed = plan(read(), PlanSettings(cores=parse_cores(words), unpinned=True))
    one = start(manual=True, options={"plan": placed}, incremental_streaming_output=not cumulative)
    link, words = one.server._mesh, one.server._words

    def counted():
        return [snapshot(words, link.counters_at(core)) for core in range(link.n)]

    def reached(what):
        assert awaited(lambda: what(counted()), 30), counted()

    def stream(tokens):
        """The bytes of one, in as many steps as tokens."""
        body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": tokens}}
        with Client(one.address) as client:
            client.request("POST", "/generate", body, {"Connection": "close"})
            one.scheduler.wait_for(lambda s: s.live)
            for _ in range(tokens):
                one.scheduler.step()
            while client.fill():
                pass
            assert client.buffer.endswith(b"0\r\n\r\n")
            return len(client.buffer)

    got = sum([stream(20), stream(20), stream(20)])
    reached(lambda now: sum([now[core]["bytes_out"] for core in writers]) == got)
    # What the others count wrongly they have published by their next two beats.
    for _ in range(2):
        beats = [core["heartbeat_ns"] for core in counted()]
        reached(lambda now, beats=beats: all(
            core["heartbeat_ns"] > beat for core, beat in zip(now, beats, strict=True)
        ))  # fmt: skip
    for core, now in enumerate(counted()):
        if core not in writers:
            assert now["bytes_out"] == now["sends"] == 0, core
    sends = sum([counted()[core]["sends"] for core in writers])
    assert sum([counted()[core]["bytes_out"] for core in writers]) == got and 3 <= sends <= 3 * 25


def test_the_docs_name_every_family(start):
    one = start(metrics=config())
    told = (Path(__file__).parents[2] / "docs" / "METRICS.md").read_text(encoding="utf-8")
    page = call(one.address, "GET", "/metrics").body.decode()
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2].removeprefix("sglang:")
            assert f"`{name}`" in told or f"`{name}{{" in told, name


def test_many_scrapes_on_one_connection(start):
    one = start(metrics=config())
    with Client(one.address) as client:
        for _ in range(20):
            client.request("GET", "/metrics")
        pages = [client.answer() for _ in range(20)]
        assert {p.status for p in pages} == {200}
        head = client.call("HEAD", "/metrics")
        assert head.status == 200 and head.body == b""
        assert client.call("POST", "/metrics").status == 405


def test_a_scrape_whose_client_is_gone_harms_nobody(start):
    one = start(metrics=config())
    for _ in range(10):
        client = Client(one.address)
        client.request("GET", "/metrics")
        client.reset()
    assert at(scrape(one), "num_requests_total", UNARY) == 0
    until(one, lambda s: s["tpc_connections", frozenset({("core", "0")})] == 1)


def test_one_ends_and_another_joins_in_one_step(start):
    """The rows are as many as before, and not the same."""
    run = start(manual=True, metrics=config())

    def begin(client, tokens):
        live = len(run.scheduler.live)
        sampling = {"max_new_tokens": tokens}
        body = {"text": "abcdefghijklmnop", "stream": True, "sampling_params": sampling}
        client.request("POST", "/generate", body)
        run.scheduler.wait_for(lambda s: len(s.live) == live + 1)

    with Client(run.address) as one, Client(run.address) as two, Client(run.address) as three:
        begin(one, 4)
        begin(two, 12)
        run.scheduler.step()
        two.head()
        two.chunk()
        for _ in range(3):
            run.scheduler.step()
            two.chunk()
        run.scheduler.wait_for(lambda s: len(s.live) == 1)
        begin(three, 7)
        for _ in range(8):
            run.scheduler.step()
            two.chunk()
        run.scheduler.wait_for(lambda s: not s.live)
        samples = until(run, lambda s: at(s, "time_to_first_token_seconds_count", STREAM) == 3)
        assert at(samples, "inter_token_latency_seconds_count") == 20
