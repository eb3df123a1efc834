"""A server that has stopped leaves no thread and no descriptor, whatever was open."""

from __future__ import annotations

import gc

import pytest

from tests import tiny_tokenizer
from tests.e2e.test_placements import placed
from tests.fake_scheduler import FakeScheduler
from tests.http_client import Client
from tests.stress import leaks
from tests.stress.clock import until
from tpc_server import ModelConfig, Options, Server, ServerArgs

STREAM = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 600}}
PLACEMENTS = (["1"], ["2"], ["ingress=0", "tokenize=1", "detok=2", "egress=3"])


def serve(folder, values):
    """A server's life: stopped with connections in every state."""
    args = ServerArgs(
        model_path=str(folder), port=0, log_level="error", skip_server_warmup=True,
        model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
    )  # fmt: skip
    with Server(args, options=Options(plan=placed(values))) as server:
        scheduler = FakeScheduler(server, manual=True)
        clients = [Client(("127.0.0.1", server.http_port)) for _ in range(5)]
        clients[0].request("POST", "/generate", STREAM)
        clients[1].send(b"POST /generate HTTP/1.1\r\n")  # half sent
        clients[2].request("GET", "/v1/models")
        assert clients[2].answer().status == 200  # idle
        # Too long, which a helper thread finds out; the fifth one sends nothing.
        clients[3].request("POST", "/generate", {"text": "x" * 9000})
        assert clients[3].answer().status == 400
        scheduler.wait_for(lambda s: s.live)
        scheduler.step()
        clients[0].head()
        assert until(lambda: sum(c["connections"] for c in server.counters()) == 5, 20)
        scheduler.stop()
    for client in clients:
        client.close()


@pytest.mark.parametrize("values", PLACEMENTS, ids=" ".join)
def test_threads_and_descriptors(model_folder, values):
    serve(model_folder, values)  # imports things
    gc.collect()
    fds, threads = leaks.descriptors(), leaks.threads()
    serve(model_folder, values)
    gc.collect()
    assert until(lambda: leaks.threads() <= threads, 20), leaks.names(leaks.threads() - threads)

    def closed() -> bool:
        gc.collect()  # a helper thread's event counter goes with its last holder
        return not leaks.more(leaks.descriptors(), fds)

    assert until(closed, 20), leaks.more(leaks.descriptors(), fds)
