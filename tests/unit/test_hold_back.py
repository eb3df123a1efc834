"""Neither engine lets out the start of a stop string while a character is half there."""

from __future__ import annotations

import codecs
from array import array
from types import SimpleNamespace

import pytest

from tpc_server.boundary.messages import (
    GENERATE,
    SAMPLING,
    generate_template,
    sampling_template,
)
from tpc_server.engines.llama.stops import is_held_back
from tpc_server.engines.synthetic_request import SyntheticRequest
from tpc_server.engines.synthetic_script import Script

BYTES = [bytes([value]) for value in range(256)]
STOP = "世界"


def frames_of(emitted: bytes) -> list[bytes]:
    """What the synthetic engine sends of these bytes, one a step, with STOP as a stop string."""
    message = generate_template()
    sampling = sampling_template()
    sampling[SAMPLING["max_new_tokens"]] = 100
    sampling[SAMPLING["stop_strs"]] = [STOP]
    sampling[SAMPLING["stop_str_max_len"]] = len(STOP.encode())
    message[GENERATE["rid"]] = "a#1"
    message[GENERATE["stream"]] = True
    message[GENERATE["sampling_params"]] = sampling
    engine = SimpleNamespace(
        context_len=1000, eos_ids=(), seed=0, low_id=0, high_id=256, text_ids=None,
        byte_table=list(range(256)),
    )  # fmt: skip
    script = Script(frames=[[byte] for byte in emitted])
    request = SyntheticRequest(message, array("q", [1]), None, script, engine, 0.0)
    frames = []
    while request.finish is None:
        if request.step(BYTES):
            frames.append(bytes(request.pending))
            request.pending = []
    return frames


def shown(frames: list[bytes]) -> list[str]:
    """The text a client has after each frame."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    texts, text = [], ""
    for frame in frames:
        text += decoder.decode(frame)
        texts.append(text)
    return texts


def test_the_synthetic_engine_holds_a_character_before_half_of_the_next():
    texts = shown(frames_of(b"a" + STOP.encode()))
    assert texts[-1] == "a" + STOP and set(texts[:-1]) == {"a"}
    other = "a世畍b"  # its third character shares two bytes with the stop's second one
    texts = shown(frames_of(other.encode()))
    assert texts[-1] == other and "a世" not in texts and "a世畍" in texts


@pytest.mark.parametrize(
    ("tail", "held"),
    [("a世", True), ("a世\ufffd", True), ("a", False), ("世x", False), ("世x\ufffd", False)],
)
def test_the_llama_engine_does_too(tail, held):
    request = SimpleNamespace(tail=tail, stops=SimpleNamespace(strings=[STOP]))
    assert is_held_back(request) is held
