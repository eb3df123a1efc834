"""What a stage does about requests that ended, or may have, on another core."""

from __future__ import annotations

import errno
import gc
import json
import socket
import time
from array import array
from types import SimpleNamespace

import msgpack
import pytest

from tests.unit.test_message_order import FakeSender
from tpc_server import connection, frame, mesh
from tpc_server.affinity import sglang_rules
from tpc_server.boundary import wire
from tpc_server.boundary.server_args import ModelConfig, ServerArgs
from tpc_server.build import StageSet
from tpc_server.config import Options
from tpc_server.counters import Counters
from tpc_server.http1 import RequestParser
from tpc_server.info import ServerInfo
from tpc_server.render.chat import ChatShape
from tpc_server.render.openai import Spec
from tpc_server.routes.base import PROBE_PLAN
from tpc_server.setup import CoreSetup
from tpc_server.stages import stream as records
from tpc_server.stages.base import Outbox, RemotePort
from tpc_server.stages.connections import Connection
from tpc_server.stages.detok import DetokStage
from tpc_server.stages.ingress import IngressStage
from tpc_server.stages.writers import RemoteWriter

KEY = 5


@pytest.fixture
def detok():
    """A detok stage whose neighbours only listen."""
    args = ServerArgs(
        model_path="none", skip_tokenizer_init=True,
        model_config=ModelConfig(context_len=64, vocab_size=64),
    )  # fmt: skip
    core_plan = sglang_rules.plan_for_server(None, 1, 1, allowed_cpus=1)
    info = ServerInfo(args, core_plan, "in-process", "native")
    link = mesh.Mesh(core_plan, 8, 8, 8)
    setup = CoreSetup(
        args, Options(), None, info, lambda *a, **k: None, lambda: None, link, [0] * 64
    )
    senders = {name: FakeSender() for name in ("tokenize", "ingress", "egress")}
    ports = {name: RemotePort(sender, Outbox()) for name, sender in senders.items()}
    writers = []

    def writer_of(key):
        writers.append(RemoteWriter(key, ports["egress"]))
        return writers[-1]

    stage = DetokStage(setup, Counters(), writer_of)
    stage.connect({3: ports["tokenize"]}, {0: ports["ingress"]})
    yield SimpleNamespace(stage=stage, writers=writers, **senders)
    link.close()


def opened(rid, stream=True):
    return (
        frame.D_OPEN, KEY, 0, stream, False, True, False, False, b"", "", 0, 0, 3,
        [(rid, rid, PROBE_PLAN, None)], None,
    )  # fmt: skip


def test_a_request_that_comes_when_the_server_stops_is_told_so(detok):
    detok.stage.refusal = "stopping now"
    detok.stage.inbox.append(opened("a#1"))
    detok.stage.poll(10)
    assert not detok.stage.groups and not detok.stage.streams
    told = detok.egress.messages()
    assert b" 503 " in told[0][2] and b"stopping now" in told[0][2]
    assert [m[0] for m in told] == [frame.E_WRITE] and told[0][3] == frame.END_KEEP
    assert detok.tokenize.messages() == [(frame.T_ABORT, "a#1")]


@pytest.mark.parametrize(
    ("about", "names"),
    [
        (records.TEXTS, {"object", "message", "type", "param", "code"}),
        (f"{records.LOADS} 1 [null,null,false]", {"object", "message", "type", "param", "code"}),
        (records.COUNT, {"type", "error"}),
        ("flush_cache", {"object", "message", "type", "param", "code", "error"}),
    ],
)
def test_a_call_whose_core_dies_is_told_so_in_the_shape_of_its_route(detok, about, names):
    message = list(opened("a#1", False))
    message[2], message[9] = records.CONTROL, about
    detok.stage.inbox.append(tuple(message))
    detok.stage.inbox.append((frame.D_FAIL, "a#1", 503, "core 1 failed"))
    detok.stage.poll(10)
    (told,) = detok.egress.messages()
    body = json.loads(told[2].partition(b"\r\n\r\n")[2])
    assert b" 503 " in told[2] and set(body) == names and "core 1 failed" in json.dumps(body)
    assert not detok.stage.groups and not detok.stage.streams


def test_the_abort_of_an_ended_request_is_repeated_once_its_job_was_found(detok):
    detok.stage.inbox += [opened("a#1"), (frame.D_GONE, KEY)]
    detok.stage.poll(10)
    assert detok.tokenize.messages() == [(frame.T_ABORT, "a#1")]
    detok.stage.inbox.append((frame.D_ENCODED, "a#1", 3, None, [1, 2, 3], 3))
    detok.stage.poll(10)
    assert detok.tokenize.messages() == [(frame.T_ABORT, "a#1")] * 2


