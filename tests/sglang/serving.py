"""One running SGLang, behind ours or one of its own frontends. Owner: the test that starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from perf.harness.ports import free_port
from tests.gil_env import clean_env
from tests.http_client import Client
from tests.sglang.prepare import ROOT, Prepared

START_S: Final = 300.0
SERVED: Final = "tiny-model"
FRONTENDS: Final = {
    "tpc": {"SGLANG_FRONTEND": "tpc"},
    "rust": {"SGLANG_FRONTEND": "rust", "SGLANG_RUST_SERVER": "1"},
    "python": {"SGLANG_FRONTEND": "python"},
}
FLAGS: Final = (
    *("--load-format", "dummy", "--device", "cpu", "--dtype", "float32"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--max-total-tokens", "8192", "--max-running-requests", "32", "--log-level", "warning"),
    *("--served-model-name", SERVED, "--enable-return-hidden-states"),
    "--enable-custom-logit-processor",
)


#: What SGLang counts from its port for itself: a second leader, handshakes, ZMQ with ranks, gRPC.
BESIDE: Final = (1, 13, *range(233, 243), 10_000)


class Ended(Exception):
    """SGLang ended before it was ready; the text is what it said."""


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that comes by itself."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        pause.wait(0.1)


def refused(address: Any) -> bool:
    """Whether nobody listens there."""
    try:
        Client(address).close()
    except ConnectionError:
        return True
    return False


def reason_at_end(client: Client) -> dict[str, Any]:
    """Why a stream ended, once it has; read on from where it is."""
    text = b"".join(iter(client.chunk, b""))
    assert text.endswith(b"data: [DONE]\n\n")
    *_, last = [line for line in text.decode().split("\n\n") if line.startswith("data: {")]
    reason: dict[str, Any] = json.loads(last.removeprefix("data: "))["meta_info"]["finish_reason"]
    return reason


def environ(prepared: Prepared, frontend: str, **more: str) -> dict[str, str]:
    """The environment of an SGLang, or of a program of its environment."""
    ours = ("SGLANG_", "TPC_")
    env = {name: value for name, value in clean_env().items() if not name.startswith(ours)}
    kept = {name: os.environ[name] for name in ("TPC_PYTHON",) if name in os.environ}
    return {
        **env,
        **kept,
        "PYTHONPATH": os.pathsep.join((str(prepared.beside), str(ROOT))),
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        **FRONTENDS.get(frontend, {}),
        **more,
    }


class SGLang:
    """SGLang's processes; `with` ends them."""

    def __init__(
        self, prepared: Prepared, log: Path, frontend: str = "tpc", flags: tuple[str, ...] = (),
        env: dict[str, str] | None = None, port: int = 0,
    ) -> None:  # fmt: skip
        self.prepared = prepared
        self.log = log
        self.port = port or free_port(*BESIDE)
        self.address = ("127.0.0.1", self.port)
        self.url = f"http://127.0.0.1:{self.port}"
        command = [str(prepared.python), "-m", "sglang.launch_server"]
        command += ["--model-path", str(prepared.model), "--host", "127.0.0.1"]
        command += ["--port", str(self.port), *FLAGS, *flags]
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=environ(prepared, frontend, **(env or {})), start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float = START_S, watch: Callable[[], object] = int) -> SGLang:
        """Until it is ready; `watch` is called meanwhile. Raises Ended."""
        deadline = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                raise Ended(f"status {self.process.returncode}\n{self.said()}")
            if time.monotonic() > deadline:
                raise Ended(f"not ready in {seconds:.0f} s\n{self.said()}")
            try:
                with Client(self.address, timeout=5) as client:
                    if client.call("GET", "/health").status == 200:
                        return self
            except (OSError, EOFError):
                pass
            watch()
            time.sleep(0.2)

    def said(self) -> str:
        """The end of its log, without the warnings of its imports."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        noise = ("Ignore import error", "warnings.warn", "UserWarning", "mistral")
        return "\n".join([x for x in lines if not any(word in x for word in noise)][-40:])

    # -- its processes -------------------------------------------------------------------

    def tree(self) -> list[Any]:
        """All its processes that run."""
        try:
            return list(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def schedulers(self) -> list[Any]:
        """Its scheduler processes."""
        return [p for p in self.tree() if _titled(p, "sglang::scheduler")]

    def frontends(self) -> list[Any]:
        """Our processes."""
        return [p for p in self.tree() if _titled(p, "tpc_server.link.frontend")]

    # -- the end -------------------------------------------------------------------------

    def end(self) -> None:
        """Whatever is left of it is killed; nothing may stay behind."""
        left = [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        for process in [*left, *(self.tree() if left else [])]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                pass
        self.process.wait(30)

    def __enter__(self) -> SGLang:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def _titled(process: Any, words: str) -> bool:
    try:
        return words in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
