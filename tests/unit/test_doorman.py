"""Who answers while the model is loaded: limits, silent visitors, the end."""

from __future__ import annotations

import socket

import pytest

from tests.http_client import Client
from tpc_server import doorman
from tpc_server.doorman import Doorman
from tpc_server.listen import bind


@pytest.fixture
def bound():
    made = bind("127.0.0.1", 0, None, 2, 16)
    yield made
    made.close()


@pytest.fixture
def door(bound):
    made = Doorman([sock for group in bound.groups for sock in group])
    yield ("127.0.0.1", bound.port)
    made.leave()


def test_every_request_is_told_to_come_again(door):
    for method, path in (("GET", "/health"), ("POST", "/generate"), ("GET", "/nowhere")):
        with Client(door) as client:
            answer = client.call(method, path, {} if method == "POST" else None)
            assert answer.status == 503 and answer.headers["connection"] == "close"
            assert answer.json() == {"error": {"message": doorman.LOADING, "code": 503}}
            assert client.sock.recv(1) == b""


def test_a_head_in_pieces_and_one_without_end(door):
    with Client(door) as client:
        for byte in b"GET / HTTP/1.1\r\n\r\n":
            client.sock.sendall(bytes([byte]))
        assert client.head()[0] == 503
    with Client(door) as client:
        client.sock.sendall(b"x" * doorman._HEAD_BYTES)
        assert client.head()[0] == 503


def test_visitors_are_bounded_and_the_oldest_goes(door, monkeypatch):
    monkeypatch.setattr(doorman, "_MOST", 3)
    visitors = [Client(door) for _ in range(4)]
    assert visitors[0].sock.recv(1) == b""
    assert visitors[3].call("GET", "/").status == 503
    for visitor in visitors:
        visitor.close()


def test_who_says_nothing_is_sent_away(door, monkeypatch):
    monkeypatch.setattr(doorman, "_HEAD_S", 0.0)
    with Client(door) as client:
        assert client.sock.recv(1) == b""


def test_leaving_closes_what_is_open_and_keeps_the_listeners(bound):
    made = Doorman([sock for group in bound.groups for sock in group])
    silent = Client(("127.0.0.1", bound.port))
    with Client(("127.0.0.1", bound.port)) as client:
        assert client.call("GET", "/").status == 503
    made.leave()
    made.leave()
    # Accepted by the doorman or still in the backlog: a later one certainly is.
    late = Client(("127.0.0.1", bound.port))
    taken = []
    for (sock,) in bound.groups:
        try:
            while True:
                taken.append(sock.accept()[0])
        except BlockingIOError:
            pass
    assert late.sock.getsockname() in [sock.getpeername() for sock in taken]
    for sock in (silent.sock, late.sock, *taken):
        sock.close()


def test_a_unix_sockets_file_goes_with_it(tmp_path):
    path = tmp_path / "socket"
    made = bind("", 0, str(path), 1, 4)
    assert made.port == 0 and path.is_socket()
    made.close()
    assert not path.exists()
    path.touch()  # another's now
    made.close()
    assert path.exists()
    with pytest.raises(OSError):
        socket.socket(socket.AF_UNIX).connect(str(path))
