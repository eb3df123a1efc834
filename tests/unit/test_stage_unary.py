"""The short way of a plain unary answer says what the long way says."""

from __future__ import annotations

import re
from array import array
from types import SimpleNamespace

import msgpack
import pytest

from tests import tiny_tokenizer
from tests.unit.test_stage_ends import detok, opened  # noqa: F401
from tpc_server import frame
from tpc_server.boundary import wire
from tpc_server.render.openai import Spec
from tpc_server.stages import stream as records
from tpc_server.stages.detok import DetokStage
from tpc_server.stages.stream import FRAGMENTS
from tpc_server.text.load import load_tokenizer

LENGTH = {"type": "length", "length": 3}


@pytest.fixture
def stage(detok, tmp_path):  # noqa: F811
    """As `detok`, with the byte tokenizer."""
    setup = detok.stage.setup
    loaded = load_tokenizer(str(tiny_tokenizer.write(tmp_path)), None)
    setup.skip_tokenizer = False
    setup.tokenizer_json = loaded.json_text
    setup.pieces = loaded.pieces
    setup.needs_context = False
    setup.vocab_size = tiny_tokenizer.VOCAB
    made = DetokStage(setup, detok.stage.counters, detok.stage._writer_of)
    made.connect(detok.stage._tok_ports, detok.stage._ingress)
    return SimpleNamespace(stage=made, egress=detok.egress)


CHAT = Spec("chat-1", "m", 1700000000)


def answer_of(stage, steps, finish, short, extra=(), chat=None):
    """The answer to a request whose last step has this finish reason; `short`: may it be taken.

    chat: the facts of a chat request; else it is a native one.
    """
    taken = []
    end_unary = DetokStage.end_unary

    def noted(self, *args):
        taken.append(end_unary(self, *args))
        return taken[-1]

    opening = list(opened("a#1", stream=False))
    if chat is not None:
        opening[2], opening[9] = records.CHAT, tuple(chat)
    stage.stage.inbox += [tuple(opening), (frame.D_ENCODED, "a#1", 2, None, [1], 3)]
    stage.stage.poll(10)
    if short:
        stage.stage.end_unary = noted.__get__(stage.stage)
    else:
        stage.stage.hot["a#1"][FRAGMENTS] = ()
    before = len(stage.egress.posted)
    for k, ids in enumerate(steps):
        reason = finish if k == len(steps) - 1 else None
        header = [["a#1"], [reason], [2], [len(ids)], [1], [0], *extra]
        data = array("q", ids).tobytes()
        stage.stage.on_record(
            wire.BATCH, b"", b"".join(wire.frame_parts(msgpack.packb(header), [data]))
        )
    assert not stage.stage.streams and not stage.stage.hot and not stage.stage.groups
    (message,) = stage.egress.messages()[before:]
    head, _, body = message[2].partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head  # the latency has a length of its own
    return head[:12] + re.sub(rb'"e2e_latency":[^,]*', b"", body), message[3], taken


@pytest.mark.parametrize(
    ("steps", "finish"),
    [
        ([[65]], LENGTH),
        ([[65], [34], [66]], LENGTH),
        ([[65, 66], [10, 256, 67]], LENGTH),
        ([[65], [256]], {"type": "stop", "matched": 256}),
        ([[65], []], {"type": "length", "length": 1}),
        ([[]], {"type": "stop", "matched": 256}),
        ([[65], [66]], {"type": "stop", "matched": [66]}),
    ],
)
@pytest.mark.parametrize("chat", [None, CHAT, CHAT._replace(id='"x"', cache_report=True)])
def test_it_says_the_same(stage, steps, finish, chat):
    body, end, taken = answer_of(stage, steps, finish, short=True, chat=chat)
    assert taken[-1]
    assert (body, end) == answer_of(stage, steps, finish, short=False, chat=chat)[:2]


@pytest.mark.parametrize(
    ("steps", "finish"),
    [
        ([[0xC3], [0xA4]], LENGTH),  # half characters
        ([[65], [9999]], LENGTH),
        ([[65], [-1]], LENGTH),
        ([[65], [66]], {"type": "stop", "matched": "B"}),
        ([[65], [66]], {"type": "abort", "message": "no"}),
        ([[65], [66]], {"type": "abort", "message": "no", "status_code": 503}),
    ],
)
@pytest.mark.parametrize("chat", [None, CHAT])
def test_what_is_not_usual_goes_the_long_way(stage, steps, finish, chat):
    body, end, taken = answer_of(stage, steps, finish, short=True, chat=chat)
    assert not any(taken)
    assert (body, end) == answer_of(stage, steps, finish, short=False, chat=chat)[:2]


@pytest.mark.parametrize(
    "wish",
    [
        {"hidden": "last"}, {"meta_info": True}, {"token_ids": True},
        {"parser": ("think", None, {"stream_reasoning": True, "force_reasoning": False})},
    ],
)  # fmt: skip
def test_chats_that_want_more_go_the_long_way(stage, wish):
    body, _, taken = answer_of(stage, [[65]], LENGTH, short=True, chat=CHAT._replace(**wish))
    assert taken == [] and b'"content":"A"' in body


def test_rows_that_do_not_end_go_the_long_way(stage):
    body, _, taken = answer_of(stage, [[65, 66], [-1], [67]], {"type": "abort"}, short=True)
    assert taken == [False, False, False] and b'"output_ids":[65,66,-1,67]' in body


def test_weight_versions_go_the_long_way(stage):
    versions = [*[[]] * 12, [[["v", 0, 1]]]]
    body, _, taken = answer_of(stage, [[65]], LENGTH, short=True, extra=versions)
    assert taken == [False] and b'"weight_versions":[{"version":"v"' in body


def test_probes_are_no_requests(detok):  # noqa: F811
    detok.stage.inbox.append((*opened("a#1", stream=False)[:2], 4, *opened("a#1", False)[3:]))
    detok.stage.poll(10)
    assert not detok.stage.hot["a#1"][FRAGMENTS]
