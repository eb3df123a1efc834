"""`/v1/loads`: how busy the scheduler is. Owner: stateless, and one reader a core.

SGLang's scheduler publishes its load in a file of shared memory that the frontend is told of; its
slot for this frontend's rank is read under a lock of the file. Without one the scheduler is asked
for its internal state, and what that does not say is left out, or is the frontend's own count.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final
from urllib.parse import parse_qs

from . import __version__
from .boundary import codec
from .contract.errors import BadRequest
from .contract.values import decimal
from .metrics.exposition import CONTENT_TYPE
from .render import http, native

_MAGIC: Final = b"SLNS"
_VERSION: Final = 2
_HEADER: Final = struct.Struct("<4sHHI")  # magic, version, ranks, bytes of a slot
_LENGTH: Final = struct.Struct("<I")
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.0001

_SECTIONS: Final = ("core", "memory", "spec", "lora", "disagg", "queues", "all")
_CORE: Final[dict[str, Any]] = {
    "timestamp": 0.0, "dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0,
    "num_waiting_uncached_tokens": 0, "num_used_tokens": 0, "num_total_tokens": 0,
    "num_active_tokens": 0, "num_prealloc_ready_tokens": 0, "max_total_num_tokens": 0,
    "max_running_requests": 0, "token_usage": 0.0, "gen_throughput": 0.0, "cache_hit_rate": 0.0,
    "utilization": 0.0, "total_prefill_uncached_tokens": 0, "total_prefill_busy_us": 0,
    "decode_moments": None,
}  # fmt: skip
# (name in the answer, name in `include`, prefix of its gauges, fields in the order of the array)
_NESTED: Final = (
    ("memory", "memory", "memory", ("weight_gb", "kv_cache_gb", "graph_gb", "token_capacity")),
    ("speculative", "spec", "spec", ("accept_length", "accept_rate")),
    ("lora", "lora", "lora", ("slots_used", "slots_total", "utilization")),
    (
        "disaggregation", "disagg", "disagg",
        (
            "mode", "prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs",
            "decode_prealloc_queue_reqs", "decode_transfer_queue_reqs",
            "decode_retracted_queue_reqs", "kv_transfer_speed_gb_s", "kv_transfer_latency_ms",
        ),
    ),
    ("queues", "queues", "queues", ("waiting", "grammar", "paused", "retracted", "prealloc_ready")),
)  # fmt: skip
# Names of an internal state for fields of a load.
_STATE: Final = (
    ("num_running_reqs", ("num_running_reqs",)),
    ("num_waiting_reqs", ("num_waiting_reqs", "num_queue_reqs")),
    ("num_used_tokens", ("num_used_tokens",)),
    ("num_total_tokens", ("num_total_tokens",)),
    ("max_total_num_tokens", ("max_total_num_tokens",)),
    ("max_running_requests", ("max_running_requests", "effective_max_running_requests_per_dp")),
    ("token_usage", ("token_usage",)),
    ("gen_throughput", ("gen_throughput", "last_gen_throughput")),
    ("cache_hit_rate", ("cache_hit_rate",)),
)
_STATE_MEMORY: Final = (
    ("weight_gb", ("weight",)), ("kv_cache_gb", ("kvcache",)),
    ("graph_gb", ("graph", "cuda_graph")), ("token_capacity", ("token_capacity",)),
)  # fmt: skip


class LoadFacts:
    """What an answer says of this frontend; plain data."""

    def __init__(self, args: Any) -> None:
        self.path: str | None = args.load_snapshot_path
        self.dp_size: int = args.load_snapshot_dp_size or 1
        rank = args.load_snapshot_dp_rank or 0
        if not self.path:
            deployed = json.loads(args.deployment_info or "{}")
            rank = deployed.get("dp_rank") or 0
        self.dp_rank: int = rank
        self.max_total_num_tokens: int | None = args.max_total_num_tokens
        self.head = {
            "version": args.version or __version__,
            "accelerator": args.accelerator,
            "num_accelerators": args.num_accelerators,
        }


def parse_query(query: bytes) -> str:
    """The query as JSON of [sections, rank, whether as Prometheus text]. Raises BadRequest."""
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    sections = None
    if given.get("include", [""])[-1]:
        sections = [name.strip() for name in given["include"][-1].split(",")]
        unknown = [name for name in sections if name not in _SECTIONS]
        if unknown:
            raise BadRequest(
                f"include: {unknown[0]!r} is no section; there are {', '.join(_SECTIONS)}"
            )
    rank = None
    if "dp_rank" in given:
        rank = decimal(given["dp_rank"][-1])
        if rank is None:
            raise BadRequest(f"dp_rank must be an integer, got {given['dp_rank'][-1][:64]!r}")
    form = given.get("format", ["json"])[-1] or "json"
    if form not in ("json", "prometheus"):
        raise BadRequest(f"format must be json or prometheus, got {form!r}")
    return json.dumps([sections, rank, form == "prometheus"])


class LoadReader:
    """The scheduler's snapshot file; opened when it is first asked for."""

    def __init__(self, facts: LoadFacts) -> None:
        self._facts = facts
        self._map: mmap.mmap | None = None
        self._fd = -1
        self._slot_bytes = 0

    def answer(self, wanted: str) -> tuple[bytes, bytes]:
        """Body and content type."""
        loads = []
        raw = self._read()
        if raw is not None:
            loads.append(_from_snapshot(raw))
        return _answer(self._facts, loads, wanted, None)

    def _read(self) -> Any:
        if self._map is None and not self._attach():
            return None
        assert self._map is not None
        at = _HEADER.size + self._facts.dp_rank * self._slot_bytes
        self._lock()
        try:
            (size,) = _LENGTH.unpack_from(self._map, at)
            if not 0 < size <= self._slot_bytes - _LENGTH.size:
                return None
            data = self._map[at + _LENGTH.size : at + _LENGTH.size + size]
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        try:
            snapshot = codec.unpack(data)
        except Exception:  # each library has its own family of errors
            return None
        return snapshot if isinstance(snapshot, dict) else None

    def _lock(self) -> None:
        """A writer holds the lock for microseconds. One that stops while it does must not stop this
        core: then what is read may be torn, which its length or its decoding shows."""
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_S)

    def _attach(self) -> bool:
        facts = self._facts
        assert facts.path is not None
        try:
            fd = os.open(facts.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            size = os.fstat(fd).st_size
            mapped = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
            magic, version, ranks, slot = _HEADER.unpack_from(mapped, 0)
        except (OSError, ValueError, struct.error):
            os.close(fd)
            return False
        fits = slot > _LENGTH.size and size >= _HEADER.size + ranks * slot
        if magic != _MAGIC or version != _VERSION or not facts.dp_rank < ranks or not fits:
            mapped.close()
            os.close(fd)
            return False
        self._map, self._fd, self._slot_bytes = mapped, fd, slot
        return True

    def close(self) -> None:
        """Let go of the file."""
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._fd)


