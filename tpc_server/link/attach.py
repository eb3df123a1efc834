"""`tpc-server --attach SOCKET`: an API server beside a running scheduler. Owner: its main thread.

It owns its port. While there is no scheduler it answers 503; when the scheduler ends, every stream
ends with an error, and it waits for the next one.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import time
from typing import Any, Final

from ..affinity.sglang_rules import plan_for_server
from ..doorman import Doorman
from ..listen import Bound, ListenError, bind
from ..tell import tell
from . import plain, protocol
from .frontend import FAILED, GONE, metrics_of, serve
from .messages import Channel, LinkClosed, text_of

_RETRY_S: Final = 0.2
_CONFIG_S: Final = 10.0
_NOBODY: Final = "there is no scheduler to serve yet"


class _Over(Exception):
    """A signal ended the wait."""


def main(argv: list[str]) -> int:
    """Serve schedulers one after the other until a signal; the exit status."""
    parser = argparse.ArgumentParser(
        prog="tpc-server --attach",
        description="Serve the API of a scheduler that runs already, or will.",
    )
    parser.add_argument("--attach", required=True, metavar="SOCKET",
                        help="UNIX socket where the scheduler lets frontends in")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=30000, help="port; 0 lets the system choose")
    parser.add_argument("--io-cores", type=int, default=1, metavar="N", help="cores for sockets")
    given = parser.parse_args([word for word in argv if word != "serve"])
    plan = plan_for_server(None, 1, max(1, given.io_cores),
                           allowed_cpus=len(os.sched_getaffinity(0)))  # fmt: skip
    try:
        bound = bind(given.host, given.port, None, len(plan.stage_cores("ingress")), 4096)
    except ListenError as error:
        tell(f"tpc-server: error: {error}")
        return 1
    print(f"tpc-server: listening on http://{given.host}:{bound.port}, waiting for a scheduler at"
          f" {given.attach}", flush=True)  # fmt: skip
    door = _Door(bound)
    try:
        while True:
            channel, message = _scheduler(given.attach, door)
            config: dict[str, Any] = message["config"]
            fds = channel.take_fds()
            registry_fd = fds.pop() if message.get("registry") else -1
            metrics = metrics_of(message, fds)
            config["plan"] = plain.plan_to_plain(plan)
            config["args"] |= {"host": given.host, "port": bound.port}
            config["mask"] = None
            print("tpc-server: attached", flush=True)
            copies = [[sock.dup() for sock in group] for group in bound.groups]
            why = serve(channel, config, copies, metrics, registry_fd, door.close)
            for group in copies:
                for sock in group:
                    sock.close()
            if why != GONE:
                return 1 if why == FAILED else 0
            print("tpc-server: the scheduler has ended, waiting for the next", flush=True)
    except _Over:
        return 0
    finally:
        door.open()
        bound.close()


class _Door:
    """While it is closed, who asks gets a 503."""

    def __init__(self, bound: Bound) -> None:
        self._sockets = [sock for group in bound.groups for sock in group]
        self._man: Doorman | None = None

    def close(self) -> None:
        if self._man is None:
            self._man = Doorman(self._sockets, _NOBODY)

    def open(self) -> None:
        if self._man is not None:
            self._man.leave()
            self._man = None


def _scheduler(path: str, door: _Door) -> tuple[Channel, dict[str, Any]]:
    """Wait for a scheduler and what it says; who asks meanwhile gets a 503."""

    def over(number: int, frame: Any) -> None:
        raise _Over

    door.close()
    refusal = ""
    before = {number: signal.signal(number, over) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(path)
            except OSError:
                sock.close()
                time.sleep(_RETRY_S)
                continue
            channel = Channel(sock)
            try:
                channel.watch()
                channel.send({"hello": protocol.hello()})
                message = channel.wait(_CONFIG_S)
                said = text_of(message, "refused")
                if said and said != refusal:
                    refusal = said
                    tell(f"tpc-server: not attached: {refusal}")
                message["config"] = dict(message["config"])
                return channel, message
            except (TimeoutError, LinkClosed, KeyError):
                channel.close()
                time.sleep(_RETRY_S)
    finally:
        door.open()
        for number, handler in before.items():
            signal.signal(number, handler)
