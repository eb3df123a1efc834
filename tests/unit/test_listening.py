"""UNIX sockets at a path: whose the path is, and what happens without descriptors."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpc_server.link import control, listening
from tpc_server.link.hub import Hub
from tpc_server.link.listening import Listener
from tpc_server.listen import UnixPath

pytestmark = pytest.mark.timeout(60)


def test_a_live_socket_is_never_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    first = UnixPath(path, 1, 0o600)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    queue = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for sock in queue:  # its process is stopped: nobody accepts, and the queue is full
        sock.setblocking(False)
        sock.connect_ex(path)
    with pytest.raises(OSError, match="another process listens there") as caught:
        UnixPath(path, 1, 0o600)
    assert caught.value.errno == errno.EADDRINUSE
    for sock in queue:
        sock.close()
    first.close()
    assert not os.path.exists(path)


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    (tmp_path / "link").symlink_to(file)
    for name in ("file", "link", "."):
        with pytest.raises(OSError):
            UnixPath(str(tmp_path / name), 1)
    assert file.read_text() == "kept" and (tmp_path / "link").is_symlink()


def test_the_path_goes_although_the_socket_is_closed(tmp_path: Path) -> None:
    """By a core that drained."""
    path = tmp_path / "s"
    made = UnixPath(str(path), 1)
    made.sock.close()
    assert path.exists()
    made.close()
    assert not path.exists()


def test_only_the_own_path_is_removed(tmp_path: Path) -> None:
    """Somebody cleaned up under us, and another has begun there."""
    path = tmp_path / "s"
    first = UnixPath(str(path), 1)
    path.unlink()
    second = UnixPath(str(path), 1)
    first.close()
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_of_many_that_start_at_once_one_has_it(tmp_path: Path) -> None:
    """Each finds the stale socket of one that was killed; none takes that of another."""
    for turn in range(20):
        path = str(tmp_path / f"s{turn}")
        UnixPath(path, 1).sock.close()
        won, lost = _race(path, 6)
        assert len(won) == 1 and len(lost) == 5
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        won[0].close()


def _race(path: str, count: int) -> tuple[list[UnixPath], list[OSError]]:
    won: list[UnixPath] = []
    lost: list[OSError] = []
    together = threading.Barrier(count)

    def begin() -> None:
        together.wait(20)
        try:
            won.append(UnixPath(path, 16))  # the others' looks wait there, too
        except OSError as error:
            lost.append(error)

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won, lost


@contextmanager
def _no_descriptors():
    """Not one more can be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = [os.dup(0)]
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    while filled[-1] < highest:
        filled.append(os.dup(0))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 1, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in filled:
            os.close(fd)


def test_without_descriptors_it_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll would say again and again that somebody waits: a processor for nothing."""
    said: list[str] = []
    made = Listener(str(tmp_path / "s"), said.append)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(made.path)
        with _no_descriptors():
            for _ in range(5):
                assert list(made.accept()) == []
                assert made.fileno() == -1
            monkeypatch.setattr(listening, "_REST_S", 0.0)
            made._rest_until = 1e-9
            assert list(made.accept()) == []  # tried again, and told once
        assert len(said) == 1 and "nobody can be let in" in said[0] and "open files" in said[0]
        (peer,) = made.accept()  # who waited is let in after all
        peer.close()
        assert made.fileno() >= 0
    made.close()
    assert made.fileno() == -1 and list(made.accept()) == []


class _Counted:
    """A socket that is listened on, and how often it was seen to."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.times = 0

    def fileno(self) -> int:
        return self.listener.fileno()

    def serve(self) -> None:
        self.times += 1
        for peer in self.listener.accept():
            peer.close()


def test_a_scheduler_sleeps_although_nobody_can_be_let_in(tmp_path: Path) -> None:
    made = _Counted(Listener(str(tmp_path / "s"), lambda text: None))
    hub = Hub(lambda: None)
    hub.extra.append(made)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(made.listener.path)
        with _no_descriptors():
            assert not hub.wait(600)
    assert 1 <= made.times < 20
    hub.close()
    made.listener.close()


def test_an_operators_socket_rests_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    wake = os.eventfd(0)
    looked: list[int] = []
    said: list[str] = []
    server = SimpleNamespace(
        http_port=4711, mode="in-process", ready=True, wake_fileno=lambda: wake,
        wait_event=looked.append, setup=SimpleNamespace(log=lambda level, text: said.append(text)),
    )  # fmt: skip
    operators = control.Operators(server)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "tpc_server" / "4711.sock"))
        with _no_descriptors():
            operators.wait(1000)
            began = os.times().elapsed
            for _ in range(3):
                operators.wait(200)
            assert os.times().elapsed - began > 0.3  # it slept, each time
        assert len(said) == 1
    operators.close()
    os.close(wake)


def test_a_flood_is_let_in_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_ACCEPT_MOST", 2)
    made = Listener(str(tmp_path / "s"), print)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(5)]
    for client in clients:
        client.connect(made.path)
    rounds = [list(made.accept()) for _ in range(4)]
    assert [len(peers) for peers in rounds] == [2, 2, 1, 0]
    for sock in (*clients, *[peer for peers in rounds for peer in peers]):
        sock.close()
    made.close()
