"""Messages to a scheduler: recorded bytes, defaults, and the texts of everything wrong."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tpc_server.boundary import codec, schema
from tpc_server.boundary.messages import (
    GENERATE,
    GENERATE_N_SENT,
    SAMPLING,
    STRUCTS,
    TAGGED,
    MsgpackDecodeError,
    decode_ingress,
    generate_template,
    msgpack_decode_explained,
    pack_abort,
    pack_control,
)
from tpc_server.boundary.schema import Field, Struct, compile_type

PACK = codec.make_packer()
DATA = Path(__file__).parents[1] / "data"
HAS_MSGSPEC = importlib.util.find_spec("msgspec") is not None


def recorded(kind: str) -> list[dict[str, Any]]:
    lines = (DATA / "boundary_frames.jsonl").read_text().splitlines()
    return [frame for frame in map(json.loads, lines) if frame["kind"] == kind]


def test_recorded_messages_decode_to_what_was_recorded_and_pack_to_the_same_bytes() -> None:
    tags = set()
    for frame in recorded("ingress"):
        header = bytes.fromhex(frame["hex"])
        values = decode_ingress(header)
        sent = len(frame["decoded"])
        assert values[:sent] == frame["decoded"]
        assert values[sent:] == [field.default for field in TAGGED[values[0]].fields[sent - 1 :]]
        assert PACK(values[:sent]) == header
        tags.add(values[0])
    assert tags >= {"TokenizedGenerateReqInput", "AbortReq", "FlushCacheReqInput"}


def test_templates_fill_to_the_recorded_bytes() -> None:
    for frame in recorded("ingress"):
        want = frame["decoded"]
        header = bytes.fromhex(frame["hex"])
        if want[0] == "TokenizedGenerateReqInput":
            message = generate_template()
            assert len(message) == len(want) == GENERATE_N_SENT + 1
            message[GENERATE["rid"]] = want[GENERATE["rid"]]
            for name in ("input_text", "return_logprob", "logprob_start_len", "top_logprobs_num",
                         "stream", "return_hidden_states"):  # fmt: skip
                message[GENERATE[name]] = want[GENERATE[name]]
            sampling = message[GENERATE["sampling_params"]]
            for name in ("max_new_tokens", "top_k", "stop_token_ids", "ignore_eos",
                         "no_stop_trim", "stop_strs", "stop_regex_strs", "stop_str_max_len",
                         "stop_regex_max_len"):  # fmt: skip
                sampling[SAMPLING[name]] = want[GENERATE["sampling_params"]][SAMPLING[name]]
            assert PACK(message) == header
        elif want[0] == "AbortReq":
            assert pack_abort(PACK, want[1]) == header
        else:
            names = [field.name for field in TAGGED[want[0]].fields[2:]]
            fields = dict(zip(names, want[3:], strict=False))
            assert pack_control(PACK, want[0], want[1], **fields) == header


def test_templates_are_fresh() -> None:
    one, two = generate_template(), generate_template()
    sampling = GENERATE["sampling_params"]
    one[sampling][SAMPLING["stop_strs"]].append("x")
    assert two[sampling][SAMPLING["stop_strs"]] == []


def test_control_messages_of_every_type_pack_and_decode() -> None:
    for tag, struct in TAGGED.items():
        if tag == "TokenizedGenerateReqInput":
            continue
        required = [field for field in struct.fields[2:] if field.default is ...]
        needed: dict[str, Any] = {f.name: {"str": "x", "int": 1}[f.type] for f in required}
        values = decode_ingress(pack_control(PACK, tag, "r", **needed))
        assert values[:3] == [tag, "r", None] and len(values) == len(struct.fields) + 1
    with pytest.raises(TypeError, match="needs hicache_storage_backend"):
        pack_control(PACK, "AttachHiCacheStorageReqInput", "r")
    with pytest.raises(TypeError, match="no field nonsense"):
        pack_control(PACK, "FlushCacheReqInput", "r", nonsense=1)
    with pytest.raises(TypeError, match="not of its type"):
        pack_control(PACK, "FlushCacheReqInput", "r", timeout_s="soon")
    with pytest.raises(KeyError):
        pack_control(PACK, "Nonsense", "r")


def test_short_messages_get_their_defaults_and_long_ones_are_cut() -> None:
    message = generate_template()[: GENERATE["stream"] + 1]
    message[GENERATE["sampling_params"]] = [7]
    values = decode_ingress(PACK(message))
    assert len(values) == len(TAGGED["TokenizedGenerateReqInput"].fields) + 1
    assert values[GENERATE["sampling_logprobs_mode"]] == "selected"
    sampling = values[GENERATE["sampling_params"]]
    assert sampling[0] == 7 and len(sampling) == len(SAMPLING)
    assert sampling[SAMPLING["temperature"]] == 1.0
    assert decode_ingress(PACK(["GetInternalStateReq", "r", None, 1, 2])) == [
        "GetInternalStateReq", "r", None,
    ]  # fmt: skip


def explained(data: bytes) -> tuple[str | None, str] | None:
    try:
        msgpack_decode_explained(data)
    except MsgpackDecodeError as error:
        return error.rid, error.reason
    return None


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The written examples use a toy message: rid, http, ids, inner, tagged "T"."""
    fields = (
        Field("rid", "str|null", None),
        Field("http", "str|null", None),
        Field("ids", "[int]|null", None),
        Field("inner", "@Inner|null", None),
    )
    inner = (Field("a", "int", 0),)
    for table, name, entries in ((TAGGED, "T", fields), (STRUCTS, "Inner", inner)):
        nodes = tuple(compile_type(field.type) for field in entries)
        tag = name if table is TAGGED else None
        monkeypatch.setitem(table, name, Struct(name, tag, entries, nodes, 0))


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("value", "rid", "reason"),
    [
        (["T", "r1", None, [[0]]], "r1", "Expected `int`, got `array` - at `$.ids[0]`"),
        (["T", "r1", None, ["a"]], "r1", "Expected `int`, got `str` - at `$.ids[0]`"),
        (["T", "r1", 5], "r1", "Expected `str | null`, got `int` - at `$.http`"),
        (["T", 7], "7", "Expected `str | null`, got `int` - at `$.rid`"),
        (["T", None, None, ["a"]], None, "Expected `int`, got `str` - at `$.ids[0]`"),
        (["T", "r1", None, None, ["x"]], "r1", "Expected `int`, got `str` - at `$.inner[0]`"),
        (["Q", "r1"], "r1", "Invalid value 'Q' - at `$[0]`"),
        ({"T": 1}, None, "Expected `array`, got `object`"),
        ([], None, "Expected `array` of at least length 1, got 0"),
    ],
)
def test_written_examples(value: Any, rid: str | None, reason: str) -> None:
    assert explained(PACK(value)) == (rid, reason)


