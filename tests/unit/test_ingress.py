"""Time-outs of what arrives, with a clock of the test's own; accepting without descriptors."""

from __future__ import annotations

import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from tpc_server import frame, reactor
from tpc_server.contract.errors import native_error_body
from tpc_server.counters import Counters
from tpc_server.stages.accept import Acceptor
from tpc_server.stages.ingress import IngressStage

SECOND = 1_000_000_000
POST = b"POST /generate HTTP/1.1\r\nHost: x\r\n"


class Poller:
    """Knows what is watched."""

    def __init__(self):
        self.handlers = {}

    def register(self, fd, mask, handler):
        assert fd not in self.handlers
        self.handlers[fd] = handler

    def modify(self, fd, mask):
        self.mask = mask

    def unregister(self, fd):
        self.handlers.pop(fd, None)  # as the real one: unknown descriptors are ignored


class Writer:
    def __init__(self):
        self.sent = b""

    def write(self, data):
        self.sent += data

    def answer(self, data, end):
        self.sent += data


class Router:
    def __init__(self):
        self.requests = []

    def dispatch(self, conn, request, close):
        self.requests.append(request)

    def refuse_early(self, parser):
        return None

    def extra_lines(self, headers):
        return b""

    def error_body(self, path, message, status):
        return native_error_body(message, status)


@pytest.fixture
def peer():
    """A client of an ingress stage: `tick` moves the clock, `send` is read at once."""
    setup = SimpleNamespace(
        access_log=False,
        socket_buffer_bytes=0, max_connections=9, max_head_bytes=4096, max_body_bytes=1 << 20,
        header_timeout_ns=10 * SECOND, body_timeout_ns=60 * SECOND, idle_timeout_ns=75 * SECOND,
        linger_ns=SECOND,
    )  # fmt: skip
    router = Router()
    poller = Poller()
    stage = IngressStage(0, 1, setup, Counters(), poller, [], router)
    stage.acceptor.report = lambda n: None
    writer = Writer()
    told: list[Any] = []
    stage.detok_port = SimpleNamespace(send=told.append)
    stage.egress_stage = SimpleNamespace(
        attach=lambda *a: writer, close_after_flush=lambda key: None, drop=lambda key: None
    )
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    seconds = [0]
    stage.on_tick(SECOND)
    stage._adopt(ours)
    (conn,) = stage.connections.values()

    def tick(count):
        for _ in range(count):
            pause(1)

    def pause(count):
        seconds[0] += count
        stage.on_tick((seconds[0] + 1) * SECOND)

    def send(data):
        for at in range(0, len(data), 65536):
            theirs.sendall(data[at : at + 65536])
            stage.readable(conn, reactor.IN)

    def answered(close=False):
        stage.inbox.append((frame.I_ANSWERED, conn.key, close))
        stage.poll(10)

    def end():
        theirs.shutdown(socket.SHUT_WR)
        stage.readable(conn, reactor.IN | reactor.RDHUP)

    yield SimpleNamespace(
        poller=poller,
        told=told,
        end=end,
        tick=tick,
        pause=pause,
        send=send,
        answered=answered,
        writer=writer,
        conn=conn,
        requests=router.requests,
    )
    stage.abandon = None
    theirs.close()
    ours.close()


def test_a_half_closed_peer_is_probed_by_who_writes_its_answer(peer):
    """What this core wrote could come to the writing core after the beginning of the answer."""
    peer.send((POST + b"Content-Length: 2\r\n\r\n{}") * 2)
    peer.end()
    probe = (frame.D_PROBE, peer.conn.key)
    assert peer.told == [probe] and len(peer.requests) == 1
    peer.answered()
    assert peer.told == [probe, probe] and len(peer.requests) == 2
    assert peer.writer.sent == b""


def test_a_dripping_head_is_given_up(peer):
    for byte in POST[:9]:
        peer.send(bytes([byte]))
        peer.tick(1)
        assert not peer.writer.sent
    peer.tick(2)
    assert b" 408 " in peer.writer.sent


def test_time_in_which_the_core_did_not_turn_does_not_count(peer):
    peer.send(POST[:9])
    peer.tick(4)
    peer.pause(100)
    peer.tick(5)
    assert not peer.writer.sent
    peer.tick(2)
    assert b" 408 " in peer.writer.sent


