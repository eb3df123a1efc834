"""/metrics where the cores run in processes of their own. Owner: pytest."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests import tiny_tokenizer
from tests.e2e.test_metrics import UNARY, at, config, generate, scrape
from tests.fake_scheduler import FakeScheduler
from tpc_server import ModelConfig, ServerArgs
from tpc_server.link.server import SidecarServer

pytestmark = pytest.mark.timeout(120)


class Running:
    """A sidecar server and its scheduler."""

    def __init__(self, folder, frontends):
        self.server = SidecarServer(
            ServerArgs(
                model_path=str(folder), served_model_name="tiny", port=0, log_level="error",
                skip_server_warmup=True, metrics=config(),
                model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
            ),
            frontends=frontends,
        )  # fmt: skip
        self.scheduler = FakeScheduler(self.server)
        self.address = ("127.0.0.1", self.server.http_port)


@pytest.fixture
def sidecar(model_folder):
    running = []

    def begin(frontends=1):
        running.append(Running(model_folder, frontends))
        return running[-1]

    yield begin
    for one in running:
        one.scheduler.stop()
        one.server.shutdown()


def test_whichever_process_is_asked_shows_all(sidecar):
    one = sidecar(2)
    for k in range(20):  # the kernel spreads the connections
        assert generate(one, 1 + k % 2).status == 200
    for _ in range(6):
        samples = scrape(one)
        assert at(samples, "num_requests_total", UNARY) == 20
        assert at(samples, "generation_tokens_histogram_sum") == 30


def test_what_a_process_counted_outlives_it(sidecar):
    one = sidecar()
    assert generate(one, 2).status == 200
    (pid,) = one.server.processes()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while one.server.processes() in ([], [pid]) or not _answers(one):
        assert time.monotonic() < deadline
    assert generate(one, 2).status == 200
    assert at(scrape(one), "num_requests_total", UNARY) == 2
    assert one.server.reload()
    old = one.server.processes()[:1]
    while one.server.processes()[-1:] == old or len(one.server.processes()) != 1:
        assert time.monotonic() < deadline
    assert generate(one, 2).status == 200
    assert at(scrape(one), "num_requests_total", UNARY) == 3


def _answers(one):
    try:
        return generate(one, 1, log_metrics=False).status == 200
    except (OSError, EOFError):
        return False
