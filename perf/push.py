"""What a scheduler with a GIL pays at its boundary: ours against SGLang's Rust server, one run.

usage: python perf/push.py [--rounds N] [--steps N]

Owner: main thread; each frontend runs in a process of its own on the GIL interpreter, ours with
its cores in a child. Timed on the scheduler's thread, CPU and wall, medians: pushing a step of 256
rows, the same with top-5 logprobs, and draining 256 requests that wait. The rows belong to running
requests, so that the frontend works on them meanwhile.

A scheduler packs a step's frame and pushes it in one go, so that is what is done here, the packing
left out of the figure. `cold` is the same push straight after 20 ms of sleep, of a frame packed
before: what it costs a thread that has lost its caches.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ROWS = 256
TOP = 5
ROOT = Path(__file__).resolve().parents[1]


# -- the frontend's process ------------------------------------------------------------


def requests_of(port: int, logprobs: bool) -> list[socket.socket]:
    """ROWS connections, each with one streamed request."""
    body = json.dumps(
        {
            "text": "Hello world", "stream": True, "return_logprob": logprobs,
            "top_logprobs_num": TOP if logprobs else 0,
            "sampling_params": {"max_new_tokens": 30000, "ignore_eos": True},
        }
    ).encode()  # fmt: skip
    head = b"POST /generate HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n".encode()
    found = []
    for _ in range(ROWS):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(head + body)
        found.append(sock)
    return found


def read_all(socks: list[socket.socket]) -> int:
    """Read and throw away, in another process, so that no GIL is shared with it."""
    pid = os.fork()
    if pid:
        return pid
    import select

    poller = select.epoll()
    by_fd = {sock.fileno(): sock for sock in socks}
    for fd in by_fd:
        poller.register(fd, select.EPOLLIN)
    while by_fd:
        for fd, _ in poller.poll():
            if not by_fd[fd].recv(1 << 20):
                poller.unregister(fd)
                del by_fd[fd]
    os._exit(0)


def frame(pack: Any, rids: list[str], logprobs: bool) -> tuple[bytes, list[bytes]]:
    """One step: a token a row, with the logprobs of SGLang's columns where asked for."""
    n = len(rids)
    columns: list[Any] = [rids, [None] * n, [2] * n, [1] * n, [0] * n, [0] * n]
    data = [array("q", [100 + k for k in range(n)]).tobytes()]
    if logprobs:
        columns += [[1] * n, [], [1] * n, [TOP] * n, [], [], [], [], [], [], [], []]
        data += [array("f", [-0.5] * n).tobytes(), array("i", [100] * n).tobytes()]
        data += [b"", b""]
        data += [array("f", [-0.5] * n * TOP).tobytes(), array("i", [100] * n * TOP).tobytes()]
        data += [b""] * 7
    return bytes(pack(columns)), data


def timed(call: Any) -> tuple[float, float]:
    """(CPU, wall) microseconds of the calling thread."""
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    call()
    return (time.thread_time_ns() - cpu) / 1e3, (time.perf_counter_ns() - wall) / 1e3


def serve(options: argparse.Namespace) -> None:
    """Start one frontend, measure, print one line of JSON."""
    import msgpack

    from perf.peer import load_module, server_args

    module = load_module(options.kind, options.extension)
    out: dict[str, Any] = {}
    pack = msgpack.Packer().pack
    for logprobs in (False, True):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            options.port = probe.getsockname()[1]
        server = module.Server(server_args(module, options), port_offset=0, cores=None)
        wait_until_open(options.port)
        socks = requests_of(options.port, logprobs)
        time.sleep(1.0)  # all of them wait in the ring
        got: list[Any] = []
        drain = [timed(lambda: got.extend(server.recv_requests(ROWS)))]  # noqa: B023
        while len(got) < ROWS:
            server.wait_request(50)
            got.extend(server.recv_requests(ROWS))
        rids = [msgpack.unpackb(r.header, strict_map_key=False)[1] for r in got]
        rids = [rid for rid in rids if not rid.startswith("HEALTH")][:ROWS]
        reader = read_all(socks)
        header, data = frame(pack, rids, logprobs)
        costs: dict[str, list[tuple[float, float]]] = {"": [], "_cold": []}
        due = time.monotonic()
        for number in range(options.steps):
            kind = "_cold" if number % 4 == 3 else ""
            due += 0.02
            time.sleep(max(0.0, due - time.monotonic()))
            if not kind:
                header, data = frame(pack, rids, logprobs)
            costs[kind].append(timed(lambda: server.push_decode_result_batch(header, data)))  # noqa: B023
        name = "logprobs" if logprobs else "plain"
        for kind, found in costs.items():
            settled = found[len(found) // 2 :]
            out[f"push_{name}{kind}_cpu_us"] = statistics.median(c for c, _ in settled)
            out[f"push_{name}{kind}_wall_us"] = statistics.median(w for _, w in settled)
        if not logprobs:
            out["drain_cpu_us"], out["drain_requests"] = drain[0][0], len(got)
        for sock in socks:
            sock.close()
        server.shutdown()
        os.kill(reader, signal.SIGKILL)  # it holds the server's ends too: no end of file for it
        os.waitpid(reader, 0)
    print("RESULT " + json.dumps(out), flush=True)
    os._exit(0)


def wait_until_open(port: int) -> None:
    """The Rust server listens from a thread of its own."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)


# -- the comparison --------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("rust", "tpc"), help=argparse.SUPPRESS)
    parser.add_argument("--extension", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.workers, options.cumulative = 1, False
    if options.kind:
        serve(options)
        return 0
    from perf.harness.prepare import prepare

    prepared = prepare(want_granian=False)
    found: dict[str, list[dict[str, float]]] = {"tpc": [], "rust": []}
    for number in range(options.rounds):
        for kind in ("tpc", "rust") if number % 2 == 0 else ("rust", "tpc"):
            found[kind].append(measure(kind, prepared, options.steps))
            print(f"round {number + 1} {kind}: {found[kind][-1]}", file=sys.stderr, flush=True)
    print(f"| scheduler's thread, {ROWS} rows | ours | Rust | ratio |\n|---|---|---|---|")
    for key in found["tpc"][0]:
        if key == "drain_requests":
            continue
        ours = statistics.median(each[key] for each in found["tpc"])
        theirs = statistics.median(each[key] for each in found["rust"])
        print(f"| {key} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |")
    return 0


def measure(kind: str, prepared: Any, steps: int) -> dict[str, float]:
    """One process, its figures."""
    command = [str(prepared.gil_python), str(Path(__file__)), "--kind", kind]
    command += ["--steps", str(steps), "--model", str(prepared.model)]
    command += ["--extension", str(prepared.rust_extension)]
    env = {**os.environ, "TPC_PYTHON": sys.executable}
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        timer = threading.Timer(120, child.kill)
        timer.start()
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("RESULT "):
                timer.cancel()
                child.wait()
                result: dict[str, float] = json.loads(line[7:])
                return result
        timer.cancel()
        errors.seek(0)
        raise SystemExit(f"{kind} ended without a result\n{errors.read()[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
