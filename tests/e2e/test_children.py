"""A request of several generations ends as one: whatever ends it, no child is left anywhere.

`n`, lists of prompts and both together, on every route that generates, whole and streamed.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import msgpack
import pytest

from tests import tiny_tokenizer
from tests.e2e.test_placements import placed
from tests.fake_scheduler import FakeScheduler
from tests.http_client import Client, call
from tests.stress import leaks
from tests.stress.clock import until
from tpc_server import ModelConfig, Options, Server, ServerArgs

TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'RAISE' %}{{ raise_exception('refused here') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)
NATIVE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
# path, prompts (None: one, as it is), n
SHAPES = {
    "native-n": (NATIVE, None, 3),
    "native-list": (NATIVE, 3, 1),
    "native-both": (NATIVE, 2, 2),
    "completions-n": (COMPLETIONS, None, 3),
    "completions-list": (COMPLETIONS, 3, 1),
    "completions-both": (COMPLETIONS, 2, 2),
    "chat-n": (CHAT, None, 3),
}
ONE = "1"
FOUR = "ingress=0 tokenize=1 detok=2 egress=3"
CASES = [(ONE, shape) for shape in SHAPES]
CASES += [(FOUR, shape) for shape in ("native-both", "completions-both", "chat-n")]
TOKENS = 40


class Running:
    def __init__(self, server, scheduler):
        self.server = server
        self.scheduler = scheduler
        self.address = ("127.0.0.1", server.http_port)

    def nothing_left(self):
        """Neither the scheduler nor the server has anything of a request."""

        def empty():
            counted = self.server.counters()
            busy = any(c[k] for c in counted for k in ("live_requests", "inflight"))
            return not busy and not self.scheduler.live

        assert until(empty, 20), (list(self.scheduler.live), self.server.counters())

    def end(self, rid, reason):
        """The scheduler's last row of one request."""
        with self.scheduler.changed:
            del self.scheduler.live[rid]
        self.scheduler.push([(rid, reason, [], 1)])

    def after_steps(self, count):
        """Let the scheduler make so many steps, and wait until they are made."""
        at = next(iter(self.scheduler.live.values())).at
        self.scheduler.step(count)
        self.scheduler.wait_for(lambda s: all(v.at >= at + count for v in s.live.values()))


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """One of each placement, by its name."""
    folder = tiny_tokenizer.write(tmp_path_factory.mktemp("children"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({}))
    made = {}
    for name in (ONE, FOUR):
        server = Server(
            ServerArgs(
                model_path=str(folder), served_model_name="tiny", port=0, log_level="error",
                skip_server_warmup=True, incremental_streaming_output=name == FOUR,
                model_config=ModelConfig(context_len=256, vocab_size=tiny_tokenizer.VOCAB),
            ),
            options=Options(plan=placed(name.split())),
        )  # fmt: skip
        made[name] = Running(server, FakeScheduler(server, manual=True))
    yield made
    for one in made.values():
        one.nothing_left()
    records = leaks.too_many_records(sum(len(one.server.cores) for one in made.values()))
    for one in made.values():
        one.scheduler.stop()
        one.server.shutdown()
    assert records is None


@pytest.fixture(params=[ONE, FOUR])
def run(request, servers):
    return servers[request.param]


def body_of(shape, stream, text="a", **more):
    path, prompts, n = SHAPES[shape]
    if path == CHAT:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    else:
        name = "text" if path == NATIVE else "prompt"
        body = {name: text if prompts is None else [f"{text}{k}" for k in range(prompts)]}
    body = {**body, "stream": stream, **more}
    if path == NATIVE:
        return {**body, "sampling_params": {"n": n, "max_new_tokens": TOKENS}}
    return {**body, "n": n, "max_tokens": TOKENS}


def begin(run, shape, stream, **more):
    """A connection with a request whose children are all with the scheduler."""
    run.scheduler.aborted.clear()
    client = Client(run.address)
    client.request("POST", SHAPES[shape][0], body_of(shape, stream, **more))
    run.scheduler.wait_for(lambda s: len(s.live) == children(shape))
    return client


def children(shape):
    return (SHAPES[shape][1] or 1) * SHAPES[shape][2]


def goes_on(run, client):
    """Nothing is left, and the connection serves the next request."""
    run.nothing_left()
    with client:
        assert client.call("GET", "/v1/models").status == 200


shapes = pytest.mark.parametrize("run, shape", CASES, indirect=["run"])
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
begun = pytest.mark.parametrize("steps", [0, 2], ids=["queued", "running"])


@shapes
@streams
@begun
def test_a_disconnect_ends_them_all(run, shape, stream, steps):
    client = begin(run, shape, stream)
    if steps:
        run.after_steps(steps)
        if stream:
            client.head()
            client.chunk()
    client.reset()
    run.nothing_left()
    assert len(set(run.scheduler.aborted)) == children(shape)


@shapes
@streams
@begun
def test_an_abort_ends_them_all(run, shape, stream, steps):
    client = begin(run, shape, stream, rid="whole")
    if steps:
        run.after_steps(steps)
    assert call(run.address, "POST", "/abort_request", {"rid": "whole"}).status == 200
    answer = client.answer()
    assert answer.status == 200
    if stream:
        native = SHAPES[shape][0] == NATIVE
        reasons = [
            e["meta_info"]["finish_reason"]["type"] if native else e["choices"][0]["finish_reason"]
            for e in answer.events()[:-1]
            if (e["meta_info"]["finish_reason"] if native else e["choices"][0]["finish_reason"])
        ]
    else:
        value = answer.json()
        if SHAPES[shape][0] == NATIVE:
            reasons = [one["meta_info"]["finish_reason"]["type"] for one in value]
        else:
            reasons = [choice["finish_reason"] for choice in value["choices"]]
    assert reasons == ["abort"] * children(shape)
    goes_on(run, client)


@pytest.mark.parametrize(
    "run, shape", [(ONE, "native-list"), (FOUR, "completions-list")], indirect=["run"]
)
@streams
def test_an_abort_of_one_leaves_the_others(run, shape, stream):
    client = begin(run, shape, stream, rid=["c0", "c1", "c2"])
    run.after_steps(2)
    assert call(run.address, "POST", "/abort_request", {"rid": "c1"}).status == 200
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    run.scheduler.step(TOKENS)
    answer = client.answer()
    assert answer.status == 200
    assert [rid.partition("#")[0] for rid in run.scheduler.aborted] == ["c1"]
    if not stream and shape == "native-list":
        ends = [one["meta_info"]["finish_reason"]["type"] for one in answer.json()]
        assert ends == ["length", "abort", "length"]
    if stream:
        answer.events()
    goes_on(run, client)


@shapes
@streams
@begun
def test_a_row_that_ends_one_with_a_status(run, shape, stream, steps):
    """The answer is that status, or an error event, and the others end. A native stream shows it
    as the end of that index, as its protocol has it, and the others go on."""
    client = begin(run, shape, stream)
    if steps:
        run.after_steps(steps)
    one = list(run.scheduler.live)[1]
    run.end(one, {"type": "abort", "message": "no room", "status_code": 503, "err_type": None})
    if stream and SHAPES[shape][0] == NATIVE:
        run.scheduler.step(TOKENS)
        ends = [e["meta_info"]["finish_reason"] for e in client.answer().events()[:-1]]
        ends = [end["type"] for end in ends if end]
        assert sorted(ends) == ["abort"] + ["length"] * (children(shape) - 1)
        assert not run.scheduler.aborted
    else:
        told(client, stream and steps, 503, "no room")
        run.scheduler.wait_for(lambda s: not s.live)
        assert one not in run.scheduler.aborted
    goes_on(run, client)


@shapes
@streams
@begun
@pytest.mark.parametrize("kind", ["malformed", "error"])
def test_a_fault_of_one_ends_them_all(run, shape, stream, steps, kind):
    client = begin(run, shape, stream)
    if steps:
        run.after_steps(steps)
    one = list(run.scheduler.live)[-1]
    if kind == "malformed":
        header = msgpack.packb([[one], [None], [1], [3], [0], [0]])  # three ids, and no data
        run.server.push_decode_result_batch(header, [b""])
        told(client, stream and steps, 500, "malformed")
    else:
        with run.scheduler.changed:
            del run.scheduler.live[one]  # it says that it never took it
        run.server.push_error(one, "cannot be read")
        told(client, stream and steps, 400, "cannot be read")
    run.scheduler.wait_for(lambda s: not s.live)
    goes_on(run, client)


def told(client, as_event, status, text):
    """An error: a real status, or an event where the stream has begun."""
    answer = client.answer()
    if as_event:
        assert answer.status == 200
        (error,) = [e["error"] for e in answer.events()[:-1] if "error" in e]
    else:
        assert answer.status == status, answer.body
        value = answer.json()
        error = value.get("error", value)
    assert error["code"] == status and text in error["message"]


@streams
@pytest.mark.parametrize("n", [1, 3])
def test_a_template_that_refuses(run, stream, n):
    """No child gets to the scheduler."""
    run.nothing_left()
    before = len(run.scheduler.received)
    with Client(run.address) as client:
        body = {**body_of("chat-n", stream, "RAISE"), "n": n}
        answer = client.call("POST", CHAT, body)
        assert answer.status == 400 and "refused here" in answer.json()["message"]
        assert client.call("GET", "/v1/models").status == 200
    run.nothing_left()
    tags = [message[0] for message in run.scheduler.received[before:]]
    assert "TokenizedGenerateReqInput" not in tags


@pytest.mark.parametrize("path", [NATIVE, COMPLETIONS])
@streams
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_prompt_that_is_too_long_among_others(run, path, stream, at):
    prompts = ["a", "b", "c"]
    prompts[at] = "x" * 300
    name = "text" if path == NATIVE else "prompt"
    with Client(run.address) as client:
        answer = client.call("POST", path, {name: prompts, "stream": stream})
        assert answer.status == 400 and b"longer than the model's context" in answer.body
        run.nothing_left()
        assert client.call("GET", "/v1/models").status == 200


@shapes
def test_clients_that_leave_while_their_children_are_on_the_way(run, shape):
    """At any point between the first and the last child."""
    run.nothing_left()
    pause = threading.Event()
    raw = json.dumps(body_of(shape, True)).encode()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    for turn in range(12):
        client = Client(run.address)
        client.send(head % (SHAPES[shape][0].encode(), len(raw)) + raw)
        if turn % 3:
            pause.wait(0.0004 * turn)
        client.reset()
    run.nothing_left()
