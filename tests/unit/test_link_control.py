"""The operators' socket: who dawdles there holds up nobody."""

from __future__ import annotations

import contextlib
import json
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


def test_a_process_that_ends_leaves_no_path(opened: control.ControlSocket) -> None:
    """Not even where nothing is closed: another thread may be waiting there."""
    with _silent(opened) as there:
        opened.remove()
        assert not opened.path.exists()
        there.sendall(b"status\n")
        opened.serve()
        assert there.recv(100) == b'{"ok": true, "word": "status"}\n'
    opened.remove()


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


# -- reloads ---------------------------------------------------------------------------


class _Server:
    """One that answers the commands in turn, the last one for ever."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self.left = list(answers)
        self.words: list[str] = []
        self.control = control.ControlSocket(4711, self._answer, print)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _answer(self, word: str) -> dict[str, object]:
        self.words.append(word)
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def _run(self) -> None:
        while not self._over.wait(0.002):
            self.control.serve()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.control.close()


_BEGUN = {"ok": True, "pids": [1]}
_RUNS = {"ok": True, "running": True, "pids": [1, 2]}


@pytest.mark.parametrize(
    ("after", "status", "said"),
    [
        ([_RUNS, _RUNS, {"ok": True, "running": False, "pids": [2]}], 0, {"ok": True, "pids": [2]}),
        (
            [_RUNS, {"ok": False, "running": False, "pids": [1], "error": "it has ended"}],
            1, {"ok": False, "pids": [1], "error": "it has ended"},
        ),
        ([{"ok": False, "error": "unknown command 'reloading'"}], 0, _BEGUN),  # an older server
    ],
)  # fmt: skip
def test_a_reload_is_over_when_its_outcome_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    after: list[dict[str, object]], status: int, said: dict[str, object],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(control, "_ASK_S", 0.0)
    monkeypatch.setattr(control, "_SAY_S", 0.0)
    server = _Server(_BEGUN, *after)
    try:
        assert control.main("reload", ["--port", "4711"], "tpc") == status
    finally:
        server.close()
    out, err = capsys.readouterr()
    assert json.loads(out) == said
    assert server.words == ["reload"] + ["reloading"] * len(after)
    assert ("tpc: the new process is starting" in err) == (len(after) > 1)


def test_a_reload_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(control, "_RELOAD_S", 0.0)
    server = _Server(_BEGUN, _RUNS)
    try:
        assert control.main("reload", ["--port", "4711"]) == 1
    finally:
        server.close()
    assert "does not serve yet" in json.loads(capsys.readouterr().out)["error"]


def test_a_server_that_ends_during_a_reload_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(control, "ask", lambda port, word: _BEGUN if word == "reload" else _gone())
    assert control.main("reload", ["--port", "4711"]) == 1
    assert "ended during the reload" in json.loads(capsys.readouterr().out)["error"]


def _gone() -> dict[str, object]:
    raise control.ControlError("nobody")


def test_who_comes_among_many_waits_for_its_turn(
    opened: control.ControlSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler is in a step, and the queue of the socket is full."""
    others = []
    with contextlib.ExitStack() as stack:
        while True:
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            try:
                one.connect(str(opened.path))
            except BlockingIOError:
                break
            others.append(one)
        assert len(others) > 8
        answers: list[object] = []
        tried = threading.Event()
        monkeypatch.setattr("time.sleep", lambda _: tried.set())
        thread = threading.Thread(target=lambda: answers.append(control.ask(4711, "status", 20)))
        thread.start()
        assert tried.wait(10)
        while not answers:
            opened.serve()
        thread.join()
        assert answers == [{"ok": True, "word": "status"}]