def test_an_abort_before_the_scheduler_tells_no_latency_from_before_the_request(detok):
    made = list(opened("a#1", stream=False))
    made[10] = time.monotonic_ns()
    detok.stage.inbox += [tuple(made), (frame.D_FAIL, "a#1", 0, "aborted in the queue")]
    detok.stage.poll(10)
    body = detok.egress.messages()[0][2].partition(b"\r\n\r\n")[2]
    meta = json.loads(body)["meta_info"]
    assert meta["finish_reason"]["type"] == "abort" and 0 <= meta["e2e_latency"] < 10


def test_events_of_a_parser_count_as_held_text(detok):
    detok.stage.inbox += [opened("a#1"), (frame.D_ENCODED, "a#1", 1, None, [1], 3)]
    detok.stage.poll(10)
    detok.stage.setup.stream_buffer_bytes = 1000
    stream = detok.stage.streams["a#1"]
    stream.group.shape = ChatShape(Spec("a", "m", 0), b'"v"', str)
    stream.writer.blocked = True
    stream.events = [("content", "x")]
    detok.stage.end_row(stream, None, [], None)
    assert not stream.group.done
    stream.events += [("content", "x")] * 10
    detok.stage.end_row(stream, None, [], None)
    assert stream.group.done and detok.tokenize.messages() == [(frame.T_ABORT, "a#1")]


def test_whether_a_request_is_still_here_is_told_its_ingress(detok):
    detok.stage.inbox += [(frame.D_CHECK, KEY), opened("a#1"), (frame.D_CHECK, KEY)]
    detok.stage.poll(10)
    assert detok.ingress.messages() == [(frame.I_ALIVE, KEY)]


def test_an_ended_group_leaves_no_stream_with_its_writer(detok):
    """They would hold each other for ever: no collector runs while requests are served."""
    detok.stage.inbox.append(opened("a#1"))
    detok.stage.poll(10)
    stream = detok.stage.streams["a#1"]
    detok.stage.wait_for_room(stream)
    assert detok.writers[0].waiting == [stream]
    detok.stage.inbox.append((frame.D_GONE, KEY))
    detok.stage.poll(10)
    assert not detok.writers[0].waiting and not detok.stage.streams


