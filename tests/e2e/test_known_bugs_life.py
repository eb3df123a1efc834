"""Bugs that other frontends had, as black-box cases: clients that go, huge requests, threads.

Which test is about which case: `known_bugs.CASES`.
"""

from __future__ import annotations

import itertools
import json
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import stream_rules
from tests.e2e.known_bugs import APIS, begin, body_of, said, write_model
from tests.e2e.test_placements import placed
from tests.http_client import Client, call
from tests.synthetic_server import serving
from tpc_server.engines.synthetic_script import Script

LONG = 50_000  # tokens: they last longer than any test waits


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("bugs"))
    scripts = [Script(rid="slow", frames=[b"a"], repeat=True)]
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "think"}
    with serving(folder, {"plan": placed(["1"])}, parsers, scripts=scripts) as running:
        yield running


# -- who goes, and who is named ----------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["one", "n", "list", "list and n"])
def test_15_a_client_that_is_gone_is_aborted(run, api, stream, kind):
    if "list" in kind and api == APIS[2]:
        return  # one conversation a request
    run.until_idle()
    text: Any = ["a", "b", "c"] if "list" in kind else "x"
    more: dict[str, Any] = {"n": 4} if "n" in kind.split() else {}
    count = (3 if "list" in kind else 1) * more.get("n", 1)
    more |= {"max_tokens": LONG, "ignore_eos": True}
    client = begin(run, api, count, body_of(api, text, stream, **more))
    if stream:
        client.head()
        client.chunk()
    client.reset()
    run.until_idle()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False])
def test_16_a_client_that_goes_before_the_first_token(start, tmp_path, api, stream):
    """Its abort reaches the scheduler, however the prompt is encoded; the next one is served."""
    run = start(model_path=str(write_model(tmp_path)), manual=True)
    for text in ("x", "word " * 700):  # on the core, and by its helper
        before = len(run.scheduler.aborted)
        client = Client(run.address)
        client.request("POST", api, body_of(api, text, stream, max_tokens=50))
        run.scheduler.wait_for(lambda s: s.live)
        (rid,) = run.scheduler.live
        client.reset()
        run.scheduler.wait_for(lambda s, k=before: len(s.aborted) > k and not s.live)
        assert run.scheduler.aborted[before:] == [rid]
    run.scheduler.manual = False
    assert call(run.address, "POST", api, body_of(api, max_tokens=2)).status == 200


@pytest.mark.parametrize("api", APIS)
def test_17_one_rid_twice(run, api):
    """Both are served, each with its own text; an abort of the rid ends both."""
    run.until_idle()
    with begin(run, api, 1, body_of(api, rid="slow", max_tokens=LONG)) as one, \
            begin(run, api, 2, body_of(api, rid="slow", max_tokens=LONG)) as two:  # fmt: skip
        assert call(run.address, "POST", "/abort_request", {"rid": "slow"}).status == 200
        for client in (one, two):
            answer = client.answer()
            assert answer.status == 200 and said(api, answer.json())[1] == "abort"
    run.until_idle()


@pytest.mark.parametrize("body", [{"rid": ""}, {}, {"rid": None}])
def test_19_an_empty_abort_ends_nobody(run, body):
    run.until_idle()
    with begin(run, APIS[2], 1, body_of(APIS[2], rid="slow", max_tokens=300)) as client:
        assert call(run.address, "POST", "/abort_request", body).status == 200
        answer = client.answer().json()
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_22_readers_that_stop_and_readers_that_go_on(tmp_path, api, incremental):
    """Who reads gets all. Who does not read is paused, or ended with an error: what tells of a
    success is whole."""
    options = {"plan": placed(["1"]), "socket_buffer_bytes": 4096, "stream_buffer_bytes": 65536}
    args = {"incremental_streaming_output": incremental}
    scripts = [Script(rid="slow", frames=[b"a"], repeat=True)]
    count, whole, failed = 1500, 0, 0
    with serving(write_model(tmp_path), options, args, scripts=scripts, tick_ms=0) as run:
        body = body_of(api, "x", True, rid="slow", max_tokens=count)
        asleep = [Client(run.address, rcvbuf=4096) for _ in range(5)]
        awake = [Client(run.address) for _ in range(5)]
        for client in (*asleep, *awake):
            client.request("POST", api, body)
        with ThreadPoolExecutor(len(awake)) as pool:
            answers = list(pool.map(Client.answer, awake))
        for client, answer in zip((*awake, *asleep), (*answers, *[None] * 5), strict=True):
            events = (answer or client.answer()).events()
            client.close()
            if "error" in events[-2]:
                assert client in asleep and "too slowly" in events[-2]["error"]["message"]
                failed += 1
            else:
                assert stream_rules.joined(events) == "a" * count
                whole += 1
        run.until_idle()
    assert whole >= len(awake) and whole + failed == 10


