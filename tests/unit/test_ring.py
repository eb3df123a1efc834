"""Byte rings, both halves in one thread."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from tpc_server.ring import Producer, RingCorruptError, ring_bytes
from tpc_server.ring_format import (
    MAX_KEY_BYTES,
    RING_HEADER_BYTES,
)
from tpc_server.ring_reader import Consumer
from tpc_server.shm import Region


class Ring:
    def __init__(self, capacity: int = 256, cap_records: int = 1000, offset: int = 0) -> None:
        self.region = Region.create(offset + ring_bytes(capacity))
        self.offset = offset
        self.producer = Producer(self.region, offset, capacity, cap_records)
        self.consumer = Consumer(self.region, offset, capacity)

    def drain(self, most: int = 1000) -> list[tuple[int, bytes, bytes]]:
        return self.consumer.drain(most)


def test_a_record_comes_out_as_it_went_in():
    ring = Ring()
    assert ring.producer.try_push(7, b"key", [b"pay", b"", bytearray(b"load")])
    assert ring.drain() == [(7, b"key", b"payload")]
    assert ring.drain() == []


@pytest.mark.parametrize("kind", [0, 1, 255])
@pytest.mark.parametrize("key", [b"", b"k", b"12345678"])
@pytest.mark.parametrize("parts", [(), (b"",), (b"x",), (b"1234567", b"8"), (b"a" * 40,)])
def test_all_shapes(kind, key, parts):
    ring = Ring()
    assert ring.producer.try_push(kind, key, parts)
    assert ring.drain() == [(kind, key, b"".join(parts))]


def test_parts_are_counted_in_bytes_whatever_their_items():
    ring = Ring(1024)
    words = array.array("q", [1, -2, 3])
    assert ring.producer.try_push(1, b"", (words,))
    assert ring.producer.try_push(2, b"", (memoryview(words), b"!"))
    assert ring.drain() == [(1, b"", words.tobytes()), (2, b"", words.tobytes() + b"!")]


def test_parts_above_the_join_bound_are_copied_one_by_one():
    ring = Ring(1 << 18)
    parts = (b"a" * 10_000, memoryview(b"b" * 10_001), array.array("I", [7] * 100), b"", b"end")
    assert ring.producer.try_push(1, b"k", parts)
    assert ring.drain() == [(1, b"k", b"".join(parts))]


def test_numpy_arrays_of_any_type():
    ring = Ring(4096)
    arrays: list[Any] = [
        np.arange(10, dtype=np.int64),
        np.arange(12, dtype=np.float16).reshape(3, 4),
        np.zeros(0, dtype=np.int32),
        np.zeros(3, dtype=[("a", "<i4"), ("b", "<f8")]),
        np.arange(4, dtype=">i8"),
    ]
    for value in arrays:
        assert ring.producer.try_push(1, b"", (value,))
        assert ring.drain() == [(1, b"", value.tobytes())]
    assert ring.producer.try_push(2, b"", arrays)
    assert ring.drain() == [(2, b"", b"".join(value.tobytes() for value in arrays))]


@pytest.mark.parametrize("items", [4, 100], ids=["whole", "fragments"])
def test_a_part_that_is_not_contiguous_is_refused_and_nothing_is_written(items):
    ring = Ring()
    strided = np.arange(2 * items, dtype=np.int64)[::2]
    ring.producer.try_push(1, b"", (b"before",))
    with pytest.raises((BufferError, ValueError, TypeError)):
        ring.producer.try_push(2, b"", (strided,))
    assert not ring.producer.parked
    assert ring.producer.try_push(3, b"", (b"after",))
    assert ring.drain() == [(1, b"", b"before"), (3, b"", b"after")]


@pytest.mark.parametrize(("kind", "key"), [(256, b""), (-1, b""), (1, b"k" * (MAX_KEY_BYTES + 1))])
def test_what_does_not_fit_a_header_is_refused(kind, key):
    ring = Ring(1 << 20)
    with pytest.raises(ValueError, match="does not fit"):
        ring.producer.try_push(kind, key, ())
    assert ring.drain() == []


def test_a_longest_key_passes():
    ring = Ring(1 << 20)
    key = b"k" * MAX_KEY_BYTES
    assert ring.producer.try_push(1, key, (b"x",))
    assert ring.drain() == [(1, key, b"x")]


def test_a_key_over_a_quarter_of_the_ring_is_refused_in_a_large_record():
    ring = Ring(256)
    with pytest.raises(ValueError, match="key of 100 bytes"):
        ring.producer.try_push(1, b"k" * 100, (b"x" * 100,))
    assert ring.producer.try_push(1, b"k" * 64, (b"x" * 100,))
    assert ring.drain() != ring.drain()


def test_bytes_bound():
    ring = Ring(256)
    pushed = 0
    while ring.producer.try_push(1, b"", (bytes([pushed]) * 24,)):
        pushed += 1
    assert pushed == 256 // 32
    assert ring.producer.size_guess() == ring.consumer.size_guess() == 256
    assert ring.drain(1) == [(1, b"", b"\0" * 24)]
    assert ring.producer.size_guess() == 224
    assert ring.producer.try_push(1, b"", (b"x" * 24,))
    assert not ring.producer.try_push(1, b"", ())
    assert len(ring.drain()) == 8


def test_record_bound():
    ring = Ring(1 << 16, cap_records=3)
    for turn in range(4):
        for number in range(3):
            assert ring.producer.try_push(number, b"", (bytes([turn]),))
        assert not ring.producer.try_push(9, b"", ())
        assert ring.drain(1) == [(0, b"", bytes([turn]))]
        assert ring.producer.try_push(3, b"", ())
        assert not ring.producer.try_push(9, b"", ())
        assert [kind for kind, _, _ in ring.drain()] == [1, 2, 3]


def test_a_large_record_counts_once():
    ring = Ring(256, cap_records=2)
    assert ring.producer.try_push(1, b"", (b"x" * 150,))
    assert ring.producer.try_push(2, b"", (b"y",))
    assert not ring.producer.try_push(3, b"", ())
    assert [kind for kind, _, _ in ring.drain()] == [1, 2]
    assert ring.producer.try_push(3, b"", ())


def test_drain_stops_at_its_bound():
    ring = Ring()
    for number in range(5):
        ring.producer.try_push(number, b"", ())
    assert [kind for kind, _, _ in ring.drain(2)] == [0, 1]
    assert ring.drain(0) == []
    assert [kind for kind, _, _ in ring.drain(2)] == [2, 3]
    assert [kind for kind, _, _ in ring.drain(2)] == [4]


def test_a_pad_takes_no_turn():
    """Ring of 64: 48 bytes are used and freed, so the next 24 start over with a pad of 16."""
    ring = Ring(64)
    for _ in range(2):
        assert ring.producer.try_push(1, b"", (b"x" * 16,))
    assert len(ring.drain()) == 2
    assert ring.producer.try_push(2, b"", (b"y" * 16,))
    assert ring.drain(1) == [(2, b"", b"y" * 16)]


def test_half_the_ring_always_fits_an_empty_one():
    """Whatever the position: no record can be refused for ever."""
    for start in range(0, 256, 8):
        ring = Ring(256)
        for _ in range(start // 8):
            assert ring.producer.try_push(0, b"", ())
            ring.drain()
        assert ring.producer.try_push(1, b"k", (b"z" * 119,))
        assert not ring.producer.parked
        assert ring.drain() == [(1, b"k", b"z" * 119)]


@pytest.mark.parametrize("size", [121, 128, 256, 1000, 100_000])
@pytest.mark.parametrize("start", [0, 1, 15, 29, 31])
def test_a_large_record_passes_in_fragments(size, start):
    ring = Ring(256)
    for _ in range(start):
        ring.producer.try_push(0, b"", ())
        ring.drain()
    payload = bytes(at % 251 for at in range(size))
    parts = (payload[:7], memoryview(payload)[7 : size // 2], bytearray(payload[size // 2 :]))
    assert ring.producer.try_push(3, b"the key", parts)
    got: list[Any] = []
    turns = 0
    while ring.producer.parked:
        assert not ring.producer.try_push(4, b"", ())
        got += ring.drain()
        ring.producer.pump()
        turns += 1
        assert turns <= size
    got += ring.drain()
    assert got == [(3, b"the key", payload)]
    assert ring.producer.try_push(5, b"", (b"next",))
    assert ring.drain() == [(5, b"", b"next")]


def test_fragments_are_worth_their_header():
    """Space that comes back in crumbs is not taken in crumbs."""
    ring = Ring(1024)
    for _ in range(24):
        assert ring.producer.try_push(0, b"", (b"x" * 24,))
    assert ring.producer.try_push(1, b"", (b"y" * 1000,))
    assert ring.producer.size_guess() == 1024
    pieces = []
    for _ in range(24):
        assert ring.drain(1) == [(0, b"", b"x" * 24)]
        before = ring.producer.size_guess()
        ring.producer.pump()
        pieces.append(ring.producer.size_guess() - before)
    assert 4 <= len([size for size in pieces if size]) <= 6
    assert min(size for size in pieces if size) >= 128
    got = ring.drain()
    while not ring.producer.pump():
        got += ring.drain()
    assert got + ring.drain() == [(1, b"", b"y" * 1000)]


def test_a_large_record_waits_whole_while_there_is_no_room_for_its_first_piece():
    ring = Ring(256)
    while ring.producer.try_push(0, b"", (b"x" * 24,)):
        pass
    assert not ring.producer.try_push(1, b"", (b"y" * 500,))
    assert not ring.producer.parked
    assert ring.producer.pump()
    assert {kind for kind, _, _ in ring.drain()} == {0}


def test_fragments_of_bytes_need_no_copy_of_the_whole():
    """The parked rest refers to the caller's buffer; it is released when all is written."""
    ring = Ring(256)
    source = bytearray(b"z" * 1000)
    assert ring.producer.try_push(1, b"", (source,))
    with pytest.raises(BufferError):
        source.append(1)  # still referred to
    while not ring.producer.pump():
        ring.drain()
    ring.drain()
    source.append(1)


