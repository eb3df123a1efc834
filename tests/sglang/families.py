"""Which families of metrics a frontend of SGLang's shows after the same requests. Owner: a person.

usage: python -m tests.sglang.families [python] [rust] [tpc]

A minute each; writes tests/data/sglang/metrics.json. Not what was counted: names, kinds, names of
labels, values of those that are the same at every start, bounds of histograms.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.http_client import Client
from tests.sglang.prepare import prepare
from tests.sglang.record import DATA
from tests.sglang.serving import SERVED, SGLang, until

RECORDED: Final = DATA / "metrics.json"
# As an operator who wants all there is.
FLAGS: Final = (
    *("--enable-metrics", "--enable-cache-report"),
    *("--tokenizer-metrics-allowed-custom-labels", "team"),
    *("--extra-metric-labels", '{"zone": "a"}'),
    *("--bucket-e2e-request-latency", "0.5", "1", "30"),
    *("--generation-tokens-buckets", "tse", "100", "2", "2"),
)
# Labels that say the same at every start; of the others the names count.
FIXED: Final = (
    *("model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "moe_ep_rank", "zone"),
    *("is_streaming", "cache_source", "le", "quantile"),
)
GREEDY: Final = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
JSON_TYPE: Final = {"Content-Type": "application/json"}


def play(address: Any, key: str, admin: str) -> None:
    """One of each kind of request that is counted apart; the keys are "" where there are none."""
    given = _headers(key)
    plain = {"text": "a prompt that is asked for twice, so that it is cached"}
    structured = {**GREEDY, "ignore_eos": False, "json_schema": '{"type": "integer"}'}
    generate = (
        {**plain, "sampling_params": GREEDY},
        {**plain, "sampling_params": GREEDY, "stream": True},
        {**plain, "sampling_params": GREEDY, "custom_labels": {"team": "t"}},
        {"text": "A number: ", "sampling_params": structured},
    )
    messages = [{"role": "user", "content": "Hello"}]
    chat = {"model": SERVED, "messages": messages, "max_tokens": 4, "temperature": 0}
    with Client(address, timeout=60, ruled=False) as client:
        for body in generate:
            assert client.call("POST", "/generate", body, **given).status == 200
        for stream in (False, True):
            body = {**chat, "stream": stream}
            assert client.call("POST", "/v1/chat/completions", body, **given).status == 200
        assert client.call("GET", "/v1/loads", None, **given).status == 200
        assert client.call("GET", "/no/such/path", None, **given).status == 404
        client.call("POST", "/generate", {"text": 5}, **given)
    _abort(address, given, _headers(admin))


def _headers(key: str) -> dict[str, str]:
    return {**JSON_TYPE, **({"Authorization": f"Bearer {key}"} if key else {})}


def _abort(address: Any, given: dict[str, str], admin: dict[str, str]) -> None:
    params = {**GREEDY, "max_new_tokens": 2000}
    body = {"text": "Hello", "rid": "gone", "stream": True, "sampling_params": params}
    with Client(address, timeout=60, ruled=False) as client, Client(address, timeout=60) as other:
        client.request("POST", "/generate", body, given)
        assert client.head()[0] == 200
        client.chunk()
        assert other.call("POST", "/abort_request", {"rid": "gone"}, **admin).status == 200
        while client.chunk():
            pass


def page(address: Any) -> str:
    with Client(address, timeout=60) as client:
        answer = client.call("GET", "/metrics/")
    assert answer.status == 200
    return answer.body.decode()


def families(text: str) -> dict[str, Any]:
    """Name -> kind, names of labels, values of the fixed ones, bounds."""
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(text):
        labels: dict[str, set[str]] = {}
        for sample in family.samples:
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value if name in FIXED else "*")
        bounds = sorted(labels.pop("le", ()), key=float)
        found[family.name] = {
            "type": family.type,
            "labels": {name: sorted(values) for name, values in sorted(labels.items())},
            **({"le": bounds} if bounds else {}),
        }
    return found


def shown(sglang: SGLang, key: str = "", admin: str = "") -> dict[str, Any]:
    """The families after the requests, once they no longer become more."""
    play(sglang.address, key, admin)
    seen: list[dict[str, Any]] = []

    def settled() -> bool:
        seen.append(families(page(sglang.address)))
        return len(seen) > 3 and seen[-1] == seen[-2] == seen[-3]

    until(settled)
    return seen[-1]


class Row(NamedTuple):
    """A difference that is meant: of which frontends, in what, and why."""

    families: tuple[str, ...]
    sides: tuple[str, ...]
    what: str
    why: str


ALLOWED: Final = (
    Row(
        ("sglang:http_requests", "sglang:http_responses", "sglang:http_requests_active",
         "sglang:num_aborted_requests"),
        ("rust",), "only ours", "as SGLang's Python frontend counts them",
    ),
    Row(
        ("sglang:spec_verify_calls",), ("python", "rust"), "only ours",
        "named, never counted: the boundary does not say",
    ),
    Row(
        ("sglang:process_cpu_seconds",), ("python",), "only theirs",
        "of the process that tokenizes, where Python is one; `tpc_loop_busy_seconds_total` is ours",
    ),
    Row(
        ("sglang:startup_time_seconds", "sglang:startup_cuda_graph_time_seconds"),
        ("python",), "only theirs", "as SGLang's Rust server: `/server_info` says `startup_time`",
    ),
    Row(
        ("sglang:routing_keys_active",), ("python",), "only theirs",
        "as SGLang's Rust server: keys go to the scheduler, which counts its own",
    ),
)  # fmt: skip


def differences(ours: dict[str, Any], theirs: dict[str, Any], side: str) -> list[str]:
    """What no row allows, a line each; what is ours alone by its name (`tpc_`) is no difference."""
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name.startswith("tpc_"):
            continue
        found += [
            f"{name}: {what}"
            for what in different(ours.get(name), theirs.get(name))
            if not any(
                side in row.sides and what == row.what and name in row.families for row in ALLOWED
            )
        ]
    return found


def different(ours: Any, theirs: Any) -> list[str]:
    """In what two of one name differ."""
    if theirs is None:
        return ["only ours"]
    if ours is None:
        return ["only theirs"]
    found = [what for what in ("type", "le") if ours.get(what) != theirs.get(what)]
    one, other = ours["labels"], theirs["labels"]
    return found + [f"label {n}" for n in sorted({*one, *other}) if one.get(n) != other.get(n)]


def main(words: list[str]) -> int:
    found: dict[str, Any] = {}
    if RECORDED.exists():
        found = json.loads(RECORDED.read_text("utf-8"))
    for frontend in words or ["python", "rust"]:
        with (
            tempfile.TemporaryDirectory() as temp,
            SGLang(prepare(), Path(temp) / "log", frontend, FLAGS) as sglang,
        ):
            found[frontend] = shown(sglang.wait())
        lines = json.dumps(found, ensure_ascii=False, indent=1, sort_keys=True)
        RECORDED.write_text(lines + "\n", encoding="utf-8")
        print(frontend, "written", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
