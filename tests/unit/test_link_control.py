"""The operators' socket: who dawdles there holds up nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpc_server.link import control

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[control.ControlSocket]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(control, "_PATIENCE_S", 1000.0)
    made = control.ControlSocket(4711, lambda word: {"ok": True, "word": word}, print)
    yield made
    made.close()


def _silent(opened: control.ControlSocket) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(str(opened.path))
    return sock


def test_a_caller_that_says_nothing_holds_up_nobody(opened: control.ControlSocket) -> None:
    with _silent(opened) as silent:
        opened.serve()
        assert opened.hurried
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(control.ask(4711, "status", 10)))
        thread.start()
        while not answers:
            opened.serve()
        thread.join()
        assert answers == [{"ok": True, "word": "status"}]
        silent.sendall(b"reload\n")
        while opened.hurried:
            opened.serve()
        assert silent.recv(100) == b'{"ok": true, "word": "reload"}\n'


def test_it_is_hung_up_on_in_the_end(
    opened: control.ControlSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_PATIENCE_S", -1.0)
    with _silent(opened) as silent:
        opened.serve()
        assert not opened.hurried and silent.recv(100) == b""


def test_closing_hangs_up(opened: control.ControlSocket) -> None:
    with _silent(opened) as silent:
        opened.serve()
        opened.close()
        assert silent.recv(100) == b""


def test_who_says_nothing_longest_makes_room(opened: control.ControlSocket) -> None:
    first = _silent(opened)
    opened.serve()
    others = []
    for _ in range(control._PEERS_MOST):
        others.append(_silent(opened))
        opened.serve()
    assert first.recv(100) == b""
    others[-1].sendall(b"status\n")
    while len(opened._peers) == control._PEERS_MOST:
        opened.serve()
    assert others[-1].recv(100) == b'{"ok": true, "word": "status"}\n'
    for sock in (first, *others):
        sock.close()


def test_a_server_that_answers_keeps_its_socket(opened: control.ControlSocket) -> None:
    """Another one on the same port of another address, or in another network namespace."""
    with pytest.raises(OSError, match="another process listens there"):
        control.ControlSocket(4711, lambda word: {}, print)
    assert opened.path.exists()
    opened.close()
    assert not opened.path.exists()


def test_what_a_killed_server_has_left_is_taken(opened: control.ControlSocket) -> None:
    opened._listener._place.sock.close()
    assert opened.path.exists()
    second = control.ControlSocket(4711, lambda word: {"word": word}, print)
    opened.close()  # not its path any more
    assert second.path.exists()
    second.close()
    assert not second.path.exists()
