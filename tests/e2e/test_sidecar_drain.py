"""A drain, asked for beside the scheduler's thread, whatever the mode. Owner: pytest."""

from __future__ import annotations

import threading

import pytest

from tests import tiny_tokenizer
from tests.fake_scheduler import FakeScheduler
from tests.http_client import Client
from tpc_server import ModelConfig, Options, ServerArgs
from tpc_server.link.control import state_of
from tpc_server.link.server import SidecarServer
from tpc_server.server import Server

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("kind", [SidecarServer, Server])
def test_a_stream_goes_on_and_the_port_closes(model_folder, kind):
    server = kind(
        ServerArgs(
            model_path=str(model_folder), port=0, log_level="error", skip_server_warmup=True,
            model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
        )
    )  # fmt: skip
    address = ("127.0.0.1", server.http_port)
    scheduler = FakeScheduler(server, manual=True)
    drained = threading.Thread(target=server.drain, args=(60.0,))
    body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 3}}
    try:
        with Client(address) as client:
            client.request("POST", "/generate", body)
            scheduler.wait_for(lambda s: s.live)
            scheduler.step()
            assert client.head()[0] == 200
            client.chunk()
            while not (said := state_of(server, {}))["inflight"]:  # published a little late
                pass
            assert said["draining"] is False
            drained.start()
            while True:  # until it is refused: the listening socket is gone in both processes
                try:
                    Client(address).close()
                except ConnectionError:
                    break
            assert drained.is_alive()
            assert state_of(server, {1: "leaving"}) == {
                "mode": server.mode, "ready": False, "draining": True, "inflight": 1, "pids": [1],
                "processes": [{"pid": 1, "state": "leaving"}],
            }  # fmt: skip
            scheduler.manual = False
            scheduler.step()
            text = b"".join(iter(client.chunk, b""))
        assert text.rstrip().endswith(b"data: [DONE]") and b'"length":3' in text
        drained.join()
        assert kind is Server or not server.processes()
        # The scheduler's calls still answer.
        assert server.recv_requests() == [] and server.wait_request(1) is False
        assert server.push_health_ack() is True
    finally:
        scheduler.stop()
        server.shutdown()
    assert server.push_health_ack() is False


def test_what_only_processes_have_is_refused_in_one(model_folder):
    args = ServerArgs(model_path=str(model_folder), port=0)
    for more in ({"frontends": 2}, {"options": Options(attach="/nowhere/x")}):
        with pytest.raises(TypeError, match="TPC_MODE=sidecar"):
            Server(args, **more)
