"""What has grown for thousands of tokens is not copied for each of them, in any mode."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import tiny_tokenizer
from tests.unit.test_message_order import FakeSender
from tests.unit.test_stage_ends import KEY, opened
from tpc_server import frame, mesh
from tpc_server.affinity import sglang_rules
from tpc_server.boundary import codec, wire
from tpc_server.boundary.columns import FAMILIES, HIDDEN, pack_frame
from tpc_server.boundary.server_args import ModelConfig, ServerArgs
from tpc_server.config import Options
from tpc_server.counters import Counters
from tpc_server.info import ServerInfo
from tpc_server.render import plan
from tpc_server.setup import CoreSetup
from tpc_server.stages.base import Outbox, RemotePort
from tpc_server.stages.detok import DetokStage
from tpc_server.stages.writers import ConnWriter
from tpc_server.text.load import load_tokenizer

TOKENS = 8000
PACK = codec.make_packer()


class Socket:
    """Takes everything. Bytes that were made for a write are copies; a stream's own growing
    buffers, which are bytearrays, are none."""

    def __init__(self) -> None:
        self.copied = 0
        self.sent = 0

    def send(self, data):
        self.copied += len(data)
        self.sent += len(data)
        return len(data)

    def sendmsg(self, parts):
        for part in parts:
            if type(part) is not bytearray:
                self.copied += len(part)
        size = sum(map(len, parts))
        self.sent += size
        return size


def usual(**changes):
    wanted = list(plan.USUAL)
    for name, value in changes.items():
        wanted[getattr(plan, name)] = value
    return tuple(wanted)


def detok_stage(folder, link, core_plan, incremental):
    args = ServerArgs(
        model_path=str(folder), incremental_streaming_output=incremental,
        model_config=ModelConfig(context_len=1 << 20, vocab_size=tiny_tokenizer.VOCAB),
    )  # fmt: skip
    info = ServerInfo(args, core_plan, "in-process", "native")
    setup = CoreSetup(
        args, Options(), load_tokenizer(str(folder)), info, lambda *a, **k: None, lambda: None,
        link, [0] * 64,
    )  # fmt: skip
    sock = Socket()
    egress = SimpleNamespace(counters=Counters(), answered=lambda writer: None)
    writer = ConnWriter(egress, KEY, sock, None, False)
    stage = DetokStage(setup, Counters(), lambda key: writer)
    port = RemotePort(FakeSender(), Outbox())
    stage.connect({3: port}, {0: port})
    return stage, sock


def families_of(wanted, count):
    if wanted[plan.HIDDEN]:
        return {HIDDEN: [[[0.5, 1.5]] * count]}
    if not wanted[plan.LOGPROB]:
        return None
    made = {f"{name}_{part}": [[]] for name in FAMILIES for part in ("val", "idx")}
    made["output_token_logprobs_val"] = [[-0.5] * count]
    made["output_token_logprobs_idx"] = [[65] * count]
    made["output_top_logprobs_val"] = [[[-0.5, -1.5]] * count]
    made["output_top_logprobs_idx"] = [[[65, 66]] * count]
    return made


MODES = {
    "plain": (usual(), {}),
    "stops": (usual(STOPS=True), {}),
    "batch": (usual(), {"is_batch": True}),
    "HTTP/1.0": (usual(), {"chunked": False}),
    "logprobs": (usual(LOGPROB=True, TOP_LOGPROBS=2), {}),
    "logprobs with text": (usual(LOGPROB=True, LOGPROB_TEXT=True, TOP_LOGPROBS=2), {}),
    "hidden states": (usual(HIDDEN=True), {}),
    "prompt ids": (usual(PROMPT_IDS=True), {}),
}


@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
@pytest.mark.parametrize("mode", MODES)
def test_bytes_copied_per_token_stay_flat(tmp_path, mode, incremental):
    wanted, form = MODES[mode]
    core_plan = sglang_rules.plan_for_server(None, 1, 1, allowed_cpus=1)
    link = mesh.Mesh(core_plan, 8, 8, 8)
    stage, sock = detok_stage(tiny_tokenizer.write(tmp_path), link, core_plan, incremental)
    message = list(opened("r#1"))
    message[4], message[5] = form.get("is_batch", False), form.get("chunked", True)
    message[13] = [("r#1", "r", wanted, None)]
    stage.inbox += [tuple(message), (frame.D_ENCODED, "r#1", 3, [1, 2, 3], [1, 2, 3], 3)]
    stage.poll(10)

    def push(rows, count=1):
        """So many rows of `count` tokens; bytes copied for them."""
        before = sock.copied
        for row in range(rows):
            header, data = pack_frame(
                PACK, ["r#1"], [None], [3], [[97 + row % 26] * count], [0], [0],
                families=families_of(wanted, count),
            )  # fmt: skip
            stage.on_record(wire.BATCH, b"", b"".join(wire.frame_parts(header, data)))
        return sock.copied - before

    push(10, 100)
    early = push(200)
    push((TOKENS - 1400) // 100, 100)
    sock.sent = 0
    late = push(200)
    assert late < 1.2 * early, (early // 200, late // 200)
    if incremental:
        assert sock.sent < 200 * 1000
    else:
        assert sock.sent > 200 * TOKENS  # each frame had all of it
    assert stage.streams["r#1"].completion == TOKENS
    link.close()
