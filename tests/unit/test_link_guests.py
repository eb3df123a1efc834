"""Who joins a scheduler from outside: what is asked of it, and how long it is waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_port import plan_of
from tpc_server.link import guests as guests_module
from tpc_server.link import messages as link_messages
from tpc_server.link import protocol
from tpc_server.link.attached import describe
from tpc_server.link.guests import GUESTS, Guests
from tpc_server.link.hub import Hub
from tpc_server.link.messages import Channel, LinkClosed
from tpc_server.mesh import Mesh

pytestmark = pytest.mark.timeout(60)


class Door:
    """The scheduler's side, and its log."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = str(path)
        self.said: list[str] = []
        self.hub = Hub(lambda: self.guests.tend())
        self.guests = Guests(self.hub, self.path, config, 5.0, self.said.append)
        self.hub.extra.append(self.guests)

    def knock(self) -> Channel:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        return Channel(sock)

    def come(self) -> tuple[Channel, Mesh]:
        """All the way in."""
        channel = self.knock()
        channel.send({"hello": protocol.hello()})
        assert "config" in self.hear(channel)
        mesh = Mesh(plan_of("1"), 64, 64, 64)
        about, fds = describe(mesh)
        count = len(self.guests.links)
        assert channel.send({"mesh": about}, fds)
        while len(self.guests.links) == count:
            self.hub.wait(20)
        return channel, mesh

    def hear(self, channel: Channel) -> dict[str, Any]:
        while (message := channel.poll()) is None:
            self.hub.wait(5)
        return message

    def hung_up(self, channel: Channel) -> None:
        with pytest.raises(LinkClosed):
            while True:
                self.hear(channel)
        channel.close()


@pytest.fixture
def door(tmp_path):
    made = Door(tmp_path / "s", {"a": 1})
    yield made
    made.hub.close()
    made.guests.close()
    assert not made.hub.coming and not made.hub.links


def test_they_speak_first_and_then_are_told(door):
    channel, mesh = door.come()
    assert not door.hub.coming and len(door.hub.links) == 1
    channel.close()
    while door.guests.links:
        door.hub.wait(20)
    assert ["has left" in line for line in door.said] == [True]
    mesh.close()


@pytest.mark.parametrize(
    "message",
    [
        {"hello": ["0.00000000", "0.0.1"]},
        {"hello": 1},
        {"hello": ["a"]},
        {"hello": ["a", 1]},
        {"ready": True},
        {"mesh": {}},
    ],
)
def test_another_version_is_refused_on_both_sides(door, message):
    """Before it was told anything, and before its memory is looked at."""
    channel = door.knock()
    assert channel.send(message)
    if "hello" in message:
        said = door.hear(channel)
        assert list(said) == ["refused"] and "protocol" in said["refused"]
        assert said["refused"] in door.said[0]
    door.hung_up(channel)
    (line,) = door.said
    assert "could not be attached" in line and "protocol" in line
    if message == {"hello": ["0.00000000", "0.0.1"]}:
        assert "0.0.1" in line and protocol.hello()[0] in line


def test_a_version_is_one_line_whatever_it_says(door):
    channel = door.knock()
    assert channel.send({"hello": ["a\nb" * 1000, "\ud800"]})
    door.hear(channel)
    (line,) = door.said
    assert "\n" not in line and len(line) < 500
    line.encode()
    channel.close()


def test_who_says_nothing_is_hung_up_on(door, monkeypatch):
    monkeypatch.setattr(guests_module, "_HELLO_S", -1.0)
    door.hung_up(door.knock())
    assert door.said == ["a frontend could not be attached: silence"]


def test_who_says_no_more_is_hung_up_on(door, monkeypatch):
    """After its first word, with what it was given."""
    monkeypatch.setattr(guests_module, "START_S", -1.0)
    channel = door.knock()
    channel.send({"hello": protocol.hello()})
    door.hung_up(channel)
    assert door.said == ["a frontend could not be attached: silence"]


def test_who_looks_whether_somebody_listens_is_no_news(door):
    door.knock().close()
    door.hub.wait(100)
    while door.hub.coming:
        door.hub.wait(20)
    assert not door.said


def test_so_many_and_no_more(door):
    """Those who say nothing take the places of nobody for long; the rest are told why not."""
    inside = [door.come() for _ in range(2)]
    silent = [door.knock() for _ in range(GUESTS - 2)]
    while len(door.hub.coming) < GUESTS - 2:
        door.hub.wait(20)
    late = door.knock()
    assert "no more" in door.hear(late)["refused"]
    door.hung_up(late)
    silent.pop().close()
    while len(door.hub.coming) > GUESTS - 3:
        door.hub.wait(20)
    inside.append(door.come())
    slots = [link.slot for link in door.guests.links]
    assert len(set(slots)) == 3
    for channel in silent:
        channel.close()
    for channel, mesh in inside:
        channel.close()
        mesh.close()


def test_nobody_who_does_not_read_is_waited_for(tmp_path, monkeypatch):
    """What it is to be told is more than a socket holds; the scheduler's call goes on."""
    monkeypatch.setattr(link_messages, "_SEND_S", 1000.0)
    door = Door(tmp_path / "s", {"text": "x" * 900_000})
    channel = door.knock()
    channel.send({"hello": protocol.hello()})
    while not [one for one in door.guests._coming if one.greeted]:
        door.hub.wait(20)
    door.hub.recv(1)
    assert len(door.hear(channel)["config"]["text"]) == 900_000  # as it reads it
    channel.close()
    door.hub.close()
    door.guests.close()


def test_descriptors_that_do_not_fit_the_mesh_are_refused(door):
    channel = door.knock()
    channel.send({"hello": protocol.hello()})
    door.hear(channel)
    before = len(os.listdir("/proc/self/fd"))
    mesh = Mesh(plan_of("1"), 64, 64, 64)
    about, fds = describe(mesh)
    assert channel.send({"mesh": about}, fds[:-1])
    door.hung_up(channel)
    (line,) = door.said
    assert "descriptors came with a mesh" in line
    mesh.close()
    assert len(os.listdir("/proc/self/fd")) < before


def test_the_facts_are_of_all_that_both_ends_rely_on():
    found = "\n".join(protocol.facts())
    for fact in ("wire.BATCH=", "mesh.STOPPED=", "counter heartbeat_ns", "option stall_s",
                 "ServerArgs.port", "ModelConfig.context_len", "line ", "bell "):  # fmt: skip
        assert fact in found


def test_a_changed_fact_is_another_protocol(monkeypatch):
    before = protocol.hello()
    facts = protocol.facts()
    monkeypatch.setattr(protocol, "facts", lambda: [*facts, "option new"])
    assert protocol.hello()[0] != before[0]
    assert "both must be of one version" in protocol.refusal(before)
    assert protocol.refusal(protocol.hello()) == ""
