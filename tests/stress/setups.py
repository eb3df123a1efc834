"""The scheduler and the server of a run. Owner: stateless."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests import tiny_tokenizer
from tests.e2e.test_placements import placed
from tests.stress import faults, openai, oracle
from tests.stress.driver import HEADER_TIMEOUT_S
from tpc_server import ModelConfig, Options, ServerArgs
from tpc_server.engines.synthetic import SyntheticSettings
from tpc_server.engines.synthetic_script import parse_script

CONTEXT: Final = 65536
_PIECES: Final = [bytes([value]) for value in range(256)] + [b"<eos>", b"<bos>"]


def model(folder: Path) -> Path:
    """A folder with the byte tokenizer and a chat template."""
    tiny_tokenizer.write(folder)
    (folder / "chat_template.jinja").write_text(openai.TEMPLATE)
    return folder


def engine_settings() -> SyntheticSettings:
    """Small steps, few seats, and all faults that requests ask for."""
    scripts, engine_faults = parse_script(faults.script())
    return SyntheticSettings(
        256, CONTEXT, tick_ms=3, max_running=32, seed=oracle.SEED, token_bytes=_PIECES,
        text_ids=oracle.TEXT_IDS, scripts=scripts, faults=engine_faults,
    )  # fmt: skip


def server_args(folder: Path, **more: Any) -> ServerArgs:
    """Of any server of these tests."""
    return ServerArgs(
        model_path=str(folder), served_model_name="tiny", port=0, log_level="error",
        enable_return_hidden_states=True, skip_server_warmup=True, tool_call_parser="hermes",
        model_config=ModelConfig(context_len=CONTEXT, vocab_size=tiny_tokenizer.VOCAB),
        **more,
    )  # fmt: skip


def options(cores: list[str], **more: Any) -> Options:
    """Limits so small that clients reach them."""
    return Options(
        plan=placed(cores), header_timeout_s=HEADER_TIMEOUT_S, socket_buffer_bytes=8192,
        stream_buffer_bytes=64 << 10, write_timeout_s=20.0, linger_s=1.0, **more,
    )  # fmt: skip
