"""One contract for all modes: tests of the in-process server, with the cores in a child."""

from __future__ import annotations

import json

import pytest

from tests import tiny_tokenizer
from tests.e2e.conftest import Running
from tests.e2e.test_chat import *  # noqa: F403
from tests.e2e.test_chat_tools import *  # noqa: F403
from tests.e2e.test_completions import *  # noqa: F403
from tests.e2e.test_generate import *  # noqa: F403
from tests.fake_scheduler import FakeScheduler, echo
from tpc_server import ModelConfig, Options, ServerArgs
from tpc_server.link.server import SidecarServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def servers():
    """Sidecar servers by what they were started with: a child costs a second."""
    made: dict[str, SidecarServer] = {}
    yield made
    for server in made.values():
        server.shutdown()


@pytest.fixture(scope="module")
def _chat_folder(tmp_path_factory):
    from tests.e2e.test_chat import TEMPLATE

    folder = tiny_tokenizer.write(tmp_path_factory.mktemp("modes"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": "<bos>", "eos_token": "<eos>"})
    )
    return str(folder)


@pytest.fixture  # type: ignore[no-redef]
def model(_chat_folder):
    """The byte tokenizer with a chat template, the same for all tests."""
    return _chat_folder


@pytest.fixture
def start(servers, model_folder):
    """As the fixture of the in-process server; equal arguments share a child."""
    running = []

    def begin(script=echo, manual=False, options=None, server=None, **args):
        given = {
            "model_path": str(model_folder), "served_model_name": "tiny", "port": 0,
            "log_level": "error", "skip_server_warmup": True,
            "model_config": ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
            **args,
        }  # fmt: skip
        key = repr((sorted(given.items(), key=lambda item: item[0]), options, server))
        if key not in servers:
            servers[key] = SidecarServer(
                ServerArgs(**given), options=Options(**(options or {})), **(server or {})
            )
        made = servers[key]
        one = Running(made, FakeScheduler(made, script, manual), ("127.0.0.1", made.http_port))
        running.append(one)
        return one

    yield begin
    for one in running:
        one.scheduler.stop()