def test_pure_poll_changes_nothing():
    ring = Ring()
    assert not ring.consumer.pure_poll()
    ring.producer.try_push(1, b"", ())
    for _ in range(3):
        assert ring.consumer.pure_poll()
    assert len(ring.drain()) == 1
    assert not ring.consumer.pure_poll()


def test_the_producer_closes():
    ring = Ring()
    ring.producer.try_push(1, b"", (b"last",))
    assert ring.producer.close()
    assert not ring.consumer.closed
    assert ring.drain() == [(1, b"", b"last")]
    assert ring.consumer.closed
    assert ring.drain() == []
    assert not ring.producer.try_push(2, b"", ())
    assert not ring.producer.try_push(2, b"", (b"x" * 1000,))
    assert ring.producer.close()
    assert ring.drain() == []


def test_a_close_is_news_until_it_was_drained():
    ring = Ring()
    ring.producer.close()
    assert ring.consumer.pure_poll()
    assert ring.drain() == []
    assert ring.consumer.closed
    assert not ring.consumer.pure_poll()


def test_a_close_follows_the_last_fragment():
    ring = Ring(256)
    assert ring.producer.try_push(1, b"", (b"x" * 1000,))
    assert not ring.producer.close()
    got = ring.drain()
    while not ring.producer.pump():
        assert not ring.consumer.closed
        got += ring.drain()
    got += ring.drain()
    assert got == [(1, b"", b"x" * 1000)]
    assert ring.consumer.closed


