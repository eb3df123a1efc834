"""What is recorded of SGLang and our own tables say the same. Owner: pytest."""

from __future__ import annotations

import copy
import json

from tpc_server.boundary import batch_header, messages
from tpc_server.boundary.server_args import MetricsConfig, ModelConfig, ServerArgs
from tpc_server.integrations.sglang import facts
from tpc_server.link.server import SidecarServer
from tpc_server.server import Server


def names(record):
    return sorted(name for name, _, _ in record.FIELDS)


def test_arguments():
    call = facts.recorded()["call"]
    assert call["ServerArgs keywords"] == names(ServerArgs)
    assert call["ModelConfig keywords"] == names(ModelConfig)
    assert call["MetricsConfig keywords"] == names(MetricsConfig)


def test_every_method_that_is_called_is_there():
    called = set(facts.recorded()["call"]["Server methods"]) - {"start_mm_workers"}
    assert len(called) == 6
    for kind in (Server, SidecarServer):
        assert all(callable(getattr(kind, name)) for name in called)


def test_messages():
    recorded = {path.rpartition(":")[2]: rows for path, rows in facts.recorded()["message"].items()}
    ours = {**messages.TAGGED, **messages.STRUCTS}
    assert set(recorded) - set(ours) == {"BatchTokenIDOutput"}
    for name, struct in ours.items():
        (_, tag, array_like), *rows = recorded[name]
        assert (tag, array_like) == (struct.tag, True)
        assert [row[0] for row in rows] == [field.name for field in struct.fields]
        required = [row[0] for row in rows if row[2] == "required"]
        assert required == [field.name for field in struct.fields if field.default is ...]


def test_frames_are_read_as_they_are_packed():
    for name, frame in facts.recorded()["frame"].items():
        columns = [cell for cell in frame if not isinstance(cell, str)]
        data = [bytes.fromhex(cell) for cell in frame if isinstance(cell, str)]
        batch = batch_header.build_batch(copy.deepcopy(columns), data)
        assert (batch.rids, batch.prompt_tokens, batch.cached_tokens) == (["a"], [11], [12])
        assert batch.reasoning_tokens == [13]
        if name == "push_abort":
            assert batch.finish_reasons == [{"type": "abort", "message": "told"}]
            assert batch.row_ended_outside(0) and batch.row_ids(0) == []
        else:
            assert batch.row_ids(0) == [101, 102] and batch.row_decode_latency(0) == 0.25
            assert batch.weight_versions == [[["v", 0, 2]]]
            assert (batch.extras is not None) == ("logprobs" in name)


def test_a_difference_is_named():
    was = facts.recorded()
    assert facts.differences(copy.deepcopy(was), was) == []
    now = copy.deepcopy(was)
    now["call"]["ServerArgs keywords"].append("newest")
    now["argument"]["api_key"] = False
    rows = now["message"]["sglang.srt.managers.io_struct:AbortReq"]
    rows[3], rows[4] = rows[4], rows[3]
    sampling = now["message"]["sglang.srt.sampling.sampling_params:SamplingParams"]
    del sampling[5]
    now["frame"]["push_abort"][2] = [99]
    now["callable"]["sglang.srt.rust_server.server:RustServer.drain"] = None
    lines = facts.differences(now, was)
    assert len(lines) == 6
    assert "call ServerArgs keywords: new newest" in lines
    assert "argument api_key: is gone" in lines
    assert "callable RustServer.drain: is gone" in lines
    assert "message SamplingParams: no temperature" in lines
    assert "frame push_abort: at 2: [11] is now [99]" in lines
    (swapped,) = [line for line in lines if "AbortReq" in line]
    assert swapped.startswith("message AbortReq: at 3: ") and "finished_reason" in swapped


def test_it_is_written_as_the_program_writes_it():
    text = facts.RECORDED.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
