"""A frontend that says, sends or does what it should not: the end of its link at worst."""

from __future__ import annotations

import os
import resource
import socket
import time
from typing import Any

import pytest

from tests.unit.link_pair import Pair
from tests.unit.test_port import plan_of
from tpc_server.boundary import codec, wire
from tpc_server.link import messages as link_messages
from tpc_server.link.attached import AttachedMesh, describe
from tpc_server.link.hub import Hub
from tpc_server.link.messages import Channel
from tpc_server.mesh import PUSHES_BLOCKED, PUSHES_BLOCKED_NS, Mesh

pytestmark = pytest.mark.timeout(30)
PACK = codec.make_packer()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize(
    "line", [b"[" * 60_000, b'{"a":' * 30_000, b'{"failed": 1}', b"\xff\xfe{}", b'"\\ud800"', b"7"]
)
def test_words_that_make_no_sense_end_the_link_alone(pair, line):
    """Deep nesting is a RecursionError of the reader, not a ValueError."""
    pair.far.sock.sendall(line + b"\n")
    for _ in range(4):
        pair.link.hear()
    assert pair.link.gone or pair.link.failure == "?"


def test_what_a_peer_says_fits_one_line_of_the_log(pair):
    assert pair.far.send({"failed": "a\nb \ud800" + "x" * 10_000})
    pair.link.hear()
    assert pair.link.failure.startswith("a b ?x") and len(pair.link.failure) <= 500


def test_a_request_that_could_not_be_aborted_by_name_ends_its_link(pair):
    """And the death of that is the end of it: its memory is let go of, the others aborted."""
    said: list[Any] = []
    hub = Hub(lambda: said.extend(link.failure for link in hub.links if link.gone))
    hub.add(pair.link)
    pair.request(b"good")
    assert len(hub.recv(64)) == 1
    pair.request(b"\xff\xfe")
    assert hub.recv(64) == [] and pair.link.gone
    hub.tend(now=True)
    assert "cannot be read" in said[-1]
    hub.bury(pair.link)
    assert [codec.unpack(one.header)[1] for one in hub.recv(64)] == ["good"]
    assert not hub.links and pair.link.channel.fileno() == -1


def test_a_link_whose_requests_cannot_be_named_is_let_go_of(pair):
    hub = Hub(lambda: None)
    hub.add(pair.link)
    pair.link._live[b"\xff"] = None
    with pytest.raises(UnicodeDecodeError):
        hub.bury(pair.link)
    assert not hub.links and pair.link.channel.fileno() == -1


def test_counts_that_a_peer_filled_go_round(pair):
    """They are in its memory, and a push that waits adds to them."""
    words = pair.link.words
    words[PUSHES_BLOCKED] = words[PUSHES_BLOCKED_NS] = (1 << 64) - 1
    pair.link._space.wait(0)
    assert words[PUSHES_BLOCKED] == 0


def test_a_doorbell_that_cannot_be_rung_ends_its_link_alone(pair):
    hub = Hub(lambda: None)
    hub.add(pair.link)
    pair.begin()
    bell = pair.link._frames[0]._bell

    class Broken:
        def write(self) -> None:
            raise OSError(9, "Bad file descriptor")

    bell._event = Broken()
    bell._words[bell._at] = 1  # it sleeps
    assert hub.push(wire.HEALTH_ACK, b"", ()) is True
    assert pair.link.gone and "cannot be used" in pair.link.failure


@pytest.mark.parametrize("what", ["pipe", "file"])
def test_a_doorbell_that_could_block_is_refused(what, tmp_path):
    mesh = Mesh(plan_of("1"), 64, 64, 64)
    about, fds = describe(mesh)
    reading, writing = os.pipe()
    other = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    bad = {"pipe": writing, "file": other}[what]
    with pytest.raises(ValueError, match="no eventfd"):
        AttachedMesh(about, [*[os.dup(fd) for fd in fds[:-1]], os.dup(bad)])
    for fd in (reading, writing, other):
        os.close(fd)
    mesh.close()


@pytest.mark.parametrize(
    "change",
    [
        {"tokenize": []},
        {"detok": [7]},
        {"detok": [0] * 1000},
        {"tokenize": [[]]},
        {"detok": {"a": 1}},
    ],
)
def test_stages_that_make_no_sense_are_refused(change):
    mesh = Mesh(plan_of("1"), 64, 64, 64)
    about, fds = describe(mesh)
    with pytest.raises(ValueError, match="its rings cannot be used"):
        AttachedMesh({**about, **change}, [os.dup(fd) for fd in fds])
    mesh.close()


def test_descriptors_that_were_cut_off_end_the_link():
    """At the limit of open files the kernel drops what does not fit, and says so."""
    ours, theirs = socket.socketpair()
    near, far = Channel(ours), Channel(theirs)
    before = len(os.listdir("/proc/self/fd"))
    assert far.send({"mesh": {}}, [0, 0, 0, 0])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    filled = []
    try:
        while (fd := os.dup(0)) < highest:
            filled.append(fd)
        filled.append(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 3, limits[1]))  # room for two of four
        with pytest.raises(link_messages.LinkClosed, match="too many open files"):
            near.wait(5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in filled:
            os.close(fd)
    near.close()
    far.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_descriptors_without_end_are_refused(monkeypatch):
    monkeypatch.setattr(link_messages, "_MOST_FDS", 8)
    ours, theirs = socket.socketpair()
    near, far = Channel(ours), Channel(theirs)
    with pytest.raises(link_messages.LinkClosed, match="without end"):
        for _ in range(4):
            socket.send_fds(far.sock, [b" "], [0, 0, 0])
            near.poll()
    near.close()
    far.close()


def test_what_is_not_read_at_once_is_sent_later():
    """Who must not wait posts: a restart's first words may be more than a socket holds."""
    ours, theirs = socket.socketpair()
    near, far = Channel(ours), Channel(theirs)
    text = "x" * 900_000
    began = time.monotonic()
    near.post({"config": text}, [0])
    near.post({"drain": 1})
    assert time.monotonic() - began < 4  # `send` would wait for five
    got: list[Any] = []
    while len(got) < 2:
        message = far.poll()
        if message is not None:
            got.append(message)
        assert near.poll() is None
    assert got == [{"config": text}, {"drain": 1}]
    (fd,) = far.take_fds()
    os.close(fd)
    near.close()
    far.close()
