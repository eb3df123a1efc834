"""A prefill server's registry, asked by SGLang's own code. Owner: pytest.

A whole prefill server needs a way to move the cache (RDMA), which a CPU does not have; what ranks
and decode nodes say to the registry is said by their own functions.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.sglang.serving import environ
from tpc_server import DisaggregationMode, ModelConfig, Server, ServerArgs

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]
CLIENT = Path(__file__).with_name("registry_client.py")


def test_ranks_and_decode_nodes(prepared):
    with Server(
        ServerArgs(
            port=0, log_level="error", skip_tokenizer_init=True, skip_server_warmup=True,
            disaggregation_mode=DisaggregationMode.Prefill,
            model_config=ModelConfig(context_len=4096, vocab_size=1000),
        )
    ) as server:  # fmt: skip
        done = subprocess.run(
            [str(prepared.python), str(CLIENT), f"127.0.0.1:{server.http_port}"],
            env=environ(prepared, ""), capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ours"] == said["theirs"]
    assert said["ours"][8]["dp_size"] == 2 and said["ours"][-2] == {
        "0": 0, "17": 1, str((1 << 63) - 1): 1,
    }  # fmt: skip