@pytest.mark.parametrize("ended", [True, False], ids=["finished", "left"])
def test_records_of_an_ended_request_are_freed_without_a_collection(detok, ended):
    def live():
        kinds = (records.Stream, records.Group)
        return sum(type(thing) in kinds for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = live()
        for stream in (True, False):
            detok.stage.inbox += [opened("a#1", stream), (frame.D_ENCODED, "a#1", 1, None, [1], 3)]
            detok.stage.poll(10)
            if ended:
                finish = {"type": "length", "length": 1}
                detok.stage.on_record(wire.BATCH, b"", one_row("a#1", None, 1))
                detok.stage.on_record(wire.BATCH, b"", one_row("a#1", finish, 2))
            else:
                detok.stage.inbox.append((frame.D_GONE, KEY))
            detok.stage.poll(10)
            assert not detok.stage.groups
            detok.writers.clear()
        assert live() == before
    finally:
        gc.enable()


def test_a_stream_goes_on_once_neither_its_core_lags_nor_its_socket_is_full(detok):
    detok.stage.inbox += [opened("a#1"), (frame.D_ENCODED, "a#1", 1, None, [1], 3)]
    detok.stage.poll(10)
    writer = detok.writers[0]
    writer.held_up = detok.stage.held_up
    detok.egress.room = 0
    token = 0
    while not writer.blocked:
        token += 1
        detok.stage.on_record(wire.BATCH, b"", one_row("a#1", None, token))
    for _ in range(3):  # these are not rendered: they wait
        token += 1
        detok.stage.on_record(wire.BATCH, b"", one_row("a#1", None, token))
    sent = writer.port.backlog
    assert not detok.stage.pure_poll()
    detok.stage.inbox.append((frame.D_FLOW, KEY, True))  # the socket, too
    detok.stage.poll(10)
    detok.egress.room = 1 << 30
    writer.port._outbox.pump()
    assert detok.stage.pure_poll()
    detok.stage.poll(10)
    assert writer.blocked and len(detok.egress.posted) == sent
    assert not detok.stage.held_up and not detok.stage.pure_poll()
    detok.stage.inbox.append((frame.D_FLOW, KEY, False))
    detok.stage.poll(10)
    assert not writer.blocked and len(detok.egress.posted) == sent + 1
    assert b'"completion_tokens":%d' % token in detok.egress.messages()[-1][2]


def test_a_row_of_a_request_that_an_earlier_row_of_its_frame_ended(detok):
    """The failure of one item ends the whole batch, whose other rows are in the same frame."""
    message = list(opened("a#1", stream=False))
    message[-2] = [(rid, rid, PROBE_PLAN, None) for rid in ("a#1", "a#2")]
    detok.stage.inbox.append(tuple(message))
    detok.stage.inbox += [(frame.D_ENCODED, rid, 1, None, [1], 3) for rid in ("a#1", "a#2")]
    detok.stage.poll(10)
    gone = {"type": "abort", "message": "no", "status_code": 503}
    rids = ["a#1", "a#2"]
    for finish, second in ((None, 5), (gone, 6)):
        header = [rids, [finish, None], [1, 1], [1, 1], [0, 0], [0, 0]]
        data = array("q", [4, second]).tobytes()
        detok.stage.on_record(
            wire.BATCH, b"", b"".join(wire.frame_parts(msgpack.packb(header), [data]))
        )
    assert not detok.stage.groups and not detok.stage.streams and not detok.stage.hot
    assert [m[0] for m in detok.egress.messages()] == [frame.E_WRITE]
    assert b" 503 " in detok.egress.messages()[0][2]
    assert (frame.T_ABORT, "a#2") in detok.tokenize.messages()


def test_frames_wait_for_openings_that_come_after_another_cores_reset(detok):
    """A reset is dealt with while what came after it is still to be given to the stages."""
    detok.stage.inbox.append(opened("a#1"))
    detok.stage.records.append((wire.BATCH, b"", one_row("a#1", None, 7)))
    stages = object.__new__(StageSet)
    stages.ingress = stages.egress = stages.tokenize = None
    stages.detok = detok.stage
    stages.polled = [detok.stage]
    stages.core_reset(3)
    assert not detok.stage.inbox and len(detok.stage.records) == 1
    detok.stage.inbox.append((frame.D_ENCODED, "a#1", 1, None, [1], 3))
    detok.stage.poll(10)
    assert b'"output_ids":[7]' in detok.egress.messages()[0][2]


def one_row(rid, finish, token):
    header = [[rid], [finish], [1], [1], [0], [0]]
    return b"".join(wire.frame_parts(msgpack.packb(header), [array("q", [token]).tobytes()]))


def test_a_request_that_lived_through_its_detok_cores_death_keeps_its_connection():
    poller = SimpleNamespace(unregister=lambda fd: None, modify=lambda fd, mask: None)
    setup = SimpleNamespace(linger_ns=100, access_log=False)
    stage = IngressStage(0, 1, setup, Counters(), poller, [], SimpleNamespace(beside={}))
    to_detok, to_egress = FakeSender(), FakeSender()
    stage.detok_port = RemotePort(to_detok, Outbox())
    stage.egress_port = RemotePort(to_egress, Outbox())
    stage.acceptor.report = lambda n: None
    ours = []
    for key in (1, 2):
        sock, other = socket.socketpair()
        ours += [sock, other]
        conn = stage.connections[key] = Connection(key, sock, RequestParser(100, 100))
        conn.inflight = True
        conn.state = connection.WAITING
    stage.inflight = 2
    stage.partner_lost(False)
    assert to_detok.messages() == [(frame.D_CHECK, 1), (frame.D_CHECK, 2)]
    stage.inbox.append((frame.I_ALIVE, 2))
    stage.poll(10)
    stage.on_tick(1_000_000_000)
    assert list(stage.connections) == [2] and stage.inflight == 1
    assert to_detok.messages()[2:] == [(frame.D_GONE, 1)]
    for sock in ours:
        sock.close()


def test_out_of_descriptors_a_connection_is_turned_away():
    setup = SimpleNamespace(socket_buffer_bytes=0, max_connections=9, access_log=False)
    stage = IngressStage(0, 1, setup, Counters(), None, [], None)
    stage.egress_port = RemotePort(FakeSender(), Outbox())
    ours, theirs = socket.socketpair()

    class Undoublable(socket.socket):
        def dup(self):
            raise OSError(errno.EMFILE, "too many open files")

    stage._adopt(Undoublable(fileno=ours.detach()))
    assert not stage.connections and not stage.egress_port.backlog
    told = theirs.recv(1000)
    assert b" 503 " in told and b"Connection: close" in told and theirs.recv(1) == b""
    theirs.close()


def test_one_abort_of_many_rids_is_one_pass_over_the_streams(detok):
    """A body of a million rids must not cost a million passes."""
    items = [(f"a_{k}#1", f"a_{k}", PROBE_PLAN, "a" if k < 2 else None) for k in range(5)]
    detok.stage.inbox.append((*opened("x")[:-2], items, None))
    detok.stage.poll(10)
    passes = []

    class Counted(dict):
        def values(self):
            passes.append(1)
            return super().values()

    detok.stage.streams = Counted(detok.stage.streams)
    rids = [*map(str, range(1000)), "a", "a_3", "a_"]
    detok.stage.inbox.append((frame.D_ABORT, rids))
    detok.stage.poll(10)
    assert len(passes) == 1
    told = [rid for _, rid in detok.tokenize.messages()]
    assert told == ["a_0#1", "a_1#1", "a_3#1"]
    detok.stage.inbox.append((frame.D_ABORT, None))
    detok.stage.poll(10)
    assert [rid for _, rid in detok.tokenize.messages()] == [*told, "a_2#1", "a_4#1"]
