"""SGLang's own ranks and decode nodes ask a registry. Owner: a program of SGLang's environment.

`registry_client.py HOST:PORT` asks ours there, and SGLang's own server, which it starts; prints
what each of them said to the same questions, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import requests
from sglang.srt.disaggregation.common import conn

from perf.harness.ports import free_port

ROOMS = (0, 17, (1 << 63) - 1)


def rank(tp: int, dp: int) -> dict[str, Any]:
    """What a rank of two by two says of itself; the fields are those of `register_to_bootstrap`."""
    return {
        "attn_tp_size": 2, "attn_tp_rank": tp, "attn_cp_size": 1, "attn_cp_rank": 0,
        "attn_dp_size": 2, "attn_dp_rank": dp, "pp_size": 1, "pp_rank": 0, "system_dp_size": 1,
        "system_dp_rank": 0, "rank_ip": f"10.0.0.{dp}", "rank_port": 17000 + tp, "page_size": 64,
        "kv_cache_dtype": "auto", "kv_layout": None, "dsv41_spec_layout": None,
        "load_balance_method": "round_robin", "enable_dsa_cache_layer_split": False,
        "enable_kv_cache_sharding": False, "prefill_http_port": 30000,
        "decode_allocation_policy": "early",
    }  # fmt: skip


def ask(address: str) -> list[Any]:
    """A whole life: ranks come, decode nodes ask, requests are noted."""
    manager, receiver = conn.CommonKVManager, conn.CommonKVReceiver
    said: list[Any] = []
    url = f"http://{address}/route"
    whole = f"{url}?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    ranks = [(tp, dp) for tp in range(2) for dp in range(2)]
    decode = SimpleNamespace(bootstrap_addr=address)
    for tp, dp in ranks:
        said.append(requests.get(whole, timeout=5).status_code)
        said.append(receiver._get_bootstrap_info_from_server(decode, dp, 0, tp, 0))
        manager._register_topology_row(None, url, rank(tp, dp))
    info = conn.PrefillServerInfo(**requests.get(whole, timeout=5).json())
    said.append(dataclasses.asdict(info))
    for tp, dp in [*ranks, (5, 0)]:
        said.append(receiver._get_bootstrap_info_from_server(decode, dp, 0, tp, 0))
    said.append(requests.get(url, timeout=5).status_code)
    policy = {**rank(0, 0), "decode_allocation_policy": "other"}
    said.append(requests.put(url, json=policy, timeout=5).status_code)
    for room in ROOMS:
        sender = SimpleNamespace(
            bootstrap_server_url=address, bootstrap_room=room,
            kv_mgr=SimpleNamespace(attn_dp_rank=room % 2),
        )  # fmt: skip
        conn.CommonKVSender._register_prefill_dp_rank(sender)
    said.append(receiver.query_prefill_dp_ranks(address, [*ROOMS, 18]))
    said.append(receiver.query_prefill_dp_ranks(address, []))
    return said


def main() -> None:
    """Ask both."""
    port = free_port()
    conn.CommonKVBootstrapServer("127.0.0.1", port)
    theirs = f"127.0.0.1:{port}"
    deadline = time.monotonic() + 30
    while True:
        try:
            requests.get(f"http://{theirs}/health", timeout=1)
            break
        except requests.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    print(json.dumps({"ours": ask(sys.argv[1]), "theirs": ask(theirs)}), flush=True)


if __name__ == "__main__":
    main()
