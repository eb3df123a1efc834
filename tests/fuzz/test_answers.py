"""Thousands of requests of all kinds on all routes: nothing fails, and equal ones answer alike.

A failure names its seed and case: `TPC_SEED=… TPC_FUZZ_CASE=k pytest tests/fuzz -k <variant>` plays
that case alone. An ordinary run ends after some seconds, --stress-seconds N or --full go on.
Hypothesis plays the same cases one by one, so that a failure becomes a small one; schemathesis
asks what it makes of our own description.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import tiny_tokenizer
from tests.e2e.test_chat import TEMPLATE
from tests.e2e.test_placements import placed
from tests.fuzz.play import Player
from tests.gil_env import clean_env, gil_env
from tests.http_client import call
from tests.stress import leaks, oracle
from tpc_server import MetricsConfig, ModelConfig, Options, Server, ServerArgs
from tpc_server.engines.synthetic import SyntheticEngine, SyntheticSettings
from tpc_server.engines.synthetic_script import Script

PIECES = [bytes([value]) for value in range(256)] + [b"<eos>", b"<bos>"]
REQUESTS = 10_000  # of a whole run, both variants together
ORDINARY_S = 10.0  # of one variant, and so many requests however long they take
LEAST = 1000
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln \\"x\\""}}\n</tool_call>'
THINK = "<think>Hm, 世界…\n</think>\n\nYes."
PLAYERS = 8


class Variant(NamedTuple):
    cores: list[str]
    incremental: bool
    text: bool  # the engine emits a text, else ids at random


VARIANTS = {
    "one-core": Variant(["1"], False, True),
    "four-cores": Variant(
        ["ingress=0,1", "tokenize=2", "detok=3", "egress=1,0"], True, False
    ),
}  # fmt: skip


def pieces(text: str, size: int) -> list[bytes]:
    data = text.encode()
    return [data[k : k + size] for k in range(0, len(data), size)]


class Running(NamedTuple):
    server: Any
    engine: SyntheticEngine
    variant: Variant


@pytest.fixture(scope="module", params=VARIANTS)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    variant = VARIANTS[request.param]
    folder: Path = tiny_tokenizer.write(tmp_path_factory.mktemp("fuzz"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    server = Server(
        ServerArgs(
            model_path=str(folder), served_model_name="tiny", port=0, log_level="error",
            skip_server_warmup=True, incremental_streaming_output=variant.incremental,
            enable_return_hidden_states=True, tool_call_parser="hermes", reasoning_parser="think",
            metrics=MetricsConfig(labels={"team": ""}),
            model_config=ModelConfig(context_len=512, vocab_size=tiny_tokenizer.VOCAB),
        ),
        options=Options(plan=placed(variant.cores)),
    )  # fmt: skip
    engine = SyntheticEngine(
        SyntheticSettings(
            tiny_tokenizer.VOCAB, 512, tick_ms=0, token_bytes=PIECES, seed=oracle.SEED,
            eos_ids=(tiny_tokenizer.EOS,), text_ids=oracle.TEXT_IDS if variant.text else None,
            scripts=[
                Script(rid="call-", frames=pieces("Let me see. " + CALL, 3)),
                Script(rid="think-", frames=pieces(THINK, 1)),
                Script(rid="both-", frames=pieces(THINK + CALL + " Done.", 5)),
            ],
        )
    )  # fmt: skip
    stopping = threading.Event()
    thread = threading.Thread(target=engine.run, args=(server, stopping), daemon=True)
    thread.start()
    try:
        yield Running(server, engine, variant)
    finally:
        stopping.set()
        thread.join(20)
        server.shutdown()


class Crowd:
    """Players on threads of their own; the first failures end it."""

    def __init__(
        self, run: Running, seed: str, requests: float, least: float, until: float
    ) -> None:
        self.address = ("127.0.0.1", run.server.http_port)
        self.incremental = run.variant.incremental
        self.seed = seed
        self.requests = requests
        self.least = least
        self.until = until
        self.cases = itertools.count()
        self.asked = [0] * PLAYERS
        self.wrong: list[str] = []

    def start(self) -> None:
        threads = [threading.Thread(target=self.work, args=(k,)) for k in range(PLAYERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def work(self, index: int) -> None:
        player = Player(self.address, self.incremental)
        while not self.wrong and self.goes_on():
            self.case(player, next(self.cases))
            self.asked[index] = player.asked
        player.close()

    def goes_on(self) -> bool:
        asked = sum(self.asked)
        return asked < self.least or (asked < self.requests and time.monotonic() < self.until)

    def case(self, player: Player, number: int) -> None:
        try:
            player.play(random.Random(f"{self.seed}/{number}"), f"{number}.")
        except Exception:
            player.close()
            about = traceback.format_exc(limit=-4)
            self.wrong.append(f"TPC_SEED={self.seed} TPC_FUZZ_CASE={number}: {about}")


def judge(run: Running, seed: str) -> None:
    """What must be left of any number of requests: nothing, and a server that is well."""
    assert leaks.settle(run.server, run.engine, 30) is None, f"TPC_SEED={seed}"
    assert leaks.too_many_records(len(run.server.cores)) is None, f"TPC_SEED={seed}"
    counters = run.server.counters()
    assert not sum(c["resets"] for c in counters), f"TPC_SEED={seed}: a core died"
    address = ("127.0.0.1", run.server.http_port)
    assert call(address, "GET", "/health").status == 200


@pytest.mark.timeout(900)
def test_answers(run: Running, request: pytest.FixtureRequest) -> None:
    seed = os.environ.get("TPC_SEED") or f"{random.SystemRandom().getrandbits(32):08x}"
    print(f"TPC_SEED={seed}")
    seconds = request.config.getoption("--stress-seconds")
    requests, least, limit = REQUESTS / len(VARIANTS), LEAST, ORDINARY_S
    if seconds:
        requests, limit = float("inf"), seconds / len(VARIANTS)
    elif request.config.getoption("--full"):
        least = REQUESTS // len(VARIANTS)
    begun = time.monotonic()
    crowd = Crowd(run, seed, requests, least, begun + limit)
    only = os.environ.get("TPC_FUZZ_CASE")
    if only:
        player = Player(crowd.address, crowd.incremental)
        crowd.case(player, int(only))
        player.close()
    else:
        crowd.start()
        print(f"{sum(crowd.asked)} requests in {time.monotonic() - begun:.1f} s")
    assert not crowd.wrong, f"{len(crowd.wrong)} failed:\n" + "\n".join(crowd.wrong[:3])
    assert only or sum(crowd.asked) >= least, f"TPC_SEED={seed}: {sum(crowd.asked)} requests"
    judge(run, seed)


@pytest.mark.timeout(300)
@settings(
    max_examples=40, deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(st.randoms(use_true_random=False), st.integers(0, 999))
def test_one_by_one(run: Running, rng: random.Random, number: int) -> None:
    player = Player(("127.0.0.1", run.server.http_port), run.variant.incremental)
    try:
        player.play(rng, f"h{number}.")
    finally:
        player.close()


@pytest.mark.network
@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", ["one-core"], indirect=True)
def test_schemathesis(run: Running, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Requests made by other people's software from /openapi.json: no failure on our side."""
    python = gil_env("schemathesis")
    seed = random.SystemRandom().getrandbits(31)
    seconds = 120 if request.config.getoption("--full") else 8
    for limit in (seconds, 5 * seconds):  # it needs most of the first for itself on a busy machine
        done = subprocess.run(
            [
                str(python.with_name("schemathesis")), "run", "--no-color", f"--seed={seed}",
                "--checks=not_a_server_error,content_type_conformance", "--phases=coverage,fuzzing",
                f"--max-time={limit}", "--workers=2", "--continue-on-failure", "--no-shrink",
                "--generation-database=none",
                f"http://127.0.0.1:{run.server.http_port}/openapi.json",
            ],
            capture_output=True, text=True, timeout=240, check=False, env=clean_env(), cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, f"--seed={seed}\n{done.stdout[-5000:]}{done.stderr[-2000:]}"
        counted = re.search(r"(\d+) generated", done.stdout)
        if counted and int(counted[1]) > 50:
            break
    assert counted and int(counted[1]) > 5, done.stdout[-3000:]
    judge(run, str(seed))
