"""Answers to control messages, in SGLang's shapes. Owner: the engine thread."""

from __future__ import annotations

from typing import Any


def internal_state(stats: dict[str, Any]) -> dict[str, Any]:
    """Payload of a GetInternalStateReq: SGLang's names where it has one, ours beside them."""
    state = {
        "last_gen_throughput": stats["tokens_per_s"],
        "effective_max_running_requests_per_dp": stats["max_running_requests"],
        "max_total_num_tokens": stats["kv_budget_tokens"],
        "memory_usage": {
            "weight": stats["weights_bytes"] / 2**30,
            "kvcache": stats["kv_bytes"] / 2**30,
            "token_capacity": stats["kv_budget_tokens"],
        },
        "num_running_reqs": stats["running"],
        "num_queue_reqs": stats["waiting"],
        "engine": stats,
    }
    return {"rid": None, "http_worker_ipc": None, "internal_state": state}