def test_the_consumer_closes():
    ring = Ring()
    assert not ring.producer.consumer_closed()
    ring.producer.try_push(1, b"", (b"unread",))
    ring.consumer.close()
    assert ring.producer.consumer_closed()
    ring.drain()
    assert ring.producer.consumer_closed()
    fresh = Producer(ring.region, 0, 256, 1)
    assert fresh.consumer_closed()


def test_a_parked_record_is_dropped_when_the_consumer_closes():
    ring = Ring(256)
    assert ring.producer.try_push(1, b"", (b"x" * 1000,))
    assert not ring.producer.pump()
    ring.consumer.close()
    assert ring.producer.pump()
    assert not ring.producer.parked


def test_rings_side_by_side_do_not_touch():
    size = ring_bytes(256)
    region = Region.create(3 * size)
    halves = [
        (Producer(region, at, 256, 99), Consumer(region, at, 256)) for at in (0, size, 2 * size)
    ]
    for turn in range(100):
        for number, (producer, _) in enumerate(halves):
            assert producer.try_push(number, b"", (bytes([turn]) * 100,))
        for number, (_, consumer) in enumerate(halves):
            assert consumer.drain(9) == [(number, b"", bytes([turn]) * 100)]


def test_counters_above_32_bits():
    """After 4 GB the positions are the same and the counters are not small any more."""
    ring = Ring(256)
    start = (1 << 40) + 48
    words = ring.region.words
    words[0] = words[16] = start
    ring.producer._head = start
    ring.producer._limit = start + 256
    ring.consumer.tail = start
    for turn in range(50):
        assert ring.producer.try_push(1, b"k", (bytes([turn]) * 60,))
        assert ring.drain() == [(1, b"k", bytes([turn]) * 60)]
    assert words[0] > start


@pytest.mark.parametrize("head", [264, 1 << 50])
def test_a_head_that_is_too_far_is_reported(head):
    ring = Ring(256)
    ring.region.words[0] = head
    with pytest.raises(RingCorruptError, match=str(head)):
        ring.drain()


def test_a_record_that_is_too_long_is_reported():
    ring = Ring(256)
    ring.producer.try_push(1, b"", (b"x" * 24,))
    ring.region.buf[RING_HEADER_BYTES : RING_HEADER_BYTES + 4] = (1000).to_bytes(4, "little")
    with pytest.raises(RingCorruptError, match="past the head"):
        ring.drain()


@pytest.mark.parametrize("capacity", [0, 32, 63, 100, 3 * 64, 1 << 32, -64])
def test_a_capacity_must_be_a_power_of_two(capacity):
    with pytest.raises(ValueError, match="power of two"):
        ring_bytes(capacity)


def test_places_and_bounds_are_checked():
    region = Region.create(4096)
    with pytest.raises(ValueError, match="multiple of 128"):
        Producer(region, 64, 256, 1)
    with pytest.raises(ValueError, match="multiple of 128"):
        Consumer(region, 8, 256)
    with pytest.raises(ValueError, match="cap_records"):
        Producer(region, 0, 256, 0)
