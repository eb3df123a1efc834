"""The synthetic engine against a frontend that only takes notes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_server import PACK, FakeServer
from tpc_server.engines.synthetic import SyntheticEngine, SyntheticSettings
from tpc_server.engines.synthetic_script import (
    FAULTS,
    Fault,
    Script,
    ScriptError,
    byte_ids,
    load_script,
    parse_script,
)
from tpc_server.engines.synthetic_values import logprob_of

# Tokens 0 to 255 are the bytes, then a few words.
TOKENS = [bytes([value]) for value in range(256)] + [b"foo", b" ST", b"OP tail", b"AR"]
FOO, ST, OP, AR = 256, 257, 258, 259


class Run:
    """An engine on its thread."""

    def __init__(self, **settings: Any) -> None:
        given: dict[str, Any] = {"token_bytes": TOKENS, "tick_ms": 0.5} | settings
        vocab_size = given.pop("vocab_size", len(TOKENS))
        self.server = FakeServer()
        self.engine = SyntheticEngine(SyntheticSettings(vocab_size, 1000, **given))
        self.stopping = threading.Event()
        self.died: list[BaseException] = []
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        try:
            self.engine.run(self.server, self.stopping)
        except BaseException as error:
            self.died.append(error)

    def end(self) -> None:
        self.stopping.set()
        self.server.wake()
        self.thread.join(20)
        assert not self.thread.is_alive()
        assert not self.died

    def answer(self, rid: str, prompt: Any = (1, 2), **given: Any) -> list[dict[str, Any]]:
        """All rows of one request, from start to finish."""
        self.server.generate(rid, list(prompt), **given)
        self.server.wait(lambda: self.server.finish(rid))
        return self.server.rows(rid)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.end()


def start(runs: list[Run], **settings: Any) -> Run:
    run = Run(**settings)
    runs.append(run)
    return run


def test_stream_of_one_token_a_frame(runs: list[Run]) -> None:
    run = start(runs)
    rows = run.answer("a", stream=True, max_new_tokens=5)
    assert [len(row["ids"]) for row in rows] == [1] * 5
    assert [row["finish"] for row in rows[:-1]] == [None] * 4
    assert rows[-1]["finish"] == {"type": "length", "length": 5}
    assert rows[-1]["weights"] == [["default", 0, 5]] and rows[0]["weights"] is None
    assert all(row["counts"][0] == 2 for row in rows)
    assert all(0 <= token < len(TOKENS) for row in rows for token in row["ids"])


def test_unary_requests_flush_every_fifty_and_tell_their_latency(runs: list[Run]) -> None:
    run = start(runs, tick_ms=0)
    rows = run.answer("a", max_new_tokens=120)
    assert [len(row["ids"]) for row in rows] == [50, 50, 20]
    assert rows[-1]["latency"] > 0 and rows[0]["latency"] is None


def test_the_same_prompt_and_seed_give_the_same_ids(runs: list[Run]) -> None:
    first = start(runs, seed=3)
    second = start(runs, seed=3)
    other = start(runs, seed=4)
    given = {"max_new_tokens": 20}
    ids = [run.answer("a", **given) and run.server.ids("a") for run in (first, second, other)]
    assert ids[0] == ids[1] != ids[2]
    assert first.answer("b", (9, 9), **given) and first.server.ids("b") != ids[0]
    assert first.answer("c", (9, 9), sampling_seed=5, **given)
    assert first.answer("d", (1, 2), sampling_seed=5, **given)
    assert first.server.ids("c") == first.server.ids("d")


def test_ids_of_a_text(runs: list[Run]) -> None:
    text = [7, 8, 9, 10]
    run = start(runs, text_ids=text)
    run.answer("a", max_new_tokens=8)
    ids = run.server.ids("a")
    assert sorted(set(ids)) == text and ids[:4] == ids[4:]


def test_zero_tokens(runs: list[Run]) -> None:
    rows = start(runs).answer("a", stream=True, max_new_tokens=0)
    assert len(rows) == 1 and rows[0]["ids"] == []
    assert rows[0]["finish"] == {"type": "length", "length": 0}


def test_no_limit_ends_at_the_context(runs: list[Run]) -> None:
    run = start(runs, tick_ms=0)
    run.answer("a", (1,) * 990, max_new_tokens=None)
    assert len(run.server.ids("a")) == 10
    assert run.server.finish("a") == {"type": "length", "length": 10}


def scripted(runs: list[Run], *frames: Any, **given: Any) -> Run:
    return start(runs, scripts=[Script(frames=list(frames), **given)])


def test_scripts_are_found_by_rid_prompt_text_and_ids(runs: list[Run]) -> None:
    scripts = [
        Script(rid="x", frames=[[1]]),
        Script(prompt="hello", frames=[[2]]),
        Script(prompt=[5, 6], frames=[[3]]),
        Script(frames=[[4]], times=1),
    ]
    run = start(runs, scripts=scripts)
    run.answer("x#1", (5, 6))
    run.answer("a", (9,), text="hello")
    run.answer("b", (5, 6), text="else")
    run.answer("c", (8,))
    run.answer("d", (8,), max_new_tokens=3)
    ids = [run.server.ids(rid) for rid in ("x#1", "a", "b", "c")]
    assert ids == [[1], [2], [3], [4]]
    assert len(run.server.ids("d")) == 3


def test_frames_of_text_bytes_and_ids(runs: list[Run]) -> None:
    run = scripted(runs, "aé", b"\xf0\x9f", [FOO, 1], [], finish={"type": "stop", "matched": 1})
    rows = run.answer("a", stream=True)
    # A frame without ids is no row; the finish comes on a row of its own.
    assert [row["ids"] for row in rows] == [[97, 0xC3, 0xA9], [0xF0, 0x9F], [FOO, 1], []]
    assert rows[-1]["finish"] == {"type": "stop", "matched": 1}


def test_scripts_of_text_need_a_token_for_every_byte() -> None:
    with pytest.raises(ScriptError, match="token for every byte"):
        SyntheticEngine(SyntheticSettings(10, scripts=[Script(frames=["a"])]))
    assert byte_ids(TOKENS) == list(range(256)) and byte_ids(TOKENS[1:]) is None


def test_a_script_ends_without_a_match_repeats_or_is_cut_to_length(runs: list[Run]) -> None:
    run = scripted(runs, [1], [2, 3])
    run.answer("a", stream=True)
    assert run.server.finish("a") == {"type": "stop", "matched": None}
    run.answer("b", stream=True, max_new_tokens=2)
    assert run.server.ids("b") == [1, 2]
    assert run.server.finish("b") == {"type": "length", "length": 2}
    run = scripted(runs, [1], [2, 3], repeat=True)
    run.answer("a", max_new_tokens=7)
    assert run.server.ids("a") == [1, 2, 3, 1, 2, 3, 1]


# The written examples of stop handling: frames, sampling, (ids of each row), finish.
STOPS: list[tuple[str, list[Any], dict[str, Any], list[list[int]], dict[str, Any]]] = [
    ("S1", [[FOO], [ST], [OP]], {"stop_strs": ["STOP"]}, [[FOO], [ST, OP]],
     {"type": "stop", "matched": "STOP"}),
    ("S3", [[FOO], [ST], [AR]], {"stop_strs": ["STOP"], "max_new_tokens": 3}, [[FOO], [ST, AR]],
     {"type": "length", "length": 3}),
    ("S4", [[FOO], [ST]], {"stop_strs": ["STOP"], "max_new_tokens": 2}, [[FOO], [ST]],
     {"type": "length", "length": 2}),
    ("S5", ["a", "\n", "b"], {"stop_strs": ["b", "\n"]}, [[97], [10]],
     {"type": "stop", "matched": "\n"}),
    ("S6", ["x\nb"], {"stop_strs": ["b", "\n"]}, [[120, 10, 98]],
     {"type": "stop", "matched": "b"}),
    ("S7", [[FOO], [2], [3]], {}, [[FOO], [2]], {"type": "stop", "matched": 2}),
    ("S9", [[FOO], [2], [3]], {"ignore_eos": True, "max_new_tokens": 3}, [[FOO], [2], [3]],
     {"type": "length", "length": 3}),
    ("S10", ["12", "3", ";x"], {"stop_regex_strs": ["[0-9]+;"], "stop_regex_max_len": 9},
     [[49, 50], [51], [59, 120]], {"type": "stop", "matched": "[0-9]+;"}),
    ("S11", [[5], [0], [6]], {"stop_token_ids": [0]}, [[5], [0]], {"type": "stop", "matched": 0}),
    ("string before end of sequence", [[FOO], [83, 2]], {"stop_strs": ["S"]}, [[FOO], [83, 2]],
     {"type": "stop", "matched": "S"}),
    ("end of sequence before length", [[5], [2]], {"max_new_tokens": 2}, [[5], [2]],
     {"type": "stop", "matched": 2}),
    ("ids after a stop id are dropped", [[5, 0, 6]], {"stop_token_ids": [0]}, [[5, 0]],
     {"type": "stop", "matched": 0}),
    ("not before min_new_tokens", [[2], [2], [2]], {"min_new_tokens": 2}, [[2], [2], [2]],
     {"type": "stop", "matched": 2}),
    ("stream_interval", [[5], [6], [7], [8], [9]], {"stream_interval": 2, "max_new_tokens": 5},
     [[5, 6], [7, 8], [9]], {"type": "length", "length": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("frames", "given", "ids", "finish"), [row[1:] for row in STOPS],
                         ids=[row[0] for row in STOPS])  # fmt: skip
def test_stop_rules(
    runs: list[Run], frames: Any, given: Any, ids: list[list[int]], finish: Any
) -> None:
    run = start(runs, scripts=[Script(frames=frames)], eos_ids=[2])
    if "stop_strs" in given:
        given = {"stop_str_max_len": 4, **given}
    rows = run.answer("a", stream=True, **given)
    assert [row["ids"] for row in rows] == ids
    assert rows[-1]["finish"] == finish


def test_stops_without_a_tokenizer_are_refused(runs: list[Run]) -> None:
    run = start(runs, token_bytes=None)
    rows = run.answer("a", stop_strs=["x"], stop_str_max_len=1)
    assert rows[-1]["finish"]["status_code"] == 400 and rows[-1]["ended"]


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_grammars_are_refused(runs: list[Run], name: str) -> None:
    finish = start(runs).answer("a", **{name: "x"})[-1]["finish"]
    assert finish["type"] == "abort" and finish["status_code"] == 400 and name in finish["message"]


def test_logprobs_on_request(runs: list[Run]) -> None:
    run = scripted(runs, [5], [6])
    rows = run.answer(
        "a", (7, 8, 9), stream=True, return_logprob=True, logprob_start_len=1,
        top_logprobs_num=2, token_ids_logprob=[3], max_new_tokens=2,
    )  # fmt: skip
    assert rows[0]["out"] == ([logprob_of(5)], [5]) and rows[1]["out"] == ([logprob_of(6)], [6])
    assert rows[0]["in"] == ([None, logprob_of(9)], [8, 9]) and rows[1]["in"] == ([], [])
    assert rows[0]["out_top"] == [([logprob_of(5), logprob_of(5) - 1], [5, 6])]
    assert rows[0]["in_top"] == [None, ([logprob_of(9), logprob_of(9) - 1], [9, 10])]
    assert rows[0]["out_ids"] == [([logprob_of(5)], [3])]
    assert rows[0]["in_ids"] == [None, ([logprob_of(9)], [3])]
    assert rows[1]["in_top"] == [] and rows[1]["in_ids"] == []


def test_families_of_requests_that_asked_and_that_did_not(runs: list[Run]) -> None:
    run = start(runs, tick_ms=5)
    run.server.generate("a", [1], stream=True, max_new_tokens=30, return_hidden_states=True)
    run.server.generate("b", [1], stream=True, max_new_tokens=30)
    run.server.generate("c", [1], stream=True, max_new_tokens=30, return_logprob=True)
    run.server.wait(lambda: all(run.server.finish(rid) for rid in "abc"))
    for row in run.server.rows("a"):
        assert row["hidden"] == [[float(row["ids"][0] % 16)] * 4] and row["out"] == ([], [])
    assert all(row["hidden"] == [] and row["out"] == ([], []) for row in run.server.rows("b"))
    assert all(row["out"][1] == row["ids"] for row in run.server.rows("c"))
    assert run.server.rows("c")[0]["in"] == ([], [])  # logprob_start_len -1


def test_requests_beyond_the_batch_wait_and_are_aborted_there(runs: list[Run]) -> None:
    run = start(runs, max_running=1, tick_ms=1)
    server = run.server
    server.generate("run#1", [1], stream=True, max_new_tokens=900)
    server.wait(lambda: server.rows("run#1"))
    server.generate("wait#1", [1, 2, 3], stream=True)
    server.generate("wait#2", [1], stream=True, max_new_tokens=2)
    server.abort("wait#1")
    server.wait(lambda: server.finish("wait#1"))
    row = server.rows("wait#1")[-1]
    assert row["finish"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert row["ended"] and row["ids"] == [] and row["counts"][0] == 3
    assert not server.rows("wait#2")
    server.abort("run")  # by prefix
    server.wait(lambda: server.finish("run#1"))
    assert server.finish("run#1")["message"] == "Aborted"
    assert not server.rows("run#1")[-1]["ended"]
    server.wait(lambda: server.finish("wait#2"))
    assert server.finish("wait#2") == {"type": "length", "length": 2}


def test_abort_of_a_unary_request_brings_the_tokens_so_far(runs: list[Run]) -> None:
    run = start(runs, tick_ms=1)
    run.server.generate("probe", [1], stream=True, max_new_tokens=900)
    run.server.generate("a", [1], max_new_tokens=900)
    run.server.wait(lambda: len(run.server.rows("probe")) > 10)
    run.server.abort("", abort_all=True)
    run.server.wait(lambda: run.server.finish("a") and run.server.finish("probe"))
    assert len(run.server.ids("a")) >= 10
    assert run.server.finish("a")["message"] == "Aborted"


def test_abort_of_nobody_is_nothing(runs: list[Run]) -> None:
    run = start(runs)
    run.server.abort("nobody")
    assert run.answer("a", max_new_tokens=1)


def test_health_probes(runs: list[Run]) -> None:
    run = start(runs, scripts=[Script(faults=[Fault("silence")])])
    run.answer("HEALTH_CHECK_1", (0,), max_new_tokens=1)
    assert run.server.acks == 0
    run.server.generate("busy", [1], stream=True)
    run.server.generate("HEALTH_CHECK_2", [0], max_new_tokens=1)
    run.server.generate("HEALTH_CHECK_3", [0], max_new_tokens=1)
    run.server.wait(lambda: run.server.acks)
    assert not run.server.rows("HEALTH_CHECK_2")


def test_control_requests(runs: list[Run]) -> None:
    run = start(runs, max_running=7)
    server = run.server
    server.ask("FlushCacheReqInput", "f", timeout_s=0.0)
    server.ask("GetInternalStateReq", "s")
    server.ask("CheckWeightsReqInput", "w")
    server.ask("ClearHiCacheReqInput", "h")
    server.ask("AttachHiCacheStorageReqInput", "t", hicache_storage_backend="file")
    server.wait(lambda: len(server.control) == 5)
    base = {"rid": None, "http_worker_ipc": None}
    assert server.control["f"] == {**base, "success": True, "message": ""}
    assert server.control["s"]["internal_state"]["max_running_requests"] == 7
    assert server.control["w"] == {**base, "success": True, "message": "Success.", "payload": []}
    assert server.control["h"] == {**base, "success": False}
    assert not server.control["t"]["success"]


def test_flush_while_busy_fails(runs: list[Run]) -> None:
    run = start(runs, scripts=[Script(faults=[Fault("silence")])])
    run.server.generate("a", [1])
    run.server.ask("FlushCacheReqInput", "f")
    run.server.wait(lambda: run.server.control)
    assert not run.server.control["f"]["success"]


def test_a_flush_waits_for_running_requests_within_its_time(runs: list[Run]) -> None:
    run = start(runs, scripts=[Script(rid="a", faults=[Fault("silence")])])
    server = run.server
    server.generate("a", [1])
    server.ask("FlushCacheReqInput", "soon", timeout_s=0.05)
    server.wait(lambda: "soon" in server.control)
    assert not server.control["soon"]["success"] and server.control["soon"]["message"]
    server.ask("FlushCacheReqInput", "late", timeout_s=60.0)
    server.ask("FlushCacheReqInput", "second", timeout_s=60.0)
    server.wait(lambda: "second" in server.control)
    assert not server.control["second"]["success"] and "late" not in server.control
    server.abort("a")
    server.wait(lambda: "late" in server.control)
    assert server.control["late"]["success"]


def test_unreadable_messages_are_answered_if_they_name_anyone(runs: list[Run]) -> None:
    run = start(runs)
    run.server.send(PACK(["TokenizedGenerateReqInput", "bad", None, 5]))
    run.server.send(b"\xc1")
    run.server.send(PACK(["Nonsense", "worse"]))
    run.answer("a", max_new_tokens=1)
    assert run.server.errors == [
        ("bad", "invalid request: Expected `array` of at least length 14, got 4"),
        ("worse", "invalid request: Invalid value 'Nonsense' - at `$[0]`"),
    ]


def faulty(runs: list[Run], *faults: Fault, **settings: Any) -> Run:
    scripts = [Script(rid="f", frames=[[1], [2], [3]], faults=faults)]
    return start(runs, scripts=scripts, **settings)


@pytest.mark.parametrize("kind", ["malformed", "cut"])
def test_a_spoilt_frame_names_its_request_alone(runs: list[Run], kind: str) -> None:
    run = faulty(runs, Fault(kind, at=1))
    run.server.generate("other", [1], stream=True, max_new_tokens=50)
    rows = run.answer("f", stream=True)
    assert [row["ids"] for row in rows] == [[1], [3], []]
    assert [error.rids for error in run.server.malformed] == [["f"]]
    run.server.wait(lambda: run.server.finish("other"))
    assert len(run.server.ids("other")) == 50


def test_garbage_names_nobody(runs: list[Run]) -> None:
    run = faulty(runs, Fault("garbage", at=1))
    run.answer("f", stream=True)
    assert [error.rids for error in run.server.malformed] == [[]]


def test_duplicate_unknown_and_out_of_vocabulary(runs: list[Run]) -> None:
    run = faulty(runs, Fault("duplicate", at=1))
    run.answer("f", stream=True)
    assert run.server.ids("f") == [1, 2, 2, 3]
    run = faulty(runs, Fault("unknown_rids", at=1, size=3))
    run.answer("f", stream=True)
    strangers = [row["rid"] for frame in run.server.frames for row in frame if row["rid"] != "f"]
    assert len(strangers) == 3 and run.server.ids("f") == [1, 2, 3]
    run = faulty(runs, Fault("out_of_vocabulary", at=1))
    run.answer("f", stream=True)
    assert run.server.ids("f") == [1, len(TOKENS) + 2, 3]


def test_giant_hidden_states(runs: list[Run]) -> None:
    run = faulty(runs, Fault("giant_hidden", at=1, size=5000))
    rows = run.answer("f", stream=True, return_logprob=True, return_hidden_states=True)
    assert [len(row["hidden"][0]) for row in rows[:3]] == [4, 5000, 4]
    assert rows[1]["out"] == ([logprob_of(2)], [2])
    run = faulty(runs, Fault("giant_hidden", at=0, size=5000))
    assert len(run.answer("f", stream=True)[0]["hidden"][0]) == 5000


def test_error_and_abort_on_request(runs: list[Run]) -> None:
    run = faulty(runs, Fault("error", at=1, text="no"))
    run.server.generate("f", [1], stream=True)
    run.server.wait(lambda: run.server.errors)
    assert run.server.errors == [("f", "no")] and run.server.ids("f") == [1]
    run = faulty(runs, Fault("abort", at=1, text="gone", status=503))
    finish = run.answer("f", stream=True)[-1]["finish"]
    assert finish == {"type": "abort", "message": "gone", "status_code": 503, "err_type": None}


def test_silence_lasts_until_the_abort(runs: list[Run]) -> None:
    run = faulty(runs, Fault("silence", at=1))
    run.server.generate("f", [1], stream=True)
    run.server.generate("other", [1], stream=True, max_new_tokens=60)
    run.server.wait(lambda: run.server.finish("other"))
    assert run.server.ids("f") == [1] and run.server.finish("f") is None
    run.server.abort("f")
    run.server.wait(lambda: run.server.finish("f"))
    assert run.server.finish("f")["type"] in ("abort", "stop")


def test_late_frames_come_together_and_hold_nobody_up(runs: list[Run]) -> None:
    run = faulty(runs, Fault("late", at=1, ms=100))
    run.server.generate("f", [1], stream=True)
    run.server.wait(lambda: run.server.rows("f"))
    run.server.generate("other", [1], stream=True, max_new_tokens=20)
    run.server.wait(lambda: run.server.finish("f"))
    assert [row["ids"] for row in run.server.rows("f")] == [[1], [2, 3]]
    run.server.wait(lambda: run.server.finish("other"))


def test_engine_wide_faults_hit_whole_frames(runs: list[Run]) -> None:
    run = start(runs, faults=[Fault("malformed", every=4), Fault("late", at=2, ms=5)])
    run.answer("a", stream=True, max_new_tokens=11)
    assert [error.rids for error in run.server.malformed] == [["a"]] * 2
    assert len(run.server.ids("a")) == 9
    with pytest.raises(ScriptError, match="belongs in a script"):
        SyntheticEngine(SyntheticSettings(10, faults=[Fault("error")]))


def test_it_ends_when_the_server_is_gone(runs: list[Run]) -> None:
    run = start(runs)
    run.server.closed = True
    run.server.generate("a", [1], stream=True, max_new_tokens=900)
    run.thread.join(20)
    assert not run.thread.is_alive()


def test_it_can_be_stopped_in_an_endless_fault(runs: list[Run]) -> None:
    run = start(runs, faults=[Fault("silence", at=0)])
    run.server.generate("a", [1], stream=True)
    run.server.wait(lambda: not run.server.inbox)
    run.end()


def test_counters(runs: list[Run]) -> None:
    run = start(runs)
    run.answer("a", stream=True, max_new_tokens=7)
    run.end()
    engine = run.engine
    assert (engine.received, engine.finished, engine.tokens, engine.frames) == (1, 1, 7, 7)
    assert not engine.running and not engine.waiting


def test_scripts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    body = {
        "scripts": [
            {"prompt": "Hello", "frames": [[11, 12], "ab", {"hex": "f09f"}], "repeat": True},
            {"prompt_ids": [5, 6], "finish": {"type": "stop", "matched": 2}, "times": 2},
            {"rid": "x", "faults": [{"kind": "late", "at": 2, "ms": 500}]},
        ],
        "faults": [{"kind": "unknown_rids", "every": 100, "size": 3}],
    }
    path.write_text(json.dumps(body))
    scripts, faults = load_script(path)
    assert scripts[0].prompt == "Hello" and scripts[0].repeat
    assert scripts[0].token_frames(list(range(256))) == [[11, 12], [97, 98], [0xF0, 0x9F]]
    assert scripts[1].prompt == [5, 6] and scripts[1].times == 2 and scripts[1].frames is None
    assert scripts[1].finish == {"type": "stop", "matched": 2}
    assert (scripts[2].faults[0].kind, scripts[2].faults[0].ms) == ("late", 500.0)
    assert faults[0].hits(100) and not faults[0].hits(0) and not faults[0].hits(50)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "the script is not an object"),
        ({"script": []}, "the script has no field 'script', expected one of scripts, faults"),
        ({"scripts": {}}, "scripts is not a list"),
        ({"scripts": [5]}, "scripts[0] is not an object"),
        ({"scripts": [{"frame": []}]}, "scripts[0] has no field 'frame'"),
        ({"scripts": [{"frames": [5]}]}, "scripts[0].frames[0] is not a list"),
        ({"scripts": [{"frames": [["a"]]}]}, "scripts[0].frames[0] holds something other"),
        ({"scripts": [{"frames": [{"hex": "zz"}]}]}, "scripts[0].frames[0].hex"),
        ({"scripts": [{"prompt": "a", "prompt_ids": [1]}]}, "scripts[0] has both"),
        ({"scripts": [{"rid": 5}]}, "scripts[0].rid is not of its type"),
        ({"scripts": [{"times": True}]}, "scripts[0].times is not of its type"),
        ({"scripts": [{"finish": "stop"}]}, "scripts[0].finish is not an object"),
        ({"scripts": [{"faults": [{}]}]}, "scripts[0].faults[0] has no kind"),
        ({"faults": [{"kind": "x"}]}, f"faults[0]: unknown fault 'x', expected one of {FAULTS[0]}"),
        ({"faults": [{"kind": "late", "ms": "1"}]}, "faults[0].ms is not of its type"),
    ],
)
def test_bad_scripts_are_refused_by_place(body: Any, text: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse_script(body)
    assert str(caught.value).startswith(text)


def test_bad_script_files_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    for text in ("{", '{"scripts": 5}'):
        path.write_text(text)
        with pytest.raises(ScriptError, match=r"script\.json: "):
            load_script(path)
    with pytest.raises(ScriptError, match=r"missing\.json"):
        load_script(tmp_path / "missing.json")