# -- what is huge ------------------------------------------------------------------------

WORDS = "word " * 1_000_000
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d" * 100}}
SHORT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
# What it is -> (path, body, status). Made when it is needed: together they are 100 MB.
HUGE: dict[str, Any] = {
    "a text": lambda: (APIS[0], {"text": WORDS}, 400),
    "texts": lambda: (APIS[0], {"text": ["word"] * 600_000}, 400),
    "ids": lambda: (APIS[0], {"input_ids": [65] * 1_200_000}, 400),
    "lists of ids": lambda: (APIS[0], {"input_ids": [[65]] * 600_000}, 400),
    "a field of no type": lambda: (APIS[0], {**body_of(APIS[0], max_tokens=1), "u": WORDS}, 200),
    "nesting": lambda: (APIS[0], b'{"text":"a","x":' + b"[" * 2_000_000, 400),
    "parameters": lambda: (
        APIS[0], body_of(APIS[0], custom_params={f"k{k}": k for k in range(300_000)}, max_tokens=1),
        200,
    ),
    "stops": lambda: (APIS[0], body_of(APIS[0], stop=["x" * 200_000] * 32), 400),
    "a prompt": lambda: (APIS[1], {"prompt": WORDS}, 400),
    "prompts": lambda: (APIS[1], {"prompt": ["word"] * 600_000}, 400),
    "a message": lambda: (APIS[2], body_of(APIS[2], WORDS), 400),
    "messages": lambda: (APIS[2], {"messages": SHORT["messages"] * 130_000}, 400),
    "tools": lambda: (APIS[2], {**SHORT, "tools": [FUNCTION] * 30_000}, 200),
    "arguments of a template": lambda: (
        APIS[2], {**SHORT, "chat_template_kwargs": {f"k{k}": k for k in range(300_000)}}, 200,
    ),
    "/tokenize": lambda: ("/tokenize", {"prompt": WORDS}, 200),
    "/v1/tokenize": lambda: ("/v1/tokenize", {"prompt": WORDS}, 200),
    "/tokenize of a message": lambda: (
        "/tokenize", {"messages": body_of(APIS[2], WORDS)["messages"]}, 200,
    ),
    "/tokenize of texts": lambda: ("/v1/tokenize", {"prompt": ["word " * 300] * 3000}, 200),
    "/detokenize": lambda: ("/v1/detokenize", {"tokens": [65] * 1_200_000}, 200),
    "/abort_request": lambda: ("/abort_request", {"rid": ["x" * 10] * 300_000}, 200),
    "/parse_function_call": lambda: (
        "/parse_function_call",
        {"text": "word " * 800_000, "tool_call_parser": "hermes", "tools": []}, 200,
    ),
    "/separate_reasoning": lambda: (
        "/separate_reasoning",
        {"text": "<think>" + "word " * 800_000, "reasoning_parser": "think"}, 200,
    ),
}  # fmt: skip


def spent(run) -> float:
    """Seconds of a CPU that the core has had: no other load of the machine counts."""
    (core,) = run.server.cores
    (thread,) = [t for t in threading.enumerate() if t.native_id == core.native_id]
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


