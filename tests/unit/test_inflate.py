"""Compressed bodies: all formats whole and in slices, bombs, cut and damaged ones."""

from __future__ import annotations

import gzip
import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_server import inflate
from tpc_server.body import Pieces, whole
from tpc_server.contract.errors import BadRequest
from tpc_server.inflate import Inflater, coding_of

ZSTD = inflate.zstd_module()
CODINGS = ["gzip", "deflate", "raw", *(["zstd"] if ZSTD else [])]


def packed(coding, data):
    if coding == "gzip":
        return gzip.compress(data)
    if coding == "deflate":
        return zlib.compress(data)
    if coding == "raw":
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(data) + packer.flush()
    return ZSTD.compress(data)


def unpacked(coding, data, limit=1 << 20, budget=inflate.SLICE_BYTES):
    inflater = Inflater("deflate" if coding == "raw" else coding, data, limit)
    steps = 1
    while not inflater.step(budget):
        steps += 1
        assert steps < 100_000
    return whole(inflater.body()), steps


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_in_pieces(coding):
    noise = os.urandom(400_000)
    data = packed(coding, noise)
    for size in (1, 1000, 65536):
        pieces = [data[at : at + size] for at in range(0, 3000, size)]
        pieces.append(data[sum(map(len, pieces)) :])
        assert unpacked(coding, Pieces(pieces, len(data)))[0] == noise
    inflater = Inflater("deflate" if coding == "raw" else coding, data, 1 << 20)
    while not inflater.step():
        pass
    assert type(inflater.body()) is Pieces  # joining is for whoever decodes it


@pytest.mark.parametrize("coding", CODINGS)
@given(data=st.binary(max_size=300), times=st.integers(1, 900), budget=st.integers(1, 5000))
def test_what_comes_out(coding, data, times, budget):
    whole = data * times
    assert unpacked(coding, packed(coding, whole), budget=budget)[0] == whole


@pytest.mark.parametrize("coding", CODINGS)
def test_a_large_body_takes_many_slices(coding):
    noise = os.urandom(300_000)
    body, steps = unpacked(coding, packed(coding, noise * 20), 6_000_000)
    assert body == noise * 20 and 20 <= steps <= 30


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_is_noticed_at_the_limit(coding):
    bomb = packed(coding, bytes(50_000_000))
    assert len(bomb) < 100_000
    inflater = Inflater("deflate" if coding == "raw" else coding, bomb, 1_000_000)
    with pytest.raises(BadRequest, match="larger than 1000000 bytes once decompressed") as caught:
        for _ in range(5):
            inflater.step()
    assert caught.value.status == 413


@pytest.mark.parametrize("coding", CODINGS)
def test_cut_and_damaged_bodies(coding):
    good = packed(coding, os.urandom(1000))
    for bad in (good[:-1], good[: len(good) // 2], good[:1], b"", b"nonsense" * 9, good + b"x"):
        with pytest.raises(BadRequest, match="is not valid") as caught:
            unpacked(coding, bad)
        assert caught.value.status == 400


@pytest.mark.parametrize("coding", ["gzip", *(["zstd"] if ZSTD else [])])
def test_joined_streams(coding):
    one = packed(coding, b"ab")
    assert unpacked(coding, one * 1000)[0] == b"ab" * 1000
    with pytest.raises(BadRequest):  # work without end for nothing
        unpacked(coding, packed(coding, b"") * 2000)


def test_what_the_headers_ask_for():
    assert coding_of(b"gzip", None) == "gzip" and coding_of(b" X-GZip ", None) == "gzip"
    assert coding_of(b"identity", None) == "" and coding_of(b"", b"gzip") == "gzip"
    assert coding_of(b"deflate", b"deflate") == "deflate"
    with pytest.raises(BadRequest, match="different codings"):
        coding_of(b"gzip", b"deflate")
    for unknown in (b"br", b"gzip, gzip", b"compress"):
        with pytest.raises(BadRequest, match=r"cannot decompress .*: send gzip, deflate") as caught:
            coding_of(unknown, None)
        assert caught.value.status == 415


def test_zstd_where_nothing_can_read_it(monkeypatch):
    monkeypatch.setattr(inflate, "zstd_module", lambda: None)
    with pytest.raises(BadRequest, match=r"backports\.zstd is not installed") as caught:
        coding_of(None, b"zstd")
    assert caught.value.status == 415 and inflate.supported() == "gzip, deflate"


if ZSTD is not None:

    def test_a_window_beyond_the_largest_body_is_refused():
        options = {
            ZSTD.CompressionParameter.window_log: 30,
            ZSTD.CompressionParameter.content_size_flag: 0,
        }
        packer = ZSTD.ZstdCompressor(options=options)
        data = packer.compress(b"a" * 1000, mode=packer.FLUSH_BLOCK) + packer.flush()
        with pytest.raises(BadRequest, match="is not valid zstd"):
            unpacked("zstd", data)
