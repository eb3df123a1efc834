"""Where operators reach a running server: `tpc-server reload`, `tpc-server status`.

Owner: the scheduler's thread, or the program's main thread (the socket), any process (the asking).
A UNIX socket in the user's own folder, named by the port; one line of JSON each way. Standard
library only and Python 3.9: `./tpc status` needs no environment.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..tell import tell
from .listening import Listener

_MOST: Final = 4096
_PATIENCE_S: Final = 0.5
_SOON_MS: Final = 20
# What a frontend process does: takes connections, does not yet, finishes what it has.
SERVING: Final = "serving"
STARTING: Final = "starting"
LEAVING: Final = "leaving"
RELOADING: Final = "reloading"  # the word that asks what became of a reload
_RELOAD_S: Final = 300.0  # two minutes for its first words, two until it takes connections
_SAY_S: Final = 2.0
_ASK_S: Final = 0.1
_PEERS_MOST: Final = 16  # who says nothing longest is hung up on


class ControlError(Exception):
    """Nobody answers there; the text says what was tried."""


def folder() -> Path:
    """The folder of the sockets, made if missing; only its user can look into it.

    Raises ControlError when somebody else has it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "tpc_server") if base else Path(tempfile.gettempdir(), f"tpc_server-{_uid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != _uid() or found.st_mode & 0o077:
        raise ControlError(f"{path} is not a folder of this user alone")
    return path


def _uid() -> int:
    return os.getuid()


class ControlSocket:
    """The listening end. `answer` gets a command and says what happened."""

    def __init__(
        self, port: int, answer: Callable[[str], dict[str, Any]], log: Callable[[str], None]
    ) -> None:
        """Raises OSError or ControlError when there can be no socket. A server on another address
        of the same port may have it already."""
        self._answer = answer
        self._peers: list[tuple[socket.socket, float]] = []  # not heard yet, and until when
        self.path = folder() / f"{port}.sock"
        self._listener = Listener(str(self.path), log)

    def fileno(self) -> int:
        """For poll; -1 while it makes no sense."""
        return self._listener.fileno()

    def serve(self) -> None:
        """Answer who waits, without waiting for who dawdles: that one is hung up on in the end."""
        now = time.monotonic()
        for peer in self._listener.accept():
            peer.setblocking(False)
            self._peers.append((peer, now + _PATIENCE_S))
        while len(self._peers) > _PEERS_MOST:
            self._peers.pop(0)[0].close()
        for entry in self._peers[:]:
            peer, until = entry
            if self._heard(peer) or now > until:
                self._peers.remove(entry)
                peer.close()

    def _heard(self, peer: socket.socket) -> bool:
        try:
            word = peer.recv(_MOST).decode("utf-8", "replace").strip()
            peer.sendall(json.dumps(self._answer(word)).encode() + b"\n")
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    @property
    def hurried(self) -> bool:
        """Whether somebody is there who has said nothing yet: `serve` again soon."""
        return bool(self._peers)

    def remove(self) -> None:
        """The path goes, before the process ends without a `close`. Any thread."""
        self._listener.remove()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        for peer, _ in self._peers:
            peer.close()
        self._peers.clear()


class Operators:
    """The control socket of a program whose cores are its own threads: it says how it is. The main
    thread waits here for what the server has for it, and for who asks."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._socket: ControlSocket | None = None
        if not server.http_port:
            return
        try:
            self._socket = ControlSocket(server.http_port, self._answer, self._warn)
        except (OSError, ControlError) as error:
            server.setup.log("debug", f"`tpc-server status` will not work: {error}")

    def _warn(self, text: str) -> None:
        self._server.setup.log("warning", text)

    def wait(self, timeout_ms: int) -> None:
        """Until something worth a look happened, or the time is up."""
        hurried = self._socket is not None and self._socket.hurried
        poll = select.poll()
        poll.register(self._server.wake_fileno(), select.POLLIN)
        asked = self._socket.fileno() if self._socket is not None else -1
        if asked >= 0:
            poll.register(asked, select.POLLIN)
        poll.poll(_SOON_MS if hurried else timeout_ms)
        self._server.wait_event(0)
        if self._socket is not None:
            self._socket.serve()

    def close(self) -> None:
        """Nobody can ask any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _answer(self, word: str) -> dict[str, Any]:
        state = LEAVING if self._server.draining else SERVING
        about = state_of(self._server, {os.getpid(): state})
        if word == "status":
            return {"ok": True, **about}
        if word == "reload":
            why = "this server runs in-process: it cannot be reloaded, only restarted"
            return {"ok": False, "error": why, **about}
        return {"ok": False, "error": f"unknown command {word[:64]!r}"}


def state_of(server: Any, processes: dict[int, str]) -> dict[str, Any]:
    """What `status` says of a server, in whichever mode it is. `processes`: pid -> what it does."""
    draining = server.draining
    return {
        "mode": server.mode, "ready": server.ready and not draining, "draining": draining,
        "inflight": server.inflight(), "pids": list(processes),
        "processes": [{"pid": pid, "state": state} for pid, state in processes.items()],
    }  # fmt: skip


def ask(port: int, word: str, timeout_s: float = 30.0) -> dict[str, Any]:
    """What the server on `port` answers to a command. Raises ControlError."""
    path = folder() / f"{port}.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            _connect(sock, str(path), timeout_s)
            sock.sendall(word.encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                piece = sock.recv(_MOST)
                if not piece:
                    break
                data += piece
        except OSError as error:
            raise ControlError(
                f"no server answers for port {port} at {path}: {error.strerror or error}"
                " (one on a UNIX socket cannot be asked)"
            ) from None
    try:
        answer: dict[str, Any] = json.loads(data)
    except ValueError:
        raise ControlError(f"the server at {path} said nothing that can be read") from None
    return answer


def _connect(sock: socket.socket, path: str, timeout_s: float) -> None:
    """As `connect`, which does not wait where many others do already."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return sock.connect(path)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_ASK_S)


def _outcome(port: int, answer: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """What became of the reload that `answer` says has begun: until the new process serves, or it
    is known that it will not."""
    begun = time.monotonic()
    say_at = begun + _SAY_S
    while True:
        try:
            state = ask(port, RELOADING)
        except ControlError as error:
            return {"ok": False, "error": f"the server ended during the reload: {error}"}
        if "running" not in state:  # a server of an older version
            return answer
        if not state.pop("running"):
            return state
        now = time.monotonic()
        if now - begun > _RELOAD_S:
            why = f"the new process does not serve yet after {_RELOAD_S:.0f} s; it is waited for"
            return {**state, "ok": False, "error": why}
        if now >= say_at:
            say_at = now + 5 * _SAY_S
            say(f"the new process is starting ({now - begun:.0f} s)")
        time.sleep(_ASK_S)


def main(command: str, argv: list[str], program: str = "tpc-server") -> int:
    """`tpc-server reload|status [--port N]`; the exit status."""
    import argparse

    parser = argparse.ArgumentParser(
        prog=f"{program} {command}",
        description={
            "reload": "Replace a running server's frontend by a fresh one; no request is lost."
            " Waits until the new one serves, and fails where it does not.",
            "status": "Say how a running server is: ready or draining, requests, processes.",
        }[command],
    )
    parser.add_argument("--port", type=int, default=30000, help="its port (default 30000)")
    given = parser.parse_args(argv)
    try:
        answer = ask(given.port, command)
        if command == "reload" and answer.get("ok"):
            answer = _outcome(given.port, answer, lambda text: tell(f"{program}: {text}"))
    except ControlError as error:
        tell(f"tpc-server: error: {error}")
        return 1
    print(json.dumps(answer))
    return 0 if answer.get("ok") else 1
