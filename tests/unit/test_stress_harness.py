"""The stress tests' own judgement: it must see what they are there to see."""

from __future__ import annotations

import io
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stress import faults, leaks, oracle, watchdog
from tests.stress.checks import Outcome, StreamCheck, Wanted, check_unary
from tests.stress.client import Client, Config, Report
from tests.stress.clock import Awake, until
from tests.stress.faults import DRAIN, PAUSE, STOP, THROW, Injury, Loose, injuries, unexplained
from tests.stress.openai import CHAT, COMPLETIONS, OpenAICheck, check_openai, convert
from tests.stress.wire import Wrong, chunked_request, request

LENGTH = {"type": "length", "length": 3}
ABORT = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def wanted(batch=False, **body):
    """A request whose answer is `abc`, or twice that."""
    item = oracle.Expected([97, 98, 99], "abc", LENGTH, 5, "abc")
    names = ["r_0", "r_1"] if batch else ["r"]
    return Wanted("r", {"stream": True, **body}, [item] * len(names), names, batch)


def event(text, finish=None, index=None, **changed):
    meta = {
        "id": "r", "finish_reason": finish, "prompt_tokens": 5, "completion_tokens": len(text),
        **changed,
    }  # fmt: skip
    out = {"text": text, "output_ids": list(text.encode()), "meta_info": meta}
    if index is not None:
        meta["id"] = f"r_{index}"
        out["index"] = index
    return out


def check(events, incremental=False, **more):
    stream = StreamCheck(wanted(**more), incremental)
    for one in events:
        stream.feed(one)
    return stream.end()


def test_right_streams_pass():
    assert check([event("a"), event("ab"), event("abc", LENGTH), "[DONE]"]).kind == "ok"
    assert check([event("abc", LENGTH), "[DONE]"]).kind == "ok"
    both = [event("a", None, 1), event("abc", LENGTH, 0), event("abc", LENGTH, 1), "[DONE]"]
    assert check(both, batch=True).kind == "ok"
    pieces = [event("a"), event("bc", LENGTH, completion_tokens=3), "[DONE]"]
    assert check(pieces, incremental=True).kind == "ok"
    told = check([event("a"), event("ab", ABORT), "[DONE]"])
    assert (told.kind, told.message) == ("abort", "Aborted")
    error = {"error": {"message": "no", "code": 503}}
    told = check([event("a"), error, "[DONE]"])
    assert (told.kind, told.code, told.message) == ("error", 503, "no")