@pytest.mark.parametrize("what", HUGE)
def test_24_what_is_huge_costs_its_core_nothing(run, what):
    """Whatever takes long is done beside the core: it has less than a third of a second with the
    whole request, most of it to read and to write, so nobody waits longer than that."""
    path, body, status = HUGE[what]()
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    del body
    with Client(run.address, timeout=120) as client:
        before = spent(run)
        answer = client.call("POST", path, raw)
        assert spent(run) - before < 0.3
        assert answer.status == status, answer.body[:300]


@pytest.mark.parametrize(("path", "form"), [("/tokenize", "prompt"), ("/v1/tokenize", "messages")])
def test_24_others_are_served_meanwhile(run, path, form):
    """3 MB to be encoded: meanwhile health answers and a stream goes on. There is no pause as long
    as the encoding, which is nearly all of the CPU that this process has meanwhile."""
    run.until_idle()
    text = WORDS[:3_000_000]
    body = {form: text if form == "prompt" else [{"role": "user", "content": text}]}
    slow = body_of(APIS[2], "x", True, rid="slow", max_tokens=LONG)
    with begin(run, APIS[2], 1, slow) as stream, Client(run.address, timeout=120) as big:
        stream.head()
        big.request("POST", path, body)
        times = [time.process_time()]
        while not select.select([big.sock], [], [], 0)[0]:
            assert call(run.address, "GET", "/health").status == 200
            stream.chunk()
            times.append(time.process_time())
        assert big.answer().status == 200
        stream.reset()
    pause = max(b - a for a, b in itertools.pairwise(times))
    assert pause < (times[-1] - times[0]) * 0.75, (pause, times[-1] - times[0])
    run.until_idle()


# -- threads -----------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_49_one_tokenizer_and_many_threads(tmp_path, request):
    """64 clients, short and long texts, with and without special tokens, over two tokenize cores
    and their helpers: no error, and the counts of one thread."""
    folder = write_model(tmp_path, adds_bos=True)
    plan = placed(["ingress=0,1", "tokenize=0,1", "detok=0", "egress=0,1"])
    wrong: list[Any] = []
    end = time.monotonic() + (request.config.getoption("--stress-seconds") or 0)
    with serving(folder, {"plan": plan}) as run:

        def client(k: int) -> None:
            turn = 0
            with Client(run.address, timeout=120) as one:
                while not wrong and (turn < 4 or time.monotonic() < end):
                    turn += 1
                    text = ("word " * (1 + (k * 397 + turn * 613) % 3000)) + str(k)
                    many = len(text)
                    special = bool((k + turn) % 2)
                    asked = [
                        ("/tokenize", {"prompt": text, "add_special_tokens": special},
                         many + special),
                        (APIS[0], body_of(APIS[0], text, max_tokens=1), many + 1),
                        (APIS[1], body_of(APIS[1], text, max_tokens=1), many + 1),
                        (APIS[2], body_of(APIS[2], text, max_tokens=1),
                         many + len("[user][assistant]") + 1),
                    ]  # fmt: skip
                    path, body, count = asked[(k + turn) % 4]
                    answer = one.call("POST", path, body)
                    if answer.status != 200 or counted(path, answer.json()) != count:
                        wrong.append((path, count, answer.status, answer.body[:200]))

        threads = [threading.Thread(target=client, args=(k,)) for k in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert not wrong, wrong[:3]
        assert all(c["encoded"] for c in run.server.counters()), "one core did it all"


def counted(path: str, value: Any) -> int:
    """The tokens of the prompt that an answer tells."""
    if path == "/tokenize":
        return int(value["count"]) if len(value["tokens"]) == value["count"] else -1
    told = value["meta_info"] if path == APIS[0] else value["usage"]
    return int(told["prompt_tokens"])


def test_50_no_event_loop_of_the_standard_library():
    """Races of asyncio between threads cannot happen: the server does not import it."""
    code = (
        "import sys, tpc_server.server, tpc_server.core, tpc_server.build, tpc_server.launch;"
        "print('asyncio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