@pytest.mark.usefixtures("toy")
def test_truncated_message() -> None:
    data = PACK(["T", "r1", None, [1, 2]])
    for cut in range(len(data)):
        assert explained(data[:cut]) == (None, "Input data was truncated")
    assert explained(data) is None


def test_recorded_msgspec_texts() -> None:
    rows = json.loads((DATA / "msgspec_texts.json").read_text())
    assert len(rows) > 200
    accepted = 0
    for hexed, rid, reason in rows:
        want = None if reason is None else (rid, reason)
        accepted += want is None
        assert explained(bytes.fromhex(hexed)) == want, hexed
    assert 0 < accepted < len(rows)


def test_the_fast_check_and_the_reader_agree() -> None:
    rows = json.loads((DATA / "msgspec_texts.json").read_text())
    compared = 0
    for hexed, _, _ in rows:
        data = bytes.fromhex(hexed)
        try:
            values = codec.unpack(data)
        except Exception:
            continue
        if isinstance(values, list) and values and isinstance(values[0], str):
            struct = TAGGED.get(values[0])
            if struct is not None:
                fast = schema.fields_conform(values, struct, STRUCTS, start=1)
                assert fast == (schema.explain(data, TAGGED, STRUCTS) is None), hexed
                compared += 1
    assert compared > 100


def test_unknown_type_text_is_an_error() -> None:
    for text in ("", "integer", "[int", "int|"):
        with pytest.raises(ValueError, match="unknown type"):
            compile_type(text)


if HAS_MSGSPEC:  # not on every build; the recorded texts stand for it there

    def test_live_msgspec_says_the_same() -> None:
        from tests.msgspec_reference import reference, samples, verdict

        decoder = reference()
        for data in samples(seed=11, n_flips=100):
            assert explained(data) == verdict(decoder, data), data.hex()