WRONG = {
    "shrinks": [event("ab"), event("a"), event("abc", LENGTH), "[DONE]"],
    "another text": [event("ax"), event("abc", LENGTH), "[DONE]"],
    "success of a cut stream": [event("a"), event("ab", LENGTH), "[DONE]"],
    "another finish": [event("abc", {"type": "stop", "matched": None}), "[DONE]"],
    "two finishes": [event("abc", LENGTH), event("abc", LENGTH), "[DONE]"],
    "no finish": [event("abc"), "[DONE]"],
    "no end": [event("abc", LENGTH)],
    "two ends": [event("abc", LENGTH), "[DONE]", "[DONE]"],
    "goes on after its end": ["[DONE]", event("a")],
    "goes on after an error": [{"error": {"message": "x", "code": 500}}, event("a"), "[DONE]"],
    "an index": [event("abc", LENGTH, 0), "[DONE]"],
    "another's": [event("abc", LENGTH, id="q"), "[DONE]"],
    "miscounted": [event("ab", completion_tokens=3), event("abc", LENGTH), "[DONE]"],
    "another prompt": [event("abc", LENGTH, prompt_tokens=4), "[DONE]"],
    "aborted with what it never had": [event("abx", ABORT), "[DONE]"],
    "half a character shown": [event("a\ufffd"), event("abc", LENGTH), "[DONE]"],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_streams_are_seen(name):
    with pytest.raises(Wrong):
        check(WRONG[name])


def test_a_batch_is_complete_only_with_every_index():
    with pytest.raises(Wrong):
        check([event("abc", LENGTH, 0), "[DONE]"], batch=True)
    with pytest.raises(Wrong):
        check([event("abc", LENGTH, 2)], batch=True)


def test_logprobs_belong_to_their_ids():
    right = [[oracle.logprob(token), token, None] for token in b"abc"]
    good = event("abc", LENGTH, output_token_logprobs=right)
    assert check([good, "[DONE]"], return_logprob=True).kind == "ok"
    for shown in (right[:2], right[::-1], []):
        with pytest.raises(Wrong):
            bad = event("abc", LENGTH, output_token_logprobs=shown)
            check([bad, "[DONE]"], return_logprob=True)


def test_unary_answers():
    one = event("abc", LENGTH)
    assert check_unary(wanted(), 200, one).kind == "ok"
    assert check_unary(wanted(), 503, {"error": {"message": "x", "code": 503}}).code == 503
    for status, value in (
        (200, [one]), (200, event("ab", LENGTH)), (200, event("abc")), (503, {}),
        (503, {"error": {"message": "x", "code": 500}}),
    ):  # fmt: skip
        with pytest.raises(Wrong):
            check_unary(wanted(), status, value)


def test_requests_are_bytes_of_http():
    plain = request("/generate", {"a": 1}, Connection="close")
    assert plain.endswith(b'Connection: close\r\n\r\n{"a": 1}') and b"Content-Length: 8" in plain
    cut = chunked_request("/generate", {"a": 1}, [3, 4])
    assert cut.endswith(b'\r\n\r\n3\r\n{"a\r\n4\r\n": 1\r\n1\r\n}\r\n0\r\n\r\n')


# -- the oracle ----------------------------------------------------------------------


def test_answers_are_of_one_text_from_a_place_of_the_prompts_own():
    doubled = oracle.TEXT_IDS * 3
    starts = set()
    for k in range(50):
        expected = oracle.answer(b"%d" % k, {"max_new_tokens": 20})
        at = next(i for i in range(len(oracle.TEXT_IDS)) if doubled[i : i + 20] == expected.ids)
        starts.add(at)
        assert expected.finish == {"type": "length", "length": 20}
        assert expected.prompt_tokens == len(b"%d" % k)
    assert len(starts) > 20


def test_stops_cut_the_text_where_the_first_of_them_is_complete():
    stops = ["lazy cat", "世界", "STOP"]
    params = {"max_new_tokens": 400, "stop": stops}
    seen = set()
    for k in range(20):
        expected = oracle.answer(b"%d" % k, params)
        matched = expected.finish["matched"]
        seen.add(matched)
        assert expected.whole.endswith(matched)
        assert expected.text == expected.whole[: -len(matched)]
        assert not any(stop in expected.text for stop in stops)
        assert expected.ids[-len(matched.encode()) :] == list(matched.encode())
    assert seen == {"世界", "STOP"}
    kept = oracle.answer(b"0", {**params, "no_stop_trim": True})
    assert kept.text == kept.whole
    by_id = oracle.answer(b"0", {"max_new_tokens": 400, "stop_token_ids": [ord("q")]})
    assert by_id.ids[-1] == ord("q") and by_id.finish == {"type": "stop", "matched": ord("q")}
    assert by_id.text == by_id.whole[:-1]


def test_what_a_fault_does_to_an_answer():
    one = oracle.Expected([97, 98, 99], "abc", LENGTH, 5, "abc")
    assert oracle.without(one, 1).text == "ac" and oracle.doubled(one, 1).text == "abbc"
    names = [entry["rid"] for entry in faults.script()["scripts"]]
    assert len(set(names)) == len(names)
    for name in names:  # a rid must not be the start of another one
        assert [other for other in names if other.startswith(name)] == [name]


# -- injuries ------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [5, 30, 40, 100, 600])
def test_no_core_is_made_to_die_three_times_in_30_seconds(seconds):
    for seed in range(20):
        plan = injuries(random.Random(seed), (THROW,), 3, seconds)
        assert all(0 < injury.at < seconds for injury in plan) and len(plan) >= 6
        for core in range(3):
            times = [injury.at for injury in plan if injury.core == core]
            assert times == sorted(times)
            assert all(c - a > 30 for a, c in zip(times, times[2:], strict=False))


def test_the_same_seed_gives_the_same_injuries():
    kinds = (THROW, faults.STALL, faults.ABORT_ALL)
    made = [injuries(random.Random("x"), kinds, 2, 20) for _ in range(2)]
    assert made[0] == made[1] and {injury.kind for injury in made[0]} == set(kinds)
    assert injuries(random.Random("x"), (), 2, 20) == []
    assert Injury(1.0, THROW) < Injury(2.0, DRAIN)


def test_processes_end_in_every_way_each_round():
    kinds = (faults.KILL, faults.STUCK, faults.RELOAD)
    for seconds in (4.0, 40.0):
        plan = faults.ends_of_processes(random.Random("x"), kinds, seconds, 3.0)
        assert plan == faults.ends_of_processes(random.Random("x"), kinds, seconds, 3.0)
        assert plan == sorted(plan) and plan[0].at > 0 and plan[-1].at < 0.8 * seconds
        for at in range(0, len(plan), 3):
            assert {injury.kind for injury in plan[at : at + 3]} == set(kinds)
        assert all(i.seconds > 3.0 for i in plan if i.kind == faults.STUCK)


def test_what_the_end_of_a_process_explains():
    cut = Loose("cut", since=10, until=20, got=5, note="n")
    closing = cut._replace(kind="closing")
    for kind in (faults.KILL, faults.STUCK):
        assert unexplained(cut, [(kind, 15)]) is None
        assert unexplained(closing, [(kind, 15)]) is not None
        assert unexplained(cut._replace(kind="shutdown"), [(kind, 15)]) is not None
    for kind in (faults.RELOAD, faults.FREEZE):  # loses nothing
        assert unexplained(cut, [(kind, 15)]) is not None
        assert unexplained(cut._replace(got=0), [(kind, 15)]) is not None
        assert unexplained(closing, [(kind, 15)]) == (
            None if kind == faults.RELOAD else "closing without a cause: n (10.0 to 20.0)"
        )


def test_an_end_needs_a_cause_of_its_kind_and_time():
    cut = Loose("cut", since=10, until=20, got=5, note="n")
    assert unexplained(cut, []) is not None
    assert unexplained(cut, [(THROW, 15)]) is None
    assert unexplained(cut, [(THROW, 21)]) is not None  # later
    assert unexplained(cut._replace(since=16, until=17), [(THROW, 15)]) is None
    assert unexplained(cut._replace(since=60, until=70), [(THROW, 15)]) is not None
    assert unexplained(cut, [(DRAIN, 15)]) is not None  # what has begun is finished
    assert unexplained(cut._replace(got=0), [(DRAIN, 15)]) is None
    assert unexplained(cut, [(STOP, 15)]) is None
    assert unexplained(cut._replace(kind="abort"), [(THROW, 15)]) is not None
    assert unexplained(cut._replace(kind="abort"), [(faults.ABORT_ALL, 15)]) is None
    assert unexplained(cut, [(PAUSE, 15)]) is None
    assert unexplained(cut, [(PAUSE, 7)]) is not None
    assert unexplained(cut._replace(kind="shutdown"), [(DRAIN, 9)]) is None
    assert unexplained(cut._replace(kind="shutdown"), [(DRAIN, 11)]) is not None


# -- ends of a run -------------------------------------------------------------------


class FakeServer:
    """Counters that empty after some looks."""

    def __init__(self, looks):
        self.looks = looks

    def counters(self):
        self.looks -= 1
        live = int(self.looks > 0)
        return [{"live_requests": live, "inflight": 0, "connections": 0}]


def test_what_is_left_over_is_told():
    idle = SimpleNamespace(running={}, waiting=[])
    assert leaks.settle(FakeServer(3), idle, 20) is None
    assert "live_requests" in str(leaks.settle(FakeServer(1 << 60), idle, 0.1))
    busy = SimpleNamespace(running={"a#1": 1}, waiting=[])
    assert "a#1" in str(leaks.settle(FakeServer(0), busy, 0.1))


def test_descriptors_and_threads_are_counted():
    before, running = leaks.descriptors(), leaks.threads()
    hold = threading.Event()
    thread = threading.Thread(target=hold.wait, name="held", daemon=True)
    thread.start()
    with open("/dev/zero", "rb"):
        assert leaks.more(leaks.descriptors(), before) == {"/dev/zero": 1}
        assert leaks.names(leaks.threads() - running) == ["held"]
    assert not leaks.more(leaks.descriptors(), before)
    hold.set()
    thread.join(10)
    assert until(lambda: leaks.threads() <= running, 10)
    assert leaks.rss_bytes() > 1 << 20


def test_the_watchdog_shows_stacks_and_ends_the_run_unless_it_was_over_before(capfd):
    ended = threading.Event()
    with watchdog.Watchdog(0.05, SimpleNamespace(cores=[]), ended.set) as dog:
        assert ended.wait(20)
    assert dog.fired and "test_stress_harness" in capfd.readouterr().err
    with watchdog.Watchdog(60, SimpleNamespace(cores=[]), ended.clear) as dog:
        pass
    assert not dog.fired and ended.is_set()
    out = io.StringIO()
    watchdog.show(SimpleNamespace(cores=[]), out)
    assert "state at" in out.getvalue()


def test_time_counts_only_while_awake(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tests.stress.clock.time.monotonic", lambda: now[0])
    clock = Awake()
    now[0] = 101.0
    assert clock.look() == 1.0 and not clock.pauses
    now[0] = 200.0
    assert clock.look() == 2.5 and clock.pauses == [200.0]
    assert clock.paused_since(150.0) and not clock.paused_since(200.0)


def test_outcomes_read_well():
    assert repr(Outcome("error", 503, "no")) == "error 503 'no'"


def openai_wanted(path=CHAT, **body):
    """A request by an OpenAI route whose answer is `abc`."""
    made = wanted(**body)
    made.path = path
    return made


def chunk(text="", finish=None, index=0, role=False, **changed):
    delta = {"role": "assistant", "content": text} if role else {"content": text}
    choice = {
        "index": index, "delta": delta, "logprobs": None, "finish_reason": finish,
        "matched_stop": None, **changed,
    }  # fmt: skip
    return {"id": "r", "choices": [choice]}


USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
RIGHT = [chunk(role=True), chunk("a"), chunk("bc"), chunk(finish="length"), "[DONE]"]


def check_chat(events, **more):
    stream = OpenAICheck(openai_wanted(**more))
    for one in events:
        stream.feed(one)
    return stream.end()


def test_right_openai_streams_pass():
    assert check_chat(RIGHT).kind == "ok"
    options = {"stream_options": {"include_usage": True}}
    usage = {"id": "r", "choices": [], "usage": USAGE}
    assert check_chat([*RIGHT[:-1], usage, "[DONE]"], **options).kind == "ok"
    cut = [chunk(role=True), chunk("a\ufffd"), chunk(finish="abort"), "[DONE]"]
    with pytest.raises(Wrong):
        check_chat(cut)  # no such character was cut
    assert check_chat([chunk(role=True), chunk("ab"), chunk(finish="abort"), "[DONE]"]).kind == (
        "abort"
    )
    told = check_chat([RIGHT[0], {"error": {"message": "no", "code": 503}}, "[DONE]"])
    assert (told.kind, told.code) == ("error", 503)


@pytest.mark.parametrize(
    "events",
    [
        RIGHT[:-1],
        RIGHT[1:],
        [RIGHT[0], *RIGHT],
        [*RIGHT[:-2], "[DONE]"],
        [*RIGHT[:-1], chunk("d"), "[DONE]"],
        [*RIGHT[:-1], {"id": "r", "choices": [], "usage": USAGE}, "[DONE]"],
        [chunk(role=True), chunk("a"), chunk("c"), chunk(finish="length"), "[DONE]"],
        [chunk(role=True), chunk("ab"), chunk(finish="length"), "[DONE]"],
        [chunk(role=True), chunk("abc"), chunk(finish="stop"), "[DONE]"],
        [chunk(role=True), chunk("abc"), chunk(finish="length", matched_stop="c"), "[DONE]"],
        [{**chunk(role=True), "id": "s"}, *RIGHT[1:]],
    ],
)
def test_wrong_openai_streams_do_not(events):
    with pytest.raises(Wrong):
        check_chat(events)


def test_openai_answers():
    choice = {
        "index": 0, "text": "abc", "logprobs": None, "finish_reason": "length",
        "matched_stop": None,
    }  # fmt: skip
    body: dict[str, Any] = {"id": "r", "choices": [choice], "usage": USAGE}
    ask = openai_wanted(COMPLETIONS)
    assert check_openai(ask, 200, body).kind == "ok"
    told = check_openai(ask, 503, {"object": "error", "message": "full", "code": 503})
    assert (told.kind, told.message) == ("error", "full")
    for wrong in (
        {**body, "usage": {**USAGE, "prompt_tokens": 6}},
        {**body, "choices": [{**choice, "text": "ab"}]},
        {**body, "choices": [{**choice, "finish_reason": None}]},
        {**body, "choices": [choice, choice]},
        {**body, "id": "s"},
    ):
        with pytest.raises(Wrong):
            check_openai(ask, 200, wrong)


def test_requests_become_openais():
    rng = random.Random(1)
    paths = set()
    for _ in range(50):
        body = {
            "rid": "r",
            "text": ["one", "two"],
            "sampling_params": {"max_new_tokens": 3, "n": 2},
        }
        made = Wanted("r", body, [oracle.answer(b"one", body["sampling_params"])] * 4, [], True)
        convert(made, rng, False)
        paths.add(made.path)
        assert made.body["prompt"] == ["one", "two"] and made.body["max_tokens"] == 3
        made = wanted(text="one", sampling_params={"max_new_tokens": 3})
        convert(made, rng, False)
        paths.add(made.path)
        if made.path == CHAT and "messages" in made.body:
            assert "".join(m["content"] for m in made.body["messages"]) == "one"
    assert paths == {CHAT, COMPLETIONS}


def a_client():
    given = {
        "host": "127.0.0.1", "port": 1, "seed": "s", "seconds": 1, "workers": 1,
        "incremental": False, "small": False, "header_timeout": 1, "limit": 1,
    }  # fmt: skip
    one = Client(Config(given), 0, Report())
    one.begin("keep_alive")
    return one


def test_every_request_is_answered_once_or_somebody_says_why_not():
    one, asked = a_client(), wanted()
    one.owe(asked)
    with pytest.raises(Wrong, match="no answer"):
        one.over()
    one._settle(asked.rid)
    one.over()
    with pytest.raises(Wrong, match="nobody is owed"):
        one._settle(asked.rid)
    one.owe(asked)
    one.left("unread")
    one.over()
    counts = one.report.counts
    assert counts == {"sent": 2, "answered": 1, "left unread": 1, "unanswered": 1}
    one.begin("deep")  # the last one's excuse is not this one's
    one.owe(asked)
    with pytest.raises(Wrong, match="no answer"):
        one.over()