def test_blank_lines_before_a_head_drip_in_vain(peer):
    for _ in range(9):
        peer.send(b"\r\n")
        peer.tick(1)
    peer.tick(2)
    assert b" 408 " in peer.writer.sent


@pytest.mark.parametrize(
    ("head", "drip"),
    [
        (b"Content-Length: 1000\r\n\r\n", b"a"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        (b"Transfer-Encoding: chunked\r\n\r\n1;", b"a"),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["length", "chunks", "extension", "trailers"],
)
def test_a_dripping_body_is_given_up(peer, head, drip):
    """One piece a few seconds would hold the connection for hours if each renewed the time-out."""
    peer.send(POST + head)
    for _ in range(10):
        peer.send(drip)
        peer.tick(6)
        assert not peer.writer.sent
    peer.tick(1)
    assert b" 408 " in peer.writer.sent
    assert not peer.requests


def test_a_large_body_has_its_time_out_for_every_64_kib(peer):
    peer.send(POST + b"Content-Length: 300000\r\n\r\n")
    for _ in range(4):
        for _ in range(5):
            peer.send(b"a" * 14000)
            peer.tick(11)
    assert not peer.writer.sent
    peer.send(b"a" * 20000)
    assert len(peer.requests[0].body) == 300000


def test_a_body_behind_a_request_in_flight_gets_its_time_when_it_is_its_turn(peer):
    peer.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" + POST + b"Content-Length: 5\r\n\r\na")
    peer.tick(1000)
    assert not peer.writer.sent
    peer.answered()
    for _ in range(3):
        peer.tick(19)
        peer.send(b"a")
    assert not peer.writer.sent
    peer.tick(4)
    assert b" 408 " in peer.writer.sent


def test_pipelined_bodies_are_bounded_in_bytes(peer):
    """The rest stays with the client until some are answered."""
    for _ in range(3):
        peer.send(POST + b"Content-Length: 600000\r\n\r\n" + b"a" * 600_000)
    assert peer.conn.mask == 0 and len(peer.conn.queue) == 2
    peer.answered()
    assert peer.conn.mask == 0 and len(peer.conn.queue) == 1
    peer.answered()
    assert peer.conn.mask == peer.poller.mask == reactor.IN | reactor.RDHUP
    peer.answered()
    assert len(peer.requests) == 3


def test_the_next_body_begins_anew(peer):
    for _ in range(2):
        peer.send(POST + b"Content-Length: 2\r\n\r\na")
        peer.tick(50)
        peer.send(b"a")
        peer.answered()
    assert len(peer.requests) == 2 and not peer.writer.sent


def test_accepting_pauses_without_descriptors_and_goes_on():
    logged = []
    setup = SimpleNamespace(log=lambda *a, **k: logged.append(a))
    poller = Poller()
    queue: list[Any] = [OSError(errno.EMFILE, "too many open files")]

    class Listener(socket.socket):
        def accept(self):
            if not queue:
                raise BlockingIOError
            one = queue.pop(0)
            if isinstance(one, OSError):
                raise one
            return one, None

    listener = Listener()
    adopted: list[Any] = []
    fd = listener.fileno()
    acceptor = Acceptor(0, setup, Counters(), poller, [listener], adopted.append)
    acceptor.loads = SimpleNamespace(give=lambda n: None)
    acceptor.on_tick(SECOND)
    acceptor.start()
    acceptor.on_events(fd, reactor.IN)
    assert not poller.handlers and len(logged) == 1  # level-triggered: watching on would spin
    acceptor.on_tick(SECOND + SECOND // 5)
    assert not poller.handlers
    queue += ["socket", OSError(errno.ECONNABORTED, "")]
    acceptor.on_tick(2 * SECOND)
    assert list(poller.handlers) == [fd]
    acceptor.on_events(fd, reactor.IN)
    assert adopted == ["socket"]
    acceptor.on_events(fd, reactor.IN)  # an aborted connection stops nothing
    queue.append(OSError(errno.EMFILE, ""))
    acceptor.on_events(fd, reactor.IN)
    acceptor.stop()
    acceptor.on_tick(9 * SECOND)
    assert not poller.handlers  # not after it was told to stop
    listener.close()
