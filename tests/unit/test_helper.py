"""Helper threads: results, cancelling, two lanes, an end that waits for nobody."""

from __future__ import annotations

import gc
import os
import select
import threading
import time
import weakref

import pytest

from tests.stress.clock import until
from tpc_server.contract.errors import BadRequest
from tpc_server.helper import Helper
from tpc_server.routes.beside import BesideHandlers


class Gate:
    """Work that says when it has begun and waits to be let go on."""

    def __init__(self) -> None:
        self.begun: dict[str, threading.Event] = {}
        self.open: dict[str, threading.Event] = {}
        self.ran: list[str] = []

    def expect(self, *names: str) -> None:
        for name in names:
            self.begun[name] = threading.Event()
            self.open[name] = threading.Event()

    def __call__(self, name: str) -> str:
        self.ran.append(name)
        if name in self.begun:
            self.begun[name].set()
            assert self.open[name].wait(30)
        return name.upper()


@pytest.fixture
def gate():
    one = Gate()
    yield one
    for event in one.open.values():
        event.set()


def make():
    return Helper("tpc-test")


def wait(helper: Helper, count: int) -> list:
    found: list = []
    end = time.monotonic() + 30
    while len(found) < count:
        readable, _, _ = select.select([helper.fileno()], [], [], max(end - time.monotonic(), 0))
        assert readable, "no result within 30 s"
        found += helper.results()
    return found


def test_no_thread_before_the_first_job(gate):
    before = set(threading.enumerate())
    helper = make()
    assert set(threading.enumerate()) == before
    helper.call(1, False, gate, "a")
    (thread,) = set(threading.enumerate()) - before
    assert wait(helper, 1) == [(1, "A", None)]
    helper.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_small_job_does_not_wait_behind_a_huge_one(gate):
    gate.expect("huge")
    helper = make()
    helper.call(1, True, gate, "huge")
    assert gate.begun["huge"].wait(30)
    helper.call(2, False, gate, "small")
    assert wait(helper, 1) == [(2, "SMALL", None)]
    gate.open["huge"].set()
    assert wait(helper, 1) == [(1, "HUGE", None)]
    helper.close()


def test_a_cancelled_job_is_never_begun_and_one_at_work_gives_no_result(gate):
    gate.expect("first")
    helper = make()
    helper.call(1, False, gate, "first")
    assert gate.begun["first"].wait(30)
    for tag, name in ((2, "second"), (3, "third")):
        helper.call(tag, False, gate, name)
    assert helper.cancel(1) and helper.cancel(2)
    assert not helper.cancel(2) and not helper.cancel("unknown")
    gate.open["first"].set()
    assert wait(helper, 1) == [(3, "THIRD", None)]
    assert gate.ran == ["first", "third"]
    helper.close()


def test_what_a_job_was_given_is_let_go_when_it_is_cancelled():
    class Text(str):
        pass

    gate = Gate()
    gate.expect("first")
    helper = make()
    helper.call(1, False, gate, "first")
    assert gate.begun["first"].wait(30)
    text = Text("x" * 100)
    gone = weakref.ref(text)
    helper.call(2, False, gate, text)
    del text
    helper.cancel(2)
    gc.collect()  # an object that another thread let go of is freed by its owner a little later
    assert gone() is None
    gate.open["first"].set()
    helper.close()


def test_an_exception_is_a_result():
    def work(value: int) -> float:
        return 1 / value

    helper = make()
    helper.call(1, False, work, 0)
    helper.call(2, False, work, 2)
    (first, second) = wait(helper, 2)
    assert first[0] == 1 and isinstance(first[2], ZeroDivisionError)
    assert second == (2, 0.5, None)
    helper.close()


def test_an_exception_holds_nothing_when_the_handler_has_run_again():
    """No collector runs while requests are served: a trace that holds its own frame stays."""

    class Refused(BadRequest):
        pass

    handlers = object.__new__(BesideHandlers)
    gc.collect()
    gc.disable()
    try:
        helper = make()

        def refuse():
            raise Refused("no")

        helper.call("a", False, refuse)
        ((_, value, error),) = wait(helper, 1)
        gone = weakref.ref(error)
        handlers._outcome = (value, error)
        del error
        try:
            handlers.read(None, None)
        except Refused:
            pass
        helper.close()
        # The thread that made it has the last word on it, when it ends.
        assert until(lambda: gone() is None, 20)
    finally:
        gc.enable()


def test_close_waits_for_nobody_and_the_descriptor_lives_as_long_as_it_is_needed(gate):
    gate.expect("first")
    before = set(threading.enumerate())
    helper = make()
    helper.call(1, False, gate, "first")
    helper.call(2, False, gate, "second")
    (thread,) = set(threading.enumerate()) - before
    assert gate.begun["first"].wait(30)
    fd = helper.fileno()
    helper.close()  # the test's time-out is the check
    del helper
    os.fstat(fd)  # the thread will still write to it
    gate.open["first"].set()
    thread.join(30)
    assert not thread.is_alive()
    assert gate.ran == ["first"]
