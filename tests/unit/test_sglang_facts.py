"""What is recorded of SGLang and our own tables say the same. Owner: pytest."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import re
from pathlib import Path

import pytest

import tpc_server
from tpc_server import info, loads, registry
from tpc_server.boundary import batch_header, messages
from tpc_server.boundary.server_args import (
    DefaultSamplingParams,
    DisaggregationMode,
    MetricsConfig,
    ModelConfig,
    ServerArgs,
)
from tpc_server.contract.registry import DP_RANK_TABLE, ROUTE_TABLE
from tpc_server.integrations.sglang import facts, layouts, reading, settings
from tpc_server.link.server import SidecarServer
from tpc_server.render import native
from tpc_server.server import Server

# What a description of SGLang's messages that was made apart from us says of those we rely on.
SCHEMA = Path(__file__).parents[1] / "data" / "sglang" / "io_schema.json"


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


def test_messages_and_replies_are_as_described_elsewhere():
    described = json.loads(SCHEMA.read_text("utf-8"))
    recorded = facts.recorded()
    ours = {path.rpartition(":")[2]: rows for path, rows in recorded["message"].items()}
    ours |= recorded["reply"]
    both = set(ours) & set(described)
    # Records inside the messages are not described there, nor what it does not name.
    assert both == set(described) and {"SamplingParams", "SessionParams"} <= set(ours) - both
    for name in both:
        head, *rows = ours[name]
        assert [head, *([row[0], row[2]] for row in rows)] == described[name], name


def test_replies_have_what_is_read_of_them():
    read = {
        "FlushCacheReqOutput": {"success", "message"},
        "GetInternalStateReqOutput": {"internal_state"},
        "CheckWeightsReqOutput": {"success", "message", "payload"},
        "ChecksumInfo": {"per_gpu_checksum"},
        "ClearHiCacheReqOutput": {"success"},
        "AttachHiCacheStorageReqOutput": {"success", "message"},
        "DetachHiCacheStorageReqOutput": {"success", "message"},
        "OpenSessionReqOutput": {"success", "session_id"},
    }
    recorded = facts.recorded()["reply"]
    assert set(recorded) == set(layouts.REPLIES) >= set(read)
    for name, wanted in read.items():
        assert wanted <= {row[0] for row in recorded[name][1:]}
    # A map by name goes to the id of the request.
    assert facts.recorded()["frame"]["push_control_output"] == [
        "a", {"rid": None, "http_worker_ipc": None, "success": True, "message": "told"},
    ]  # fmt: skip


def test_ends_and_states_are_read_by_their_names():
    recorded = facts.recorded()
    assert {end["type"] for end in recorded["finish"].values()} == {"stop", "length", "abort"}
    for end in recorded["finish"].values():
        assert native.renders(end) and json.loads(native.finish_json(end)) == end
        others = set(end) - {"type", "message", "err_type"}  # these are only passed on
        assert others <= {"length", "matched", "status_code"}
    read = {name for _, names in loads._STATE for name in names}
    assert set(recorded["state"]) - {"memory_usage", "rust_server_startup_time"} <= read
    assert info.startup_times({"rust_server_startup_time": {"scheduler_e2e": 1.0}}) == {
        "scheduler_e2e": 1.0,
    }  # fmt: skip


def test_the_file_of_a_schedulers_load():
    recorded = facts.recorded()["snapshot"]
    assert recorded.pop("magic").encode() == loads._MAGIC
    assert recorded.pop("version") == loads._VERSION
    assert recorded.pop("head of the file") == loads._HEADER.format
    assert recorded.pop("head of a slot") == loads._LENGTH.format
    (_, _, array_like), *rows = recorded.pop("LoadSnapshot")
    nested = {name: fields for name, _, _, fields in loads._NESTED}
    assert not array_like and [row[0] for row in rows] == [*loads._CORE, *nested]
    defaults = {name: str(value) for name, value in loads._CORE.items()}
    assert defaults == {row[0]: row[2] for row in rows if row[0] in loads._CORE}
    kinds = {row[0]: row[1].removesuffix("|none") for row in rows}
    for name, fields in nested.items():
        (_, _, array_like), *inner = recorded.pop(kinds[name])
        assert array_like and [row[0] for row in inner] == list(fields)
    assert recorded == {}


def test_rows_of_the_registry():
    recorded = facts.recorded()["registry"]
    assert recorded["row of a rank"] == sorted(row.name for row in ROUTE_TABLE)
    assert recorded["room"] == sorted(row.name for row in DP_RANK_TABLE)
    assert recorded["what is told of a rank"] == ["rank_ip", "rank_port"]
    told = {*registry._FIRST_COUNTS, *registry._ALIKE}
    assert told <= set(recorded["what is told of the server"])


def test_names_that_are_asked_of_our_module():
    recorded = facts.recorded()["module"]
    for path in recorded["names"]:
        found = tpc_server
        for name in path.split("."):
            found = getattr(found, name)
    assert recorded["DefaultSamplingParams keywords"] == names(DefaultSamplingParams)
    assert DisaggregationMode.Decode == "decode"


def test_frames_are_read_as_they_are_packed():
    frames = facts.recorded()["frame"]
    del frames["push_control_output"]  # is no batch
    for name, frame in frames.items():
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
    now["snapshot"]["version"] = 3
    del now["reply"]["FlushCacheReqOutput"][3]
    now["registry"]["row of a rank"].append("zone")
    now["variable"]["SGLANG_RUST_SERVER"] = None
    now["variable"]["SGLANG_TIMEOUT_KEEP_ALIVE"] = ["EnvInt", 6]
    now["finish"]["FINISH_LENGTH"]["type"] = "size"
    now["state"]["memory_usage"] = False
    now["model"]["is_generation"] = False
    now["module"]["names"].remove("DisaggregationMode.Decode")
    lines = facts.differences(now, was)
    assert len(lines) == 15
    assert "variable SGLANG_TIMEOUT_KEEP_ALIVE: at 1: 5 is now 6" in lines
    (finish,) = [line for line in lines if line.startswith("finish FINISH_LENGTH: ")]
    assert '"type": "size"' in finish
    assert "state memory_usage: is gone" in lines
    assert "snapshot version: 2 is now 3" in lines
    assert "reply FlushCacheReqOutput: no success" in lines
    assert "registry row of a rank: new zone" in lines
    assert "variable SGLANG_RUST_SERVER: is gone" in lines
    assert "model is_generation: is gone" in lines
    assert "module names: no DisaggregationMode.Decode" in lines
    assert "call ServerArgs keywords: new newest" in lines
    assert "argument api_key: is gone" in lines
    assert "callable RustServer.drain: is gone" in lines
    assert "message SamplingParams: no temperature" in lines
    assert "frame push_abort: at 2: [11] is now [99]" in lines
    (swapped,) = [line for line in lines if "AbortReq" in line]
    assert swapped.startswith("message AbortReq: at 3: ") and "finished_reason" in swapped


def moved(fact):
    """What a fact could have become: gone, one less, one more, two in another order."""
    yield None if fact is not None else "something"
    if isinstance(fact, bool):
        yield not fact
    elif isinstance(fact, int | float):
        yield fact + 1
    elif isinstance(fact, str):
        yield fact + "x"
    elif isinstance(fact, dict):
        for name in fact:
            yield {k: v for k, v in fact.items() if k != name}
        yield {**fact, "added": True}
    elif isinstance(fact, list):
        for k in range(len(fact)):
            yield fact[:k] + fact[k + 1 :]
            for changed in moved(fact[k]):
                if changed is not None:
                    yield [*fact[:k], changed, *fact[k + 1 :]]
            if k and fact[k] != fact[k - 1]:
                yield [*fact[: k - 1], fact[k], fact[k - 1], *fact[k + 1 :]]
        yield [*fact, "added"]


@pytest.mark.parametrize("section", facts.recorded())
def test_whatever_moves_is_named(section):
    was = facts.recorded()
    tried = 0
    for name, fact in was[section].items():
        begins = f"{section} {name.rpartition(':')[2]}: "
        for changed in moved(fact):
            (line,) = facts.differences({**was, section: {**was[section], name: changed}}, was)
            assert line.startswith(begins) and len(line) > len(begins) and "\n" not in line
            tried += 1
    assert tried > len(was[section])


def test_every_flag_that_is_read_is_a_fact():
    """`getattr` with a default would read a flag that is gone as one that is not set."""
    text = inspect.getsource(settings)
    flags = {flag for flag, _ in settings._FEATURES} | {"api_key", "admin_api_key"}
    flags |= set(re.findall(r'getattr\(args, "(\w+)"', text))
    assert {"fastapi_root_path", "grammar_backend", "enable_cache_report"} <= flags
    assert flags <= set(facts.FLAGS)


def test_it_is_written_as_the_program_writes_it():
    text = facts.RECORDED.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"


TEXT = """
class A:
    def other(self):
        payload = {"no": 1}

    async def wanted(
        self, x=(
            1,
        ),
    ):
        # a comment
        payload = {"b": 1, x: 2}

        payload["a"] = ext.One(ext.Two.three)
        listed = ["x", x]

    payload = {"neither": 1}

payload = {"nor": 1}
"""


def test_a_function_is_read_without_its_module():
    found = reading.block(TEXT, "wanted")
    assert reading.strings_of(found, "payload") == ["a", "b"]
    assert reading.strings_of(found, "listed") == ["x"]
    assert reading.attributes_of(found, "ext") == ["One", "Two", "Two.three"]
    assert reading.block(TEXT, "want") is None and reading.strings_of(None, "x") is None
    asked = ast.parse("a.get('x'); a.get(y); b.get('z'); a.get('w', 1)")
    assert reading.entries_asked(asked, "a") == ["w", "x"]
    assert reading.entries_asked(None, "a") is None
    assert reading.module_text("no.such.module") == ""


@pytest.mark.parametrize(
    "section",
    ["reply", "snapshot", "registry", "module", "model", "variable", "finish", "state"],
)
def test_what_is_not_there_is_told(section):
    """Here there is no SGLang at all."""
    lines = facts.differences(layouts.gather(), {section: facts.recorded()[section]})
    assert len(lines) == len(facts.recorded()[section])
    assert all(line.endswith(": is gone") for line in lines)
