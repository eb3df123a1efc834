"""Seats of frontend processes: what the machine refuses is no fault of the scheduler's calls."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tpc_server.link.children import Seat, StartError
from tpc_server.link.hub import Hub

pytestmark = pytest.mark.timeout(20)


def _seat(said: list[str]) -> Seat:
    return Seat(Hub(lambda: None), [], {}, ["/no/such/python"], 5.0, said.append)


def _no_descriptors(*_: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _break(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "descriptors":
        monkeypatch.setattr(socket, "socketpair", _no_descriptors)


@pytest.mark.parametrize("what", ["program", "descriptors"])
@pytest.mark.parametrize("call", [Seat.tend, Seat.reload])
def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Seat], Any], what: str
) -> None:
    _break(monkeypatch, what)
    said: list[str] = []
    seat = _seat(said)
    assert not call(seat)
    (line,) = said
    assert "did not start" in line
    assert not seat.reloading
    before = seat.restarts
    seat.tend()  # not yet
    assert seat.restarts == before
    seat._retry_at = 0.0
    seat.tend()
    assert seat.restarts == before + 1 and len(said) == 2


@pytest.mark.parametrize("what", ["program", "descriptors"])
def test_the_first_start_says_why(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    _break(monkeypatch, what)
    with pytest.raises(StartError):
        _seat([]).start()
