"""The official `openai` client against a running server, from an ordinary Python."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests import tiny_tokenizer
from tests.e2e import openai_client_checks as checks
from tests.fake_scheduler import FakeScheduler
from tests.gil_env import clean_env, gil_env

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}[assistant]"
)


def say(header, ids):
    """What the prompt asks for last, one byte a step."""
    prompt = bytes(i for i in ids if i < 256).decode()
    text = re.findall(r"SAY<(.*?)>(?=\[assistant\]|$)", prompt, re.S)
    said = text[-1] if text else "?"
    said = said.rpartition("SAY<")[2] if "SAY<" in said else said
    said = said.replace("[think]", "<think>").replace("[/think]", "</think>")
    frames = [([byte], None) for byte in said.encode()]
    return [*frames, ([tiny_tokenizer.EOS], {"type": "stop", "matched": tiny_tokenizer.EOS})]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Outcome of every check, by name."""
    from tpc_server import ModelConfig, Server, ServerArgs

    python = gil_env("openai-client")
    folder = tiny_tokenizer.write(tmp_path_factory.mktemp("client-model"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    server = Server(
        ServerArgs(
            model_path=str(folder), served_model_name="tiny", port=0, log_level="error",
            skip_server_warmup=True, tool_call_parser="hermes", reasoning_parser="think",
            model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
        )
    )  # fmt: skip
    scheduler = FakeScheduler(server, say)
    try:
        done = subprocess.run(
            [str(python), str(Path(checks.__file__)), f"http://127.0.0.1:{server.http_port}/v1"],
            capture_output=True, text=True, timeout=240, check=False, env=clean_env(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        scheduler.stop()
        server.shutdown()


@pytest.mark.parametrize("name", [function.__name__ for function in checks.CHECKS])
def test_the_client(results, name):
    assert results[name] == ""