def render(
    facts: LoadFacts, wanted: str, payload: bytes | None, counters: dict[str, dict[str, int]]
) -> tuple[int, bytes, bytes]:
    """The answer without a snapshot: from an internal state (None: no reply) and our counters."""
    state: Any = None
    if payload is not None:
        reply = codec.unpack(payload)
        state = reply.get("internal_state") if isinstance(reply, dict) else None
    load: dict[str, Any] = {"timestamp": time.time(), "dp_rank": facts.dp_rank}
    source = "frontend"
    if isinstance(state, dict):
        found = _named(state, _STATE)
        memory = state.get("memory_usage")
        if found:
            source = "internal_state"
            load.update(found)
        if isinstance(memory, dict):
            load["memory"] = _named(memory, _STATE_MEMORY)
    cores = counters.values()
    load.setdefault("num_running_reqs", sum(core["decoding"] for core in cores))
    waiting = sum(core["queued"] + core["tokenizing"] for core in cores)
    load.setdefault("num_waiting_reqs", waiting)
    if facts.max_total_num_tokens is not None:
        load.setdefault("max_total_num_tokens", facts.max_total_num_tokens)
    memory = load.pop("memory", None)
    if memory:
        load["memory"] = memory
    return 200, *_answer(facts, [load], wanted, source)


def _named(state: dict[Any, Any], table: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    value: Any
    for name, given in table:
        for candidate in given:
            value = state.get(candidate)
            if type(value) in (int, float) and isfinite(value):
                out[name] = value
                break
    return out


def _from_snapshot(raw: dict[Any, Any]) -> dict[str, Any]:
    load: dict[str, Any] = {k: _plain(raw.get(k, default)) for k, default in _CORE.items()}
    for name, _, _, fields in _NESTED:
        values = raw.get(name)
        if isinstance(values, list):
            padded = [*values, *[0] * (len(fields) - len(values))]
            load[name] = {k: _plain(v) for k, v in zip(fields, padded, strict=False)}
    return load


def _plain(value: Any) -> Any:
    """What JSON can say; anything else is null."""
    if type(value) is list:
        return [_plain(item) for item in value]
    if value is None or type(value) in (bool, int, str) or (
        type(value) is float and isfinite(value)
    ):  # fmt: skip
        return value
    return None


def _answer(
    facts: LoadFacts, loads: list[dict[str, Any]], wanted: str, source: str | None
) -> tuple[bytes, bytes]:
    sections, rank, as_text = json.loads(wanted)
    if rank is not None:
        loads = [load for load in loads if load["dp_rank"] == rank]
    if sections is not None and "all" not in sections:
        for load in loads:
            for name, include, _, _ in _NESTED:
                if include not in sections:
                    load.pop(name, None)
    if as_text:
        return _gauges(loads), CONTENT_TYPE
    body: dict[str, Any] = {"timestamp": datetime.now(UTC).isoformat(), **facts.head}
    if source is not None:
        body["source"] = source
    body["loads"] = loads
    return native.to_json(body), http.JSON


def _gauges(loads: list[dict[str, Any]]) -> bytes:
    prefixes = {name: prefix for name, _, prefix, _ in _NESTED}
    samples: dict[str, list[str]] = {}
    for load in loads:
        rank = load["dp_rank"]
        flat = [(f"sglang_{k}", v) for k, v in load.items() if k != "dp_rank"]
        for name, prefix in prefixes.items():
            flat += [(f"sglang_{prefix}_{k}", v) for k, v in load.get(name, {}).items()]
        for name, value in flat:
            if type(value) in (bool, int, float):
                line = f'{name}{{dp_rank="{rank}"}} {float(value) if value is True else value}'
                samples.setdefault(name, []).append(line)
    lines = [
        line for name, found in samples.items() for line in (f"# TYPE {name} gauge", *found)
    ]  # fmt: skip
    return "".join(f"{line}\n" for line in lines).encode()
