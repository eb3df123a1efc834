"""A frontend with a synthetic scheduler behind it. Owner: main thread runs the scheduler.

usage: peer.py {rust,tpc} --port N --model FOLDER --board FILE [--extension FILE.so] [--tick-ms T]
               [--cumulative] [--cores 0,1] [--workers N] [--scheduler-cpu N]

`rust` is SGLang's Rust server (needs a GIL CPython 3.12, msgpack and numpy), `tpc` is ours. Both
get the same arguments and the same frames. Run under `taskset`; the server's threads inherit the
mask and the scheduler's thread is moved afterwards where `--scheduler-cpu` says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from perf.harness import procfs
from perf.harness.board import Board
from perf.harness.marks import Marks
from perf.harness.scheduler import SyntheticScheduler

IDLE_WAIT_MS = 250


def load_module(kind: str, extension: str | None) -> Any:
    """The module that holds Server, ServerArgs, ModelConfig, …"""
    if kind == "tpc":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        import tpc_server

        return tpc_server
    if extension is None:
        raise SystemExit("peer.py rust needs --extension")
    spec = importlib.util.spec_from_file_location("_server", extension)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def server_args(module: Any, options: argparse.Namespace) -> Any:
    """Every field both take, so that neither runs on a default of its own."""
    return module.ServerArgs(
        model_path=options.model,
        served_model_name="m",
        tokenizer_path=options.model,
        revision=None,
        load_format="auto",
        weight_version="default",
        hicache_storage_backend=None,
        hicache_storage_backend_extra_config=None,
        hicache_storage_prefetch_policy="best_effort",
        hicache_write_policy="write_through",
        host="127.0.0.1",
        port=options.port,
        grpc_port=None,
        log_level="warning",
        log_level_http="warning",
        chat_template=None,
        default_chat_template_kwargs="{}",
        tool_call_parser=None,
        reasoning_parser=None,
        stream_response_default_include_usage=False,
        tokenizer_worker_num=options.workers,
        detokenizer_worker_num=options.workers,
        skip_tokenizer_init=False,
        skip_server_warmup=True,
        health_generate_headers={},
        default_priority_value=None,
        enable_request_header_overrides=False,
        incremental_streaming_output=not options.cumulative,
        disaggregation_mode=module.DisaggregationMode.Null,
        model_config=module.ModelConfig(
            context_len=32768,
            vocab_size=129280,
            is_multimodal=False,
            model_type="llama",
            default_sampling_params=module.DefaultSamplingParams(),
        ),
        preferred_sampling_params=None,
        default_max_new_tokens=128,
        lora_ids={},
        enable_strict_thinking=False,
        limit_mm_data_per_request=[],
        allow_auto_truncate=False,
        enable_return_hidden_states=False,
        num_reserved_tokens=0,
        tokenizer_model_max_length=32768,
        version="perf",
        max_total_num_tokens=10_000_000,
        deployment_info="{}",
        launch_server_info="{}",
        load_snapshot_path=None,
        load_snapshot_dp_size=0,
        load_snapshot_dp_rank=0,
        accelerator=None,
        num_accelerators=0,
        metrics=None,
    )


def counters(scheduler: SyntheticScheduler, cpu_base_ns: int) -> dict[str, Any]:
    """What the scheduler has done so far; the harness takes differences of two marks."""
    costs = scheduler.full_push_cpu_ns
    return {
        "tokens": scheduler.tokens,
        "requests": scheduler.requests,
        "steps": scheduler.step,
        "missed_ticks": scheduler.missed_ticks,
        "scheduler_cpu_ns": time.thread_time_ns() - cpu_base_ns,
        "push_cpu_ns": scheduler.push_cpu_ns,
        "push_wall_ns": scheduler.push_wall_ns,
        "receive_cpu_ns": scheduler.receive_cpu_ns,
        "full_rows": scheduler.full_rows,
        "full_push_us": statistics.median(costs) / 1e3 if costs else None,
        "live_rows": len(scheduler.rids),
    }


def run(scheduler: SyntheticScheduler, marks: Marks) -> None:
    """Steps until told to stop."""
    cpu_base_ns = time.thread_time_ns()
    due_ns = 0
    tick_ns = scheduler.tick_ns
    while not marks.stop:
        marks.poll(lambda: counters(scheduler, cpu_base_ns))
        if not scheduler.admit():
            scheduler.wait(IDLE_WAIT_MS)
            due_ns = 0
            continue
        header, data, finishing = scheduler.prepare()
        if tick_ns:
            now = time.monotonic_ns()
            if due_ns == 0:
                due_ns = now
            elif now - due_ns > tick_ns:
                scheduler.missed_ticks += (now - due_ns) // tick_ns
                due_ns = now
            elif now < due_ns:
                time.sleep((due_ns - now) / 1e9)
            due_ns += tick_ns
        if not scheduler.push(header, data, finishing):
            break


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("rust", "tpc"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--board", required=True)
    parser.add_argument("--extension")
    parser.add_argument("--tick-ms", type=float, default=20.0)
    parser.add_argument("--cumulative", action="store_true")
    parser.add_argument("--cores", help="CPUs given to Server(cores=…); absent: None, unpinned")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--scheduler-cpu", type=int)
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    marks = Marks()
    ids = (Path(options.model) / "ids.bin").read_bytes()
    board = Board(options.board)
    pid = os.getpid()
    bare = procfs.tree_pss_bytes(pid)
    module = load_module(options.kind, options.extension)
    imported = procfs.tree_pss_bytes(pid)
    cores = [int(each) for each in options.cores.split(",")] if options.cores else None
    server = module.Server(server_args(module, options), port_offset=0, cores=cores)
    if options.scheduler_cpu is not None:
        os.sched_setaffinity(0, {options.scheduler_cpu})
    scheduler = SyntheticScheduler(server, ids, board, int(options.tick_ms * 1e6))
    marks.ready({"pss_bare": bare, "pss_before_server": imported})
    try:
        run(scheduler, marks)
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()
