"""The GGUF metadata reader: every type, both byte orders, damaged and cut files."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from tests.gguf_files import gguf_bytes
from tpc_server.text.gguf_meta import GgufError, read_metadata

PAIRS: dict[str, tuple[Any, ...]] = {
    "u8": (0, 200),
    "i8": (1, -3),
    "u16": (2, 60000),
    "i16": (3, -300),
    "u32": (4, 1 << 31),
    "i32": (5, -7),
    "f32": (6, 0.5),
    "yes": (7, True),
    "name": (8, "héllo \u2581"),
    "u64": (10, 1 << 40),
    "i64": (11, -(1 << 40)),
    "f64": (12, math.pi),
    "tokens": (9, 8, ["a", "", "世", "x" * 300]),
    "scores": (9, 6, [0.0, -1.5]),
    "types": (9, 5, [1, -1, 6]),
    "flags": (9, 7, [True, False]),
    "nested": (9, 9, [(5, [1, 2]), (8, ["a"])]),
    "none": (9, 8, []),
}
VALUES = {key: value[-1] for key, value in PAIRS.items()} | {"nested": [[1, 2], ["a"]]}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_every_type(tmp_path, order, version):
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(PAIRS, order, version))
    assert read_metadata(path) == VALUES


def test_only_the_keys_asked_for(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(PAIRS))
    assert read_metadata(path, {"name", "none", "absent"}) == {"name": VALUES["name"], "none": []}


def test_tensor_data_behind_the_metadata_is_not_read(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes({"a": (4, 1)}) + b"\xff" * 1000)
    assert read_metadata(path) == {"a": 1}


def test_a_file_cut_anywhere_is_a_clear_error(tmp_path):
    path = tmp_path / "cut.gguf"
    whole = gguf_bytes(PAIRS)
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(GgufError) as error:
            read_metadata(path)
        assert str(path) in str(error.value)
    path.write_bytes(b"")
    with pytest.raises(GgufError, match="empty"):
        read_metadata(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04" + b"x" * 60, "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "damaged"),
        (gguf_bytes({"a": (4, 1)}).replace(struct.pack("<I", 4), struct.pack("<I", 77)), "type 77"),
        (gguf_bytes({"a": (8, "xyz")}).replace(b"xyz", b"\xff\xfe\xfd"), "not UTF-8"),
        (gguf_bytes({"a": (9, 8, ["xyz"])}).replace(b"xyz", b"\xff\xfe\xfd"), "not UTF-8"),
    ],
)
def test_damage_is_named(tmp_path, data, reason):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError, match=reason):
        read_metadata(path)


def test_a_huge_count_does_not_eat_the_memory(tmp_path):
    for kind in (8, 5, 9):
        data = gguf_bytes({"a": (9, kind, [])})
        data = data[:-8] + struct.pack("<Q", (1 << 62) + 5)
        path = tmp_path / f"{kind}.gguf"
        path.write_bytes(data)
        with pytest.raises(GgufError, match="cut short"):
            read_metadata(path)


def test_arrays_nested_without_end_are_damage(tmp_path):
    body = struct.pack("<I", 9) + b"".join(struct.pack("<IQ", 9, 1) for _ in range(50))
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + body
    path = tmp_path / "deep.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError):
        read_metadata(path)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "nope.gguf")
