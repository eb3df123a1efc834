"""Where operators reach a running server: `tpc-server reload`, `tpc-server status`.

Owner: the scheduler's thread (the socket), any process (the asking). A UNIX socket in the user's
own folder, named by the port; one line of JSON each way.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_MOST: Final = 4096
_PATIENCE_S: Final = 0.5


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

    def __init__(self, port: int, answer: Callable[[str], dict[str, Any]]) -> None:
        """Raises OSError or ControlError when there can be no socket."""
        self._answer = answer
        self.path = folder() / f"{port}.sock"
        self.path.unlink(missing_ok=True)  # of a server that was killed: the port is ours
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.setblocking(False)
        self._sock.bind(str(self.path))
        os.chmod(self.path, 0o600)
        self._sock.listen(4)

    def fileno(self) -> int:
        """For poll."""
        return self._sock.fileno()

    def serve(self) -> None:
        """Answer who waits; a caller that dawdles is hung up on."""
        while True:
            try:
                peer, _ = self._sock.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(_PATIENCE_S)
                try:
                    word = peer.recv(_MOST).decode("utf-8", "replace").strip()
                    peer.sendall(json.dumps(self._answer(word)).encode() + b"\n")
                except OSError:
                    continue

    def close(self) -> None:
        """Stop listening."""
        self._sock.close()
        self.path.unlink(missing_ok=True)


def ask(port: int, word: str, timeout_s: float = 30.0) -> dict[str, Any]:
    """What the server on `port` answers to a command. Raises ControlError."""
    path = folder() / f"{port}.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(str(path))
            sock.sendall(word.encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                piece = sock.recv(_MOST)
                if not piece:
                    break
                data += piece
        except OSError as error:
            raise ControlError(f"no server answers at {path}: {error}") from None
    try:
        answer: dict[str, Any] = json.loads(data)
    except ValueError:
        raise ControlError(f"the server at {path} said nothing that can be read") from None
    return answer


def main(command: str, argv: list[str]) -> int:
    """`tpc-server reload|status [--port N]`; the exit status."""
    import argparse
    import sys

    parser = argparse.ArgumentParser(
        prog=f"tpc-server {command}",
        description={
            "reload": "Replace a running server's frontend by a fresh one; no request is lost.",
            "status": "Say which frontend processes a running server has.",
        }[command],
    )
    parser.add_argument("--port", type=int, default=30000, help="its port (default 30000)")
    given = parser.parse_args(argv)
    try:
        answer = ask(given.port, command)
    except ControlError as error:
        print(f"tpc-server: error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0 if answer.get("ok") else 1
