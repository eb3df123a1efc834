"""A start that fails: what is said, and that it ends. Owner: pytest."""

from __future__ import annotations

import msgpack
import pytest

from tests.http_client import Client
from tests.llama_models import TinyModel
from tpc_server import core, launch
from tpc_server.boundary.server_args import ModelConfig, ServerArgs
from tpc_server.cli import parse
from tpc_server.server import Server, ServerError


def test_a_core_that_cannot_be_built_is_one_stack_and_an_end(start, capfd, monkeypatch):
    def broken(*args):
        raise RuntimeError("no stages today")

    monkeypatch.setattr(core, "StageSet", broken)
    with pytest.raises(ServerError, match="could not start"):
        start()
    log = capfd.readouterr().err
    assert log.count("Traceback") == 1 and "could not start: no stages today" in log
    assert "AttributeError" not in log


@pytest.mark.parametrize(
    ("preferred", "told"),
    [('{"temp": 1}', "unknown field `.*temp`"), ('{"top_p": 7}', "top_p must be in"),
     ('{"min_new_tokens": 300}', "min_new_tokens must be in")],
)  # fmt: skip
def test_preferred_parameters_are_checked_before_anything_is_made(preferred, told):
    args = ServerArgs(
        preferred_sampling_params=preferred, model_config=ModelConfig(vocab_size=9), model_path="x"
    )
    with pytest.raises(TypeError, match=f"field `preferred_sampling_params`: {told}"):
        Server(args)


def test_a_context_that_the_model_has_not_is_told_before_its_weights_are_read(
    tmp_path, capsys, monkeypatch
):
    path = TinyModel(3).write(tmp_path / "tiny.gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = ["--model-path", str(path), "--port", "0", "--skip-tokenizer-init"]
    for wrong, told in (
        (["--context-length", "129"], "--context-length: 129 tokens are not possible"),
        (["--kv-tokens", "1"], "--kv-tokens: must be at least 2"),
    ):
        assert launch.run(parse([*flags, *wrong])) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"tpc-server: error: {told}")
        assert (tmp_path / "cache").exists() is ("--kv-tokens" in wrong)


@pytest.mark.parametrize("flag", ["--model-path", "--tokenizer-path", "--uds"])
def test_an_empty_path_is_told_and_is_not_this_folder(flag, capsys, monkeypatch):
    monkeypatch.setattr(launch, "bind", lambda *args: pytest.fail("it went on"))
    assert launch.run(parse([flag, ""])) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"tpc-server: error: {flag} is empty"


def test_a_server_needs_a_model_or_no_tokenizer():
    with pytest.raises(TypeError, match="field `model_path` is empty"):
        Server(ServerArgs())


def test_a_malformed_frame_is_logged_once_a_second_at_most(start, capfd):
    run = start(manual=True, log_level="error")
    with Client(run.address) as client:
        client.request("POST", "/generate", {"text": "ab", "stream": True})
        run.scheduler.wait_for(lambda s: s.live)
        for _ in range(50):
            run.server.push_decode_result_batch(b"\x91\x01", [b""])
        (rid,) = run.scheduler.live
        run.server.push_decode_result_batch(msgpack.packb([[rid], [None], [2], [1], [0]]), [b""])
        assert b"malformed" in client.answer().body
    run.server.shutdown()
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 30 and "malformed frame of the scheduler" in lines[0]
    assert 'reason="header is no array of 6 to 24 columns"' in lines[0]
