"""No message between cores overtakes another one that it depends on."""

from __future__ import annotations

import time
from array import array
from collections import deque
from types import SimpleNamespace

import pytest

from tpc_server import frame
from tpc_server.boundary import messages, wire
from tpc_server.contract.limits import Limits
from tpc_server.core import Core
from tpc_server.counters import Counters
from tpc_server.stages.base import STAMP_BYTES, LocalPort, Outbox, RemotePort
from tpc_server.stages.tokenize import FULL, TokenizeStage


class FakeSender:
    """A ring of a few records."""

    def __init__(self, room=1 << 30):
        self.room = room
        self.posted = []
        self.backlog = False
        self.cap = 1 << 30

    def crowded(self, more):
        return len(self.posted) + more >= self.cap

    def post(self, kind, key, parts):
        if len(self.posted) >= self.room or self.backlog:
            return False
        self.posted.append((kind, key, b"".join(bytes(p) for p in parts)))
        return True

    def messages(self):
        return [frame.decode(payload) for _, _, payload in self.posted]


def test_a_full_ring_holds_back_what_was_sent_after_it_to_any_core():
    full, other = FakeSender(room=1), FakeSender()
    outbox = Outbox()
    to_full, to_other = RemotePort(full, outbox), RemotePort(other, outbox)
    for n in range(3):
        to_full.send((frame.D_GONE, n))
    to_other.send((frame.T_ABORT, "x"))
    assert full.messages() == [(frame.D_GONE, 0)] and not other.posted
    assert to_full.backlog == to_other.backlog == 3
    full.room = 2
    outbox.pump()
    assert len(full.posted) == 2 and not other.posted
    full.room = 9
    outbox.pump()
    assert full.messages() == [(frame.D_GONE, n) for n in range(3)]
    assert other.messages() == [(frame.T_ABORT, "x")] and not to_full.backlog
    stamps = [key for _, key, _ in full.posted + other.posted]
    assert stamps == sorted(stamps) and {len(s) for s in stamps} == {STAMP_BYTES}


def stamped(at, message):
    return (wire.MESSAGE, at.to_bytes(STAMP_BYTES, "big"), frame.encode(message))


class FakeReceiver:
    """Its records, and what happens elsewhere while it is drained."""

    def __init__(self, meanwhile=None):
        self.records = []
        self.meanwhile = meanwhile

    def drain(self, count):
        found, self.records = self.records, []
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return found


def core_with(receivers):
    core = Core(0, None, None, [])
    core._mail = receivers
    core._later = []
    core._undelivered = deque()
    return core


def delivered(core):
    found = [frame.decode(payload) for _, _, payload in core._undelivered]
    core._undelivered.clear()
    return found


def test_an_effect_waits_for_a_cause_posted_into_a_ring_that_had_been_read():
    first, second = FakeReceiver(), FakeReceiver()
    core = core_with([first, second])

    def both():  # after the first ring was read, before the second is
        first.records.append(stamped(11, (frame.D_OPEN, "cause")))
        second.records.append(stamped(12, (frame.D_ENCODED, "effect")))

    first.meanwhile = both
    second.records.append(stamped(5, (frame.D_GONE, 1)))
    assert core._receive((10).to_bytes(STAMP_BYTES, "big")) == 2
    assert delivered(core) == [(frame.D_GONE, 1)]
    assert core._receive((20).to_bytes(STAMP_BYTES, "big")) == 2
    assert delivered(core) == [(frame.D_OPEN, "cause"), (frame.D_ENCODED, "effect")]
    assert core._receive((30).to_bytes(STAMP_BYTES, "big")) == 0


def test_messages_of_several_cores_come_in_the_order_of_their_times():
    one, two = FakeReceiver(), FakeReceiver()
    core = core_with([one, two])
    one.records = [stamped(n, (frame.D_GONE, n)) for n in (300, 1 << 40)]
    two.records = [stamped(n, (frame.D_GONE, n)) for n in (2, 70000, 1 << 41)]
    assert core._receive((1 << 50).to_bytes(STAMP_BYTES, "big")) == 5
    assert [m[1] for m in delivered(core)] == [2, 300, 70000, 1 << 40, 1 << 41]


