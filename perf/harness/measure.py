"""One measurement: a fresh peer, a warm-up, a load, and what came of it. Owner: the main thread."""

from __future__ import annotations

import json
import subprocess
import time
from array import array
from pathlib import Path
from typing import Any

from perf.harness.board import Board
from perf.harness.ports import free_port
from perf.harness.prepare import Prepared
from perf.harness.running import HAS_SCHEDULER, ROOT, RunningPeer, peer_command
from perf.harness.workloads import Layout, Workload, text_offset

EVENT_TOLERANCE = 0.01
MISSED_TOLERANCE = 0.02
CLIENT_LIMIT = 0.80
OPENAI_EXTRA = 3
INFO_KEPT = ("frontend_version", "mode", "http", "writer", "gil_enabled", "core_plan", "cores")
CHURN_SPREAD = 0.5
WARM_SEED = 100_000
FIRST_SEED = 1


def run_client(
    prepared: Prepared, workload: Workload, layout: Layout, port: int, board: Path, warm: bool
) -> dict[str, Any]:
    """Runs the client process to its end; its one line of JSON."""
    command = ["taskset", "-c", str(layout.client_cpu), str(prepared.gil_python), "-m"]
    common = ["--port", str(port), "--path", workload.path, "--model", str(prepared.model)]
    common += ["--first-seed", str(WARM_SEED if warm else FIRST_SEED)]
    if workload.kind == "unary":
        seconds = min(0.5, workload.duration_s) if warm else workload.duration_s
        command += ["perf.clients.unary_client", *common, "--conns", str(workload.streams)]
        command += ["--seconds", str(seconds), "--messages", str(workload.messages)]
    else:
        streams, tokens = (16, 25) if warm else (workload.streams, workload.tokens)
        limit = 60 + workload.duration_s * 10
        command += ["perf.clients.stream_client", *common, "--board", str(board)]
        command += ["--streams", str(streams), "--tokens", str(tokens), "--timeout-s", str(limit)]
        if workload.churn_tokens and not warm:
            command += ["--rounds", str(workload.rounds), "--token-spread", str(CHURN_SPREAD)]
        if workload.cumulative:
            command.append("--cumulative")
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150 + workload.duration_s * 10,
    )
    if done.returncode:
        raise RuntimeError(f"client failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(
    peer: str,
    prepared: Prepared,
    workload: Workload,
    layout: Layout,
    board: Path,
    event_bytes: int,
) -> dict[str, Any]:
    """One record: figures, and `problems` (empty when the record may be used)."""
    Board(board, create=True)
    port = free_port()
    command = peer_command(peer, prepared, workload, layout, port, board, event_bytes)
    running = RunningPeer(peer, command, list(layout.server_cpus), port)
    try:
        rest_pss = running.pss_bytes()
        run_client(prepared, workload, layout, port, board, warm=True)
        before = running.mark()
        client = run_client(prepared, workload, layout, port, board, warm=False)
        time.sleep(0.15)  # the scheduler notes its last step, the server its last close
        after = running.mark()
        loaded_pss = running.pss_bytes()
        info = server_info(running) if peer == "tpc" else None
        clean = running.stop()
    except BaseException:
        running.kill()
        raise
    record = figures(peer, workload, running.ready, before, after, client)
    record["pss_rest_mb"] = pss_above(rest_pss, running.ready)
    record["pss_loaded_mb"] = pss_above(loaded_pss, running.ready)
    record["problems"] = problems(peer, prepared, workload, record, client, clean)
    record["layout"] = layout.note
    if info is not None:
        record["server_info"] = info
    return record


def server_info(running: RunningPeer) -> dict[str, Any] | None:
    """Our own counters after the load, where the server gives them."""
    try:
        status, raw = running.http_get("/server_info")
        if status == 200:
            info = json.loads(raw.partition(b"\r\n\r\n")[2])
            return {name: info.get(name) for name in INFO_KEPT}
    except (OSError, ValueError, IndexError):
        pass
    return None


def pss_above(pss: int, ready: dict[str, Any]) -> float | None:
    base = ready.get("pss_before_server")
    return None if base is None else (pss - base) / 1e6


