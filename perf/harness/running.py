"""One peer process: started, asked for its counters, stopped. Owner: the harness's main thread."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from perf.harness import procfs
from perf.harness.prepare import Prepared
from perf.harness.workloads import Layout, Workload

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0
MARK_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0

HAS_SCHEDULER = ("tpc", "sidecar", "rust")


class PeerFailed(RuntimeError):
    """A peer did not start or ended; the text holds the end of what it printed."""


def peer_command(
    peer: str,
    prepared: Prepared,
    workload: Workload,
    layout: Layout,
    port: int,
    board: Path,
    event_bytes: int,
) -> list[str]:
    """The command line of a peer, without the CPU mask."""
    common = ["--port", str(port), "--board", str(board), "--tick-ms", str(workload.tick_ms)]
    if peer in HAS_SCHEDULER:
        python = Path(sys.executable) if peer == "tpc" else prepared.gil_python
        kind = "rust" if peer == "rust" else "tpc"
        command = [str(python), "-m", "perf.peer", kind, *common, "--model", str(prepared.model)]
        command += ["--workers", str(layout.io_cores)]
        if layout.io_cores > 1:
            command += ["--cores", ",".join(map(str, layout.server_cpus))]
        if peer == "rust":
            command += ["--extension", str(prepared.rust_extension)]
        if workload.cumulative:
            command.append("--cumulative")
        if layout.scheduler_cpu is not None:
            command += ["--scheduler-cpu", str(layout.scheduler_cpu)]
        return command
    if peer == "floor":
        return [sys.executable, "-m", "perf.floor", *common, "--event-bytes", str(event_bytes)]
    if prepared.granian is None:
        raise PeerFailed("granian is not available here")
    style = "loop" if peer == "granian-loop" else "handler"
    command = [str(prepared.granian), "-m", "perf.granian_peer", *common, "--style", style]
    return [*command, "--event-bytes", str(event_bytes), "--threads", str(layout.io_cores)]


class RunningPeer:
    """A started peer, ready to be loaded."""

    def __init__(self, peer: str, command: list[str], cpus: list[int], port: int) -> None:
        self.peer = peer
        self.port = port
        self.lines: queue.Queue[str] = queue.Queue()
        self.tail: list[str] = []
        mask = ",".join(map(str, cpus))
        self.process = subprocess.Popen(
            ["taskset", "-c", mask, *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "TPC_PYTHON": sys.executable},  # of a sidecar's child
        )
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self.reader.start()
        self.pid = self.process.pid
        self.ready: dict[str, Any] = {}
        try:
            if not peer.startswith("granian"):
                self.ready = self._expect("READY ", START_TIMEOUT_S)
            self._wait_http()
        except BaseException:
            self.kill()
            raise

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.tail = [*self.tail[-40:], line]
            if line.startswith(("READY ", "MARK ")):
                self.lines.put(line)

    def _expect(self, prefix: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                line = self.lines.get(timeout=0.2)
                if line.startswith(prefix):
                    found: dict[str, Any] = json.loads(line[len(prefix) :])
                    return found
            if self.process.poll() is not None:
                break
        raise PeerFailed(f"{self.peer}: no {prefix.strip()} line\n" + "".join(self.tail))

    def http_get(self, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """Status and raw answer of a GET, on a connection of its own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n".encode())
            data = b""
            with contextlib.suppress(TimeoutError):
                while got := sock.recv(65536):
                    data += got
                    if b"content-length: " in data.lower() and self._whole(data):
                        break
        return int(data.split(b" ", 2)[1]), data

    @staticmethod
    def _whole(data: bytes) -> bool:
        head, found, body = data.partition(b"\r\n\r\n")
        if not found:
            return False
        length = int(head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        return len(body) >= length

    def _wait_http(self) -> None:
        """Until /health is 200: connections are taken and the warm-up, if any, is over."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, IndexError, ValueError):
                if self.http_get("/health")[0] == 200:
                    return
            time.sleep(0.05)
        raise PeerFailed(f"{self.peer}: /health never 200\n" + "".join(self.tail))

    def mark(self) -> dict[str, Any]:
        """The peer's own counters, and its CPU time from outside at the same moment."""
        values: dict[str, Any] = {}
        if not self.peer.startswith("granian"):
            os.kill(self.pid, signal.SIGUSR1)
            values = self._expect("MARK ", MARK_TIMEOUT_S)
        user, system = procfs.tree_system_share(self.pid)
        busy, stolen = procfs.machine_busy_seconds()
        outside = {"cpu_ns": procfs.tree_cpu_ns(self.pid), "user_s": user, "system_s": system}
        wall = time.monotonic()
        return values | outside | {"busy_s": busy, "stolen_s": stolen, "wall_s": wall}

    def pss_bytes(self) -> int:
        return procfs.tree_pss_bytes(self.pid)

    def stop(self) -> bool:
        """Ends the peer; says whether it went by itself with status 0."""
        if self.peer.startswith("granian"):
            # 2.7.9 aborts in Rust when it is told to stop on 3.13t: nothing to wait for
            self.kill()
            return True
        self.process.terminate()
        try:
            return self.process.wait(STOP_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def kill(self) -> None:
        for pid in procfs.children(self.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)
