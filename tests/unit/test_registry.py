"""The registry of a prefill server: one file in memory, many who write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpc_server import registry
from tpc_server.contract.errors import BadRequest
from tpc_server.contract.registry import MOST_ROOMS, decode_dp_rank, decode_query, decode_route
from tpc_server.registry import Registry, RegistryBusy, RegistryFull, is_ready, place_of, shown

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def fd():
    made = registry.create()
    yield made
    os.close(made)


def payload(**fields):
    """What SGLang 0.5.23 sends."""
    return {
        "attn_tp_size": 2, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0,
        "attn_dp_size": 1, "attn_dp_rank": 0, "pp_size": 1, "pp_rank": 0, "system_dp_size": 1,
        "system_dp_rank": 0, "rank_ip": "10.0.0.1", "rank_port": 17000, "page_size": 64,
        "kv_cache_dtype": "auto", "kv_layout": None, "dsv41_spec_layout": None,
        "load_balance_method": "follow_bootstrap_room", "enable_dsa_cache_layer_split": False,
        "enable_kv_cache_sharding": False, "prefill_http_port": 30000,
        "decode_allocation_policy": "early", **fields,
    }  # fmt: skip


def row(**fields):
    return decode_route(json.dumps(payload(**fields)).encode())


def test_ranks(fd):
    one, other = Registry(fd, 120), Registry(fd, 120)
    assert one.topology() == {} and not is_ready({})
    assert one.register(row()) == ""
    assert one.register(row()) == ""  # again: a rank whose answer was lost is no second one
    assert not is_ready(other.topology())
    assert other.register(row(attn_tp_rank=1, rank_port="17001", page_size=1)) == ""
    assert is_ready(one.topology())
    ranks = one.topology()["ranks"]
    assert ranks == {place_of(0, 0, 0, 0): ["10.0.0.1", 17000],
                     place_of(0, 0, 1, 0): ["10.0.0.1", 17001]}  # fmt: skip
    # The names that SGLang's decode side takes; a name more and it would not.
    assert shown(one.topology()) == {
        "attn_tp_size": 2, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 64,
        "kv_cache_dtype": "auto", "follow_bootstrap_room": True,
        "enable_dsa_cache_layer_split": False, "enable_kv_cache_sharding": False,
        "prefill_http_port": 30000, "decode_allocation_policy": "early",
    }  # fmt: skip
    assert other.register(row(attn_tp_rank=1, rank_ip="::1")) == ""  # it has moved
    assert one.topology()["ranks"][place_of(0, 0, 1, 0)] == ["::1", 17000]


def test_where_data_parallel_ranks_go(fd):
    made = row(system_dp_size=4, system_dp_rank=3, attn_dp_size=2, attn_dp_rank=1)
    assert (made["dp_size"], made["dp_rank"]) == (4, 3)
    made = row(attn_dp_size=2, attn_dp_rank=1, load_balance_method="round_robin")
    assert (made["dp_size"], made["dp_rank"], made["follow_bootstrap_room"]) == (2, 1, False)


def test_what_all_ranks_must_say_alike(fd):
    one = Registry(fd, 120)
    layout = {"a": [1]}
    assert one.register(row(dsv41_spec_layout=layout, kv_layout="x")) == ""
    assert shown(one.topology())["dsv41_spec_layout"] == layout
    assert shown(one.topology())["kv_layout"] == "x"
    assert "dsv41_spec_layout" in one.register(row(attn_tp_rank=1))
    policy = "prefill_complete"
    said = one.register(
        row(attn_tp_rank=1, dsv41_spec_layout=layout, decode_allocation_policy=policy)
    )
    assert "decode_allocation_policy" in said
    assert len(one.topology()["ranks"]) == 1


def test_more_ranks_than_there_is_room_for(fd, monkeypatch):
    monkeypatch.setattr(registry, "AREA_BYTES", 600)
    one = Registry(fd, 120)
    assert one.register(row()) == ""
    with pytest.raises(RegistryFull):
        for rank in range(1, 30):
            one.register(row(attn_tp_rank=rank))
    assert one.topology()["ranks"][place_of(0, 0, 0, 0)]


def test_rooms(fd, monkeypatch):
    clock = SimpleNamespace(now=5 * 10**9)
    fake = SimpleNamespace(monotonic_ns=lambda: clock.now, sleep=lambda seconds: None)
    monkeypatch.setattr(registry, "time", fake)
    one, other = Registry(fd, 120), Registry(fd, 120)
    assert one.rooms([0, 1, -1]) == {}  # an empty record is no room 0
    rooms = [0, 1, -1, (1 << 63) - 1, -(1 << 63), 77]
    for rank, room in enumerate(rooms):
        one.note_room(room, rank)
    assert other.rooms([*rooms, 5]) == {room: rank for rank, room in enumerate(rooms)}
    other.note_room(77, 9)
    assert one.rooms([77, 77]) == {77: 9}
    clock.now += 239 * 10**9
    assert one.rooms([77]) == {77: 9}
    clock.now += 2 * 10**9
    assert one.rooms([77]) == {}


def test_a_full_bucket_forgets_the_oldest(fd):
    one = Registry(fd, 120)
    same = [room for room in range(2_000_000) if registry._bucket(room) == registry._bucket(7)]
    assert len(same) > registry.BUCKET
    crowd = same[: registry.BUCKET + 1]
    for room in crowd:
        one.note_room(room, 1)
    assert sorted(one.rooms(crowd)) == crowd[1:]
    one.note_room(crowd[1], 2)  # known: takes its own place
    assert one.rooms(crowd) == {**dict.fromkeys(crowd[2:], 1), crowd[1]: 2}


def test_rooms_do_not_crowd():
    counted = {registry._bucket(room) for room in range(10_000)}
    assert len(counted) > 8000


def test_many_write_at_once(fd):
    """Threads as the cores of one process have them, each with its own view."""
    failures = []

    def write(thread):
        mine = Registry(fd, 120)
        for k in range(25):
            while True:
                try:
                    assert mine.register(row(attn_tp_rank=thread * 25 + k, attn_tp_size=100)) == ""
                    mine.note_room(thread * 1000 + k, thread)
                    break
                except RegistryBusy:
                    continue
                except Exception as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures
    one = Registry(fd, 120)
    assert is_ready(one.topology()) and len(one.topology()["ranks"]) == 100
    rooms = {thread * 1000 + k: thread for thread in range(4) for k in range(25)}
    assert one.rooms(list(rooms)) == rooms


def test_who_holds_the_lock_and_stops_delays_nobody_for_long(fd):
    with registry._Locked(fd):
        for call in (Registry(fd, 1).topology, lambda: Registry(fd, 1).note_room(1, 1)):
            with pytest.raises(RegistryBusy):
                call()
    assert Registry(fd, 1).topology() == {}
    before = len(os.listdir("/proc/self/fd"))
    Registry(fd, 1).note_room(1, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_dies_with_the_lock(fd):
    """What it did not finish is not seen, and the lock is free."""
    assert Registry(fd, 120).register(row()) == ""
    code = (
        "import os, signal, sys; sys.path.insert(0, '.'); from tpc_server import registry;"
        f"held = registry._Locked({fd}).__enter__();"
        "os.pwrite(held, b'x' * 5000, registry._area(2));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], pass_fds=[fd], cwd=ROOT, check=False,
                          timeout=50)  # fmt: skip
    assert done.returncode == -9
    assert len(Registry(fd, 120).topology()["ranks"]) == 1
    assert Registry(fd, 120).register(row(attn_tp_rank=1)) == ""
    assert is_ready(Registry(fd, 120).topology())


@pytest.mark.parametrize(("field", "value"), [
    ("attn_tp_size", 0), ("attn_tp_rank", -1), ("pp_size", None), ("rank_port", "x"),
    ("rank_port", True), ("rank_ip", 1), ("rank_ip", "a" * 300), ("page_size", 1 << 21),
    ("dsv41_spec_layout", []), ("enable_kv_cache_sharding", 1), ("kv_cache_dtype", {}),
    ("prefill_http_port", 1.5), ("attn_cp_size", 1 << 70),
])  # fmt: skip
def test_bad_ranks(field, value):
    with pytest.raises(BadRequest) as caught:
        row(**{field: value})
    assert field in caught.value.message


def test_missing_fields():
    needed = [
        name for name in payload()
        if name.endswith(("_size", "_rank", "_ip", "_port")) and name != "prefill_http_port"
    ]  # fmt: skip
    for name in needed:
        short = payload()
        del short[name]
        with pytest.raises(BadRequest, match=name):
            decode_route(json.dumps(short).encode())
    bare = {name: payload()[name] for name in needed}
    assert decode_route(json.dumps(bare).encode())["follow_bootstrap_room"] is True


def test_rooms_of_a_body():
    assert decode_dp_rank(b'{"bootstrap_room": "12", "dp_rank": 3}') == (12, 3)
    assert decode_query(b'{"bootstrap_rooms": ["1", 2, -3]}') == [1, 2, -3]
    assert decode_query(b'{"bootstrap_rooms": []}') == []
    too_many = json.dumps({"bootstrap_rooms": [1] * (MOST_ROOMS + 1)}).encode()
    for decode, body in (
        (decode_dp_rank, b'{"dp_rank": 3}'), (decode_dp_rank, b'{"bootstrap_room": 1}'),
        (decode_dp_rank, b'{"bootstrap_room": 1, "dp_rank": -1}'),
        (decode_dp_rank, b'{"bootstrap_room": 9223372036854775808, "dp_rank": 1}'),
        (decode_query, b"{}"), (decode_query, b'{"bootstrap_rooms": 1}'),
        (decode_query, b'{"bootstrap_rooms": [1.0]}'), (decode_query, too_many),
        (decode_query, b'{"bootstrap_rooms": [null]}'),
    ):  # fmt: skip
        with pytest.raises(BadRequest):
            decode(body)