def test_now_is_never_before_what_was_just_posted():
    sender = FakeSender()
    Outbox().send(sender, b"")
    assert sender.posted[0][1] <= time.monotonic_ns().to_bytes(STAMP_BYTES, "big")


# -- tokenize ------------------------------------------------------------------------


@pytest.fixture
def tokenize():
    setup = SimpleNamespace(
        tokenizer_json=None, limits=Limits(4096, 256), needs_context=False, chat_template=None,
        bos_id=None,
    )  # fmt: skip
    outbox = Outbox()
    to_scheduler, aborts = FakeSender(), SimpleNamespace(posted=[])
    aborts.post_urgent = lambda kind, key, parts: aborts.posted.append(key)
    stage = TokenizeStage(0, setup, Counters(), outbox, to_scheduler, aborts)
    to_detok = FakeSender()
    stage.connect({7: RemotePort(to_detok, outbox), 0: LocalPort(deque())})
    return SimpleNamespace(
        stage=stage, outbox=outbox, to_scheduler=to_scheduler, aborts=aborts, to_detok=to_detok
    )


def job(rid):
    wanted = messages.generate_template()
    sampling = messages.sampling_template()
    sampling[messages.SAMPLING["max_new_tokens"]] = 4
    wanted[messages.GENERATE["sampling_params"]] = sampling
    return (rid, None, list(array("q", [1, 2, 3])), wanted, None, False)


def test_a_request_is_sent_once_detok_can_read_of_it(tokenize):
    tokenize.to_detok.room = 0
    tokenize.stage.inbox.append((frame.T_JOB, 7, [job("a#1"), job("b#2")]))
    tokenize.stage.poll(100)
    assert not tokenize.to_scheduler.posted and len(tokenize.outbox) == 2
    assert tokenize.stage.busy and not tokenize.stage.pure_poll()
    tokenize.stage.inbox.append((frame.T_ABORT, "a#1"))
    tokenize.to_detok.room = 99
    tokenize.stage.poll(100)
    tokenize.outbox.pump()
    assert tokenize.stage.pure_poll()
    tokenize.stage.poll(100)
    assert [key for _, key, _ in tokenize.to_scheduler.posted] == [b"b#2"]
    assert not tokenize.aborts.posted  # the scheduler never heard of it
    told = tokenize.to_detok.messages()
    assert [m[:2] for m in told] == [
        (frame.D_ENCODED, "a#1"), (frame.D_ENCODED, "b#2"), (frame.D_FAIL, "a#1"),
    ]  # fmt: skip
    assert not tokenize.stage.busy and not tokenize.stage.pure_poll()


def test_a_long_request_on_its_way_does_not_refuse_the_next(tokenize):
    tokenize.to_scheduler.backlog = True  # the rest of a record larger than the free space
    tokenize.stage.inbox.append((frame.T_JOB, 7, [job("a#1")]))
    tokenize.stage.poll(100)
    assert not tokenize.to_scheduler.posted and not tokenize.stage.pure_poll()
    tokenize.to_scheduler.backlog = False
    tokenize.stage.poll(100)
    assert [key for _, key, _ in tokenize.to_scheduler.posted] == [b"a#1"]
    tokenize.to_scheduler.room = tokenize.to_scheduler.cap = 1
    tokenize.stage.inbox.append((frame.T_JOB, 7, [job("b#2")]))
    tokenize.stage.poll(100)
    last = tokenize.to_detok.messages()[-1]
    assert last[0] == frame.D_FAIL and last[2:4] == (503, FULL)


def test_without_threads_a_long_prompt_is_encoded_on_the_core(tokenize, monkeypatch):
    def none(*args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("tpc_server.stages.texts.EncodeHelper", none)
    tokenize.stage._encoder = object()
    tokenize.stage._prompts = SimpleNamespace(encode=lambda text: [len(text) % 7])
    rid, _, _, *rest = job("a#1")
    tokenize.stage.inbox.append((frame.T_JOB, 7, [(rid, "x" * 9000, None, *rest)]))
    tokenize.stage.poll(100)
    assert [key for _, key, _ in tokenize.to_scheduler.posted] == [b"a#1"]
