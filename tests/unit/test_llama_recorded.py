"""Frames of the engine against those a real SGLang scheduler sent for the same messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_server import Request
from tests.llama_driver import Driver, scripted, text_of
from tpc_server.boundary import codec

FRAMES = Path(__file__).parents[1] / "data" / "boundary_frames.jsonl"
VOCAB = 200_000
#: Columns whose values depend on the model or the machine, not on the scheduler's rules.
CACHED, LATENCY = 4, 22
HIDDEN_LENS = 17


def recorded() -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(message, its frames) of every request that had frames of its own alone."""
    lines = [json.loads(line) for line in FRAMES.read_text().splitlines()]
    pairs = []
    for line in lines:
        if line["kind"] == "ingress" and line["decoded"][0] == "TokenizedGenerateReqInput":
            rid = line["decoded"][1]
            frames = [x for x in lines if x["kind"] == "egress" and x["decoded"][0] == [rid]]
            if frames and frames[-1]["decoded"][1][0] and not rid.startswith(("queued", "run")):
                pairs.append((line, frames))
    return pairs


class RawDriver(Driver):
    """Keeps headers and data as they were pushed."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[tuple[list[Any], list[bytes]]] = []

    def push_decode_result_batch(self, header: bytes, data_cols: Any) -> bool:
        self.raw.append((codec.unpack(header), list(data_cols)))
        return super().push_decode_result_batch(header, data_cols)


@pytest.mark.parametrize("pair", recorded(), ids=lambda pair: pair[0]["decoded"][1][:12])
def test_the_same_message_gives_the_same_frames(pair, tmp_path) -> None:
    message, frames = pair
    prompt = np.frombuffer(bytes.fromhex(message["buffers"]["input_ids"][-1]), np.int64).tolist()
    parts = [np.frombuffer(bytes.fromhex(f["cols"][0]), np.int64).tolist() for f in frames]
    finish = frames[-1]["decoded"][1][0]
    # Of several frames the first and the last were kept.
    left_out = finish.get("length", 0) - sum(map(len, parts)) if len(parts) > 1 else 0
    answer = parts[0] + [77] * left_out + (parts[-1] if len(parts) > 1 else [])

    def decode(ids: list[int]) -> str:
        """The text of a stop that was matched is the text of the last recorded ids."""
        if finish["type"] == "stop" and ids[-1] == answer[-1] and len(ids) >= min(3, len(answer)):
            matched = str(finish["matched"])
            return "Del" if matched == "D[a-z]l" else matched
        return text_of(ids)

    engine = scripted(
        tmp_path, {prompt[0]: [None] * (len(prompt) - 1) + answer}, vocab=VOCAB
    )  # fmt: skip
    model: Any = engine._scheduler.model
    model.peak = 60.0  # the one recorded answer that was sampled is then as good as certain
    fill = model.next_id
    model.next_id = lambda known: fill(known) or 0
    engine._scheduler._decode = decode
    driver = RawDriver()
    buffers = [
        (name, np.frombuffer(bytes.fromhex(spec[-1]), spec[1]))
        for name, spec in message["buffers"].items()
    ]
    driver.inbox.append(Request(bytes.fromhex(message["hex"]), buffers))
    driver.run(engine)
    ends = driver.raw if len(driver.raw) == 1 else [driver.raw[0], driver.raw[-1]]
    assert len(ends) == len(frames)
    for (columns, data), frame in zip(ends, frames, strict=True):
        expected, raw = frame["decoded"], [bytes.fromhex(c) for c in frame["cols"]]
        for number in range(max(len(columns), len(expected))):
            if number in (CACHED, LATENCY, HIDDEN_LENS):
                continue
            ours = columns[number] if number < len(columns) else []
            theirs = expected[number] if number < len(expected) else []
            assert ours == theirs, f"column {number}"
        assert len(data) == len(raw)
        assert data[0] == raw[0], "the ids"
        for number, (ours, theirs) in enumerate(zip(data[1:-1], raw[1:-1], strict=True), 1):
            assert len(ours) == len(theirs), f"data {number}"
        # The ids beside the flat logprobs, and the NaN in front of the prompt's.
        for number in (2, 4):
            if len(data) > number:
                assert data[number] == raw[number]
        if len(data) > 3:
            assert data[3][:4] == raw[3][:4]


def test_there_is_something_recorded() -> None:
    assert len(recorded()) >= 14