def figures(
    peer: str,
    workload: Workload,
    ready: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any],
    client: dict[str, Any],
) -> dict[str, Any]:
    """The numbers of one record, from two marks and the client's line."""

    def gain(name: str) -> float:
        return float(after.get(name, 0)) - float(before.get(name, 0))

    unary = workload.kind == "unary"
    if unary:
        units = float(client["done"])
    else:
        units = gain("tokens") or float(client["tokens"])
    total_us = gain("cpu_ns") / 1e3
    frontend_us = total_us - gain("scheduler_cpu_ns") / 1e3
    calls_us = (gain("push_cpu_ns") + gain("receive_cpu_ns")) / 1e3
    user, system = gain("user_s"), gain("system_s")
    record = {
        "peer": peer,
        "workload": workload.name,
        "units": units,
        "frontend_us": frontend_us / max(units, 1),
        "frontend_with_calls_us": (frontend_us + calls_us) / max(units, 1),
        "scheduler_us": gain("scheduler_cpu_ns") / 1e3 / max(units, 1),
        "system_share": system / max(user + system, 1e-9),
        "push_step_us": after.get("full_push_us"),
        "push_step_rows": after.get("full_rows"),
        "steps": gain("steps"),
        "missed_ticks": gain("missed_ticks"),
        "live_rows_left": after.get("live_rows"),
        "seconds": client["seconds"],
        "client_cpu_share": client["client_cpu_s"] / client["seconds"],
        "foreign_cpu_share": max(
            0.0,
            (gain("busy_s") - total_us / 1e6 - client["client_cpu_s"]) / gain("wall_s"),
        ),
        "stolen_share": gain("stolen_s") / gain("wall_s"),
        "latency_us": client["latency_us"],
    }
    if unary:
        record["req_per_s"] = client["req_per_s"]
        record["req_per_s_of_a_core"] = 1e6 / record["frontend_us"]
    else:
        record["events"] = client["events"]
        record["events_per_s"] = client["events_per_s"]
        record["tokens_per_s"] = units / client["seconds"]
        record["bytes_per_event"] = client["bytes_per_event"]
    return record


def problems(
    peer: str,
    prepared: Prepared,
    workload: Workload,
    record: dict[str, Any],
    client: dict[str, Any],
    clean_stop: bool,
) -> list[str]:
    """Why this record must not be used; empty when it may."""
    found = []
    if client["failed"]:
        found.append(f"{client['failed']} answers failed")
    if not clean_stop:
        found.append("the peer did not stop cleanly")
    if record["live_rows_left"]:
        found.append(f"{record['live_rows_left']} requests still live after the load")
    if record["client_cpu_share"] > CLIENT_LIMIT:
        found.append(f"the client used {record['client_cpu_share']:.0%} of its CPU")
    if workload.kind == "unary":
        counted = '"prompt_tokens":11' if workload.path == "/generate" else '"prompt_tokens":'
        if peer in HAS_SCHEDULER and counted not in client["sample"].replace(" ", ""):
            found.append(f"the answer lacks {counted}: {client['sample'][-300:]}")
        return found
    if workload.tick_ms:
        slack = EVENT_TOLERANCE * record["units"]
        # OpenAI streams also have an event for the role, one for the end, one for the usage
        extra = 0 if workload.path == "/generate" else OPENAI_EXTRA * client["done"]
        if not -slack <= record["events"] - record["units"] <= slack + extra:
            found.append(f"{record['events']} events for {record['units']:.0f} tokens")
        if record["missed_ticks"] > MISSED_TOLERANCE * record["steps"]:
            found.append(f"saturated: {record['missed_ticks']:.0f} ticks missed")
        if record["latency_us"].get("p50", 0) > workload.tick_ms * 1e3:
            found.append("saturated: half of the events came a step late or later")
    if peer in HAS_SCHEDULER and workload.path == "/generate":
        found += text_problems(prepared, client)
    return found


def text_problems(prepared: Prepared, client: dict[str, Any]) -> list[str]:
    """The first stream's ids and text against what the scheduler pushed."""
    ids = array("q", (prepared.model / "ids.bin").read_bytes())
    at = text_offset(client["sample_seed"], len(ids))
    wanted = [ids[(at + i) % len(ids)] for i in range(client["sample_tokens"])]
    if client["sample_ids"] != wanted:
        return ["the ids of the first stream are not those the scheduler pushed"]
    text = client["sample_text"].strip("�")
    if not text or text not in (prepared.model / "text.txt").read_text(encoding="utf-8"):
        return ["the text of the first stream is not what its ids spell"]
    return []
