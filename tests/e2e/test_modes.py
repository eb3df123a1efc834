"""One contract for all modes: tests of the in-process server, with the cores in a child, in two
children that share the port, and in a program that joined from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_tokenizer
from tests.e2e.conftest import Running
from tests.e2e.test_attach import Outside
from tests.e2e.test_chat import *  # noqa: F403
from tests.e2e.test_chat_tools import *  # noqa: F403
from tests.e2e.test_completions import *  # noqa: F403
from tests.e2e.test_generate import *  # noqa: F403
from tests.e2e.test_sidecar import until
from tests.fake_scheduler import FakeScheduler, echo
from tpc_server import ModelConfig, Options, ServerArgs
from tpc_server.link.server import SidecarServer

pytestmark = pytest.mark.timeout(180)
SIDECAR, TWO, ATTACHED = "sidecar", "two-frontends", "attached"


class Servers:
    """Of one mode, by what they were started with: a process costs a second."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.mode = mode
        self._folder = folder
        self._made: dict[str, SidecarServer] = {}
        self._outside: dict[str, Outside] = {}

    def get(self, given: dict[str, Any], options: Any, server: Any) -> tuple[SidecarServer, Any]:
        """A server, and where it is asked."""
        key = repr((sorted(given.items(), key=lambda item: item[0]), options, server))
        if key not in self._made:
            self._start(key, given, options or {}, server or {})
        made = self._made[key]
        if self.mode == ATTACHED:
            return made, self._outside[key].address
        return made, ("127.0.0.1", made.http_port)

    def _start(
        self, key: str, given: dict[str, Any], options: dict[str, Any], server: dict[str, Any]
    ) -> None:
        attach = self._folder / str(len(self._made))
        count = {SIDECAR: 1, TWO: 2, ATTACHED: 0}[self.mode]
        if self.mode == ATTACHED:
            options = {**options, "attach": str(attach)}
        self._made[key] = made = SidecarServer(
            ServerArgs(**given), options=Options(**options), frontends=count, **server
        )
        if self.mode != ATTACHED:
            return
        outside = self._outside[key] = Outside(attach)
        scheduler = FakeScheduler(made)  # it lets it in
        until(lambda: outside.status("/model_info") not in (0, 503), 60)
        scheduler.stop()

    def end(self) -> None:
        """All of them."""
        for outside in self._outside.values():
            outside.process.kill()
            outside.end()
        for server in self._made.values():
            server.shutdown()


@pytest.fixture(scope="module", params=[SIDECAR, TWO, ATTACHED])
def servers(request, tmp_path_factory):
    """Those of one mode after the other."""
    made = Servers(request.param, tmp_path_factory.mktemp("attach"))
    yield made
    made.end()


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
    """As the fixture of the in-process server; equal arguments share processes."""
    running = []

    def begin(script=echo, manual=False, options=None, server=None, **args):
        given = {
            "model_path": str(model_folder), "served_model_name": "tiny", "port": 0,
            "log_level": "error", "skip_server_warmup": True,
            "model_config": ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
            **args,
        }  # fmt: skip
        made, address = servers.get(given, options, server)
        one = Running(made, FakeScheduler(made, script, manual), address)
        running.append(one)
        return one

    yield begin
    for one in running:
        one.scheduler.stop()
