"""How requests end, are refused, aborted or fail, and control messages of the embedded engine."""

from __future__ import annotations

import threading
from array import array
from typing import Any

import pytest

from tests.fake_server import PACK
from tests.llama_driver import Driver, ids_of, load_tiny, scripted
from tests.llama_models import TinyModel
from tpc_server.boundary.messages import GENERATE, generate_template
from tpc_server.engines.llama import output

GREEDY: dict[str, Any] = {"top_k": 1, "ignore_eos": True}
FOREVER: dict[str, Any] = {"top_k": 1, "ignore_eos": True, "max_new_tokens": 1000}
BAD = {"status_code": 400, "err_type": "BadRequestError"}


def stop_params(*strings: str, window: int = 16) -> dict[str, Any]:
    return {"stop_strs": list(strings), "stop_str_max_len": window}


# -- stops ----------------------------------------------------------------------------


def test_a_stop_string_over_several_tokens_is_never_sent_in_part(tmp_path) -> None:
    engine = scripted(tmp_path, {40: ids_of("xxfoostoptail")})
    for stream in (True, False):
        driver = Driver()
        driver.generate("r", [40], stream=stream, **stop_params("stop"), **FOREVER)
        driver.run(engine)
        assert driver.ids("r") == ids_of("xxfoostop")
        assert driver.finish("r") == {"type": "stop", "matched": "stop"}
        frames = ["".join(chr(94 + i) for i in row["ids"]) for row in driver.rows("r")]
        assert frames == (["x", "x", "f", "o", "o", "stop"] if stream else ["xxfoostop"])


def test_what_was_held_back_goes_out_when_it_comes_to_nothing(tmp_path) -> None:
    engine = scripted(tmp_path, {40: ids_of("ast" + "ar"), 41: ids_of("ast")})
    driver = Driver()
    driver.generate("star", [40], stream=True, max_new_tokens=5, **stop_params("stop"), **GREEDY)
    driver.generate("cut", [41], stream=True, max_new_tokens=3, **stop_params("stop"), **GREEDY)
    driver.run(engine)
    assert [row["ids"] for row in driver.rows("star")] == [
        ids_of("a"), ids_of("sta"), ids_of("r"),
    ]  # fmt: skip
    assert [row["ids"] for row in driver.rows("cut")] == [ids_of("a"), ids_of("st")]
    assert driver.finish("cut") == {"type": "length", "length": 3}


def test_the_forced_frame_of_a_unary_request_holds_back_too(tmp_path) -> None:
    engine = scripted(tmp_path, {40: ids_of("a" * 48 + "st" + "op")})
    driver = Driver()
    driver.generate("r", [40], **stop_params("stop"), **FOREVER)
    driver.run(engine)
    assert [len(row["ids"]) for row in driver.rows("r")] == [52]


def test_the_first_stop_of_the_request_wins(tmp_path) -> None:
    engine = scripted(tmp_path, {40: ids_of("a\nb")})
    cases = [
        (("b", "\n"), "a\n", "\n"),  # found first in time
        (("x\n", "\n"), "a\n", "\n"),
        (("a\nb", "b"), "a\nb", "a\nb"),  # both at once: in the order of the request
        (("b", "a\nb"), "a\nb", "b"),
    ]
    for stops, text, matched in cases:
        driver = Driver()
        driver.generate("r", [40], **stop_params(*stops), **FOREVER)
        driver.run(engine)
        assert driver.ids("r") == ids_of(text)
        assert driver.finish("r") == {"type": "stop", "matched": matched}


def test_a_stop_string_beats_an_eos_and_a_length_in_the_same_step(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [*ids_of("ab"), 2]})
    driver = Driver()
    driver.generate("r", [40], top_k=1, max_new_tokens=3, **stop_params("b<2>"))
    driver.generate("eos", [40], top_k=1, max_new_tokens=3)
    driver.run(engine)
    assert driver.finish("r") == {"type": "stop", "matched": "b<2>"}, "special tokens are text here"
    assert driver.finish("eos") == {"type": "stop", "matched": 2}


def test_patterns(tmp_path) -> None:
    engine = scripted(tmp_path, {40: ids_of("aacbz")})
    driver = Driver()
    given = {"stop_regex_max_len": 3, **FOREVER}
    driver.generate("r", [40], stream=True, stop_regex_strs=["q", "c[a-c]"], **given)
    driver.generate("none", [40], stop_regex_strs=["^z$"], **given | {"max_new_tokens": 6})
    driver.generate("open", [40], stop_regex_strs=["a.*z"], **given | {"stop_regex_max_len": 0})
    driver.generate("bad", [40], stop_regex_strs=["(a"], **given)
    driver.run(engine)
    assert driver.ids("r") == ids_of("aacb")
    assert driver.finish("r") == {"type": "stop", "matched": "c[a-c]"}
    assert [len(row["ids"]) for row in driver.rows("r")] == [1] * 4, "patterns hold nothing back"
    assert driver.finish("none") == {"type": "length", "length": 6}
    assert driver.finish("open") == {"type": "stop", "matched": "a.*z"}
    bad = driver.finish("bad")
    assert bad["message"].startswith("invalid stop_regex '(a'") and bad["status_code"] == 400


def test_only_the_window_is_searched(tmp_path) -> None:
    engine = scripted(tmp_path, {40: ids_of("stop")})
    driver = Driver()
    driver.generate("r", [40], **stop_params("stop", window=2), **FOREVER | {"max_new_tokens": 9})
    driver.generate("counted", [40], stop_strs=["stop"], stop_str_max_len=0, **FOREVER)
    driver.run(engine)
    assert driver.finish("r") == {"type": "length", "length": 9}
    assert driver.finish("counted") == {"type": "stop", "matched": "stop"}


def test_a_request_whose_stops_were_not_normalized(tmp_path) -> None:
    engine = scripted(tmp_path, {40: ids_of("abc")})
    driver = Driver()
    given: dict[str, Any] = {"stop_strs": None, "stop_regex_strs": None, "is_normalized": False}
    driver.generate("one", [40], stop="b", **given, **FOREVER)
    driver.generate("list", [40], stop=["q", "c"], **given, **FOREVER)
    driver.generate("regex", [40], stop_regex="b|c", **given, **FOREVER)
    driver.run(engine)
    assert [driver.finish(r)["matched"] for r in ("one", "list", "regex")] == ["b", "c", "b|c"]


def test_stop_ids(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, 0, 6]})
    driver = Driver()
    driver.generate("zero", [40], top_k=1, stop_token_ids=[0])
    driver.run(engine)
    assert driver.ids("zero") == [5, 0]
    assert driver.finish("zero") == {"type": "stop", "matched": 0}


def test_logits_without_numbers_end_one_request(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, float("nan"), 6], 41: [5, 6, 7]})
    driver = Driver()
    driver.generate("nan", [40], stream=True, **FOREVER)
    driver.generate("good", [41], **FOREVER | {"max_new_tokens": 3})
    driver.run(engine)
    assert driver.finish("nan") == {"type": "stop", "matched": "NaN happened"}
    assert driver.ids("nan") == [5, 2], "the eos id stands in"
    assert driver.ids("good") == [5, 6, 7]


# -- refusals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"json_schema": "{}"}, "json_schema is not supported"),
        ({"regex": "a"}, "regex is not supported"),
        ({"ebnf": "a"}, "ebnf is not supported"),
        ({"structural_tag": "{}"}, "structural_tag is not supported"),
        ({"beam_width": 2}, "beam search"),
        ({"watermark": {"a": 1}}, "watermark"),
        ({"lora_id": "x"}, "LoRA adapters"),
        ({"custom_logit_processor": "x"}, "custom_logit_processor"),
        ({"input_embeds": [[0.5]]}, "input_embeds"),
        ({"mm_inputs": {"a": 1}}, "image, video and audio input"),
        ({"session_params": [None] * 5}, "session_params"),
        ({"return_routed_experts": True}, "return_routed_experts"),
        ({"return_sampling_mask": True}, "return_sampling_mask"),
        ({"stop_strs": [""]}, "stop cannot contain an empty string"),
        ({"temperature": -0.5}, "temperature must be in"),
        ({"temperature": float("nan")}, "temperature must be in"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p must be in [0, 1]"),
        ({"top_k": 0}, "top_k must be -1"),
        ({"min_p": 2.0}, "min_p must be in"),
        ({"frequency_penalty": 3.0}, "frequency_penalty must be in [-2, 2]"),
        ({"presence_penalty": -3.0}, "presence_penalty must be in"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens"),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0"),
        ({"stream_interval": 0}, "stream_interval must be at least 1"),
        ({"logit_bias": {"80": 1.0}}, "logit_bias must have keys in [0, 79]"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias must have keys"),
        ({"return_logprob": True, "logprob_start_len": 3}, "logprob_start_len=3 is higher"),
        ({"return_logprob": True, "top_logprobs_num": 99}, "top_logprobs_num must be in"),
        ({"return_logprob": True, "token_ids_logprob": [80]}, "token_ids_logprob must be in"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [80]}, "80, which is outside the vocabulary (0 to 79)"),
        ({"prompt": [-1]}, "-1, which is outside"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_with_a_reason(given, text, tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, 6]})
    driver = Driver()
    prompt = given.pop("prompt", [40, 5])
    driver.generate("bad", prompt, **{"max_new_tokens": 3, **given})
    driver.generate("good", [40], **FOREVER | {"max_new_tokens": 2})
    driver.run(engine)
    (row,) = driver.rows("bad")
    assert row["ids"] == [] and row["counts"] == [len(prompt), 0, 0]
    assert row["finish"]["type"] == "abort" and row["finish"] == {**row["finish"], **BAD}
    assert text in row["finish"]["message"]
    assert driver.ids("good") == [5, 6]


def test_a_field_of_newer_frontends_is_refused_too(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    driver = Driver()
    message = generate_template()
    message[GENERATE["rid"]] = "bad"
    message += [False, "support", None][: GENERATE["lora_name"] + 1 - len(message)]
    assert message[GENERATE["sampling_logprobs_mode"]] == "support"
    driver.send(PACK(message), [("input_ids", array("q", [40]))])
    driver.run(engine)
    assert "sampling_logprobs_mode" in driver.finish("bad")["message"]


def test_stops_need_a_decoder(tmp_path) -> None:
    engine = load_tiny(TinyModel(0), tmp_path, decode=None)
    driver = Driver()
    driver.generate("bad", [40], **stop_params("stop"), **FOREVER)
    driver.generate("good", [40], **GREEDY, max_new_tokens=2)
    driver.run(engine)
    assert "skip_tokenizer_init" in driver.finish("bad")["message"]
    assert driver.finish("good") == {"type": "length", "length": 2}


def test_values_that_mean_a_default(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, 6]})
    driver = Driver()
    driver.generate("greedy", [40], temperature=0.0, max_new_tokens=2, ignore_eos=True)
    driver.generate("all", [40], top_k=-1, temperature=1e-7, max_new_tokens=2, ignore_eos=True)
    driver.generate("bias", [40], logit_bias={"9": 50.0}, max_new_tokens=2, **GREEDY)
    driver.run(engine)
    assert driver.ids("greedy") == driver.ids("all") == [5, 6]
    assert driver.ids("bias") == [9, 9]


def test_penalties_count_what_was_generated(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5] * 30})
    driver = Driver()
    given = {"max_new_tokens": 30, **GREEDY}
    driver.generate("freq", [40], frequency_penalty=2.0, **given)
    driver.generate("plain", [40], **given)
    driver.run(engine)
    # The script's logit is 12: six times 2, then a tie with all others, which are 0.
    assert driver.ids("freq")[:6] == [5] * 6
    assert set(driver.ids("freq")[7:]) != {5}
    assert driver.ids("plain") == [5] * 30


def test_a_full_queue_refuses(tmp_path) -> None:
    engine = scripted(tmp_path, {}, max_running_requests=1, max_queued_requests=2)
    driver = Driver()
    for k in range(4):
        driver.generate(f"r{k}", [40], max_new_tokens=3, **GREEDY)
    driver.run(engine)
    # All four were read at once: two fit in the queue.
    assert [driver.finish(f"r{k}")["type"] for k in range(4)] == ["length", "length"] + [
        "abort"
    ] * 2
    assert driver.finish("r3")["status_code"] == 503
    assert driver.finish("r3")["message"] == "The request queue is full."


def test_a_small_cache_makes_requests_wait_but_serves_all(tmp_path) -> None:
    engine = scripted(tmp_path, {}, kv_tokens=50)
    driver = Driver()
    for k in range(6):
        driver.generate(f"r{k}", [40, k], max_new_tokens=20, **GREEDY)
    most: list[int] = []
    for look in range(60):
        driver.at[look] = lambda: most.append(len(engine._scheduler.running))
    driver.run(engine)
    assert max(most) == 2
    assert all(driver.finish(f"r{k}") == {"type": "length", "length": 20} for k in range(6))


# -- aborts ---------------------------------------------------------------------------


def test_aborts_of_running_and_waiting_requests(tmp_path) -> None:
    engine = scripted(tmp_path, {}, max_running_requests=2)
    driver = Driver()
    for rid in ("run1", "run2", "wait1", "wait2"):
        driver.generate(rid, [40], stream=rid == "run1", **FOREVER)
    driver.at[5] = lambda: driver.abort("wait1")
    driver.at[6] = lambda: driver.abort("run")
    driver.at[8] = lambda: driver.abort("", abort_all=True)
    driver.run(engine)
    aborted = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    (row,) = driver.rows("wait1")
    assert row["finish"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert row["ended"] is True and row["ids"] == [] and row["weights"] == [["default", 0, 0]]
    # Six steps ran before; a stream had them one by one, the other gets them now.
    assert len(driver.ids("run1")) == len(driver.ids("run2")) == 6
    assert driver.finish("run1") == driver.finish("run2") == aborted
    assert len(driver.rows("run2")) == 1 and driver.rows("run2")[0]["ended"] is None
    assert driver.finish("wait2") == aborted, "it was running by then"
    assert engine._cache.promised == 0


def test_an_abort_without_a_rid_ends_nothing(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    driver = Driver()
    driver.generate("r", [40], max_new_tokens=9, **GREEDY)
    driver.at[2] = lambda: driver.abort("")
    driver.at[3] = lambda: driver.send(PACK(["AbortReq", None, None, False, None, None]))
    driver.at[4] = lambda: driver.abort("unknown")
    driver.run(engine)
    assert driver.finish("r") == {"type": "length", "length": 9}


def test_an_abort_may_bring_its_own_reason(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    driver = Driver()
    driver.generate("r", [40], **FOREVER)
    reason = {"type": "abort", "message": "moved away", "status_code": 503, "err_type": None}
    driver.at[3] = lambda: driver.send(PACK(["AbortReq", "r", None, False, reason, None]))
    driver.run(engine)
    assert driver.finish("r") == reason


def test_an_abort_in_the_middle_of_a_prompt(tmp_path) -> None:
    engine = scripted(tmp_path, {}, prefill_tokens=4, prefill_tokens_busy=4)
    driver = Driver()
    driver.generate("long", list(range(3, 63)), **FOREVER)
    driver.generate("other", [41], max_new_tokens=2, **GREEDY)
    driver.at[4] = lambda: driver.abort("long")
    driver.run(engine)
    (row,) = driver.rows("long")
    assert row["ids"] == [] and row["finish"]["message"] == "Aborted"
    assert driver.finish("other") == {"type": "length", "length": 2}


# -- health and control ---------------------------------------------------------------


def test_a_probe_runs_on_an_idle_engine_and_is_acknowledged_by_a_busy_one(tmp_path) -> None:
    engine = scripted(tmp_path, {}, max_running_requests=1)
    driver = Driver()
    driver.generate("HEALTH_CHECK_1", [0], max_new_tokens=1, top_k=1)
    driver.run(engine)
    assert len(driver.ids("HEALTH_CHECK_1")) == 1 and driver.acks == 0
    assert engine._cache.held() == 0, "a probe leaves nothing behind"
    driver = Driver()
    driver.generate("r", [40], max_new_tokens=5, **GREEDY)
    driver.at[2] = lambda: driver.generate("HEALTH_CHECK_2", [0], max_new_tokens=1, top_k=1)
    driver.run(engine)
    assert driver.acks == 1 and driver.rows("HEALTH_CHECK_2") == []


def flush_answer(success: bool, message: str = "") -> dict[str, Any]:
    return {"rid": None, "http_worker_ipc": None, "success": success, "message": message}


def test_the_cache_is_flushed_when_nothing_runs(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    driver = Driver()
    driver.generate("r", [40, 41, 42], max_new_tokens=3, **GREEDY)
    driver.at[1] = lambda: driver.ask("FlushCacheReqInput", "busy", timeout_s=0.0)
    driver.run(engine)
    assert driver.control["busy"] == flush_answer(False)
    assert engine._cache.held() > 0
    driver.ask("FlushCacheReqInput", "idle", timeout_s=0.0)
    driver.run(engine)
    assert driver.control["idle"] == flush_answer(True)
    assert engine._cache.held() == 0
    driver.generate("again", [40, 41, 42], max_new_tokens=3, **GREEDY)
    driver.run(engine)
    assert driver.rows("again")[0]["counts"] == [3, 0, 0]


def test_a_flush_may_wait_for_the_end_of_what_runs(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    driver = Driver()
    driver.generate("r", [40], max_new_tokens=9, **GREEDY)
    driver.at[1] = lambda: driver.ask("FlushCacheReqInput", "waits", timeout_s=60.0)
    driver.at[2] = lambda: driver.ask("FlushCacheReqInput", "second", timeout_s=60.0)
    driver.at[12] = lambda: None
    driver.run(engine)
    assert driver.control["waits"] == flush_answer(True)
    second = flush_answer(False, "Another flush_cache is already in progress.")
    assert driver.control["second"] == second
    driver.generate("r2", [40], max_new_tokens=200, **GREEDY)
    driver.at[driver.looks + 1] = lambda: driver.ask("FlushCacheReqInput", "late", timeout_s=1e-6)
    driver.run(engine)
    assert driver.control["late"] == flush_answer(False, "Timed out waiting for idle state.")


def test_the_internal_state(tmp_path) -> None:
    engine = scripted(tmp_path, {}, max_running_requests=2)
    driver = Driver()
    for k in range(3):
        driver.generate(f"r{k}", [40], max_new_tokens=9, **GREEDY)
    driver.at[4] = lambda: driver.ask("GetInternalStateReq", "state")
    driver.run(engine)
    answer = driver.control["state"]
    assert set(answer) == {"rid", "http_worker_ipc", "internal_state"}
    state = answer["internal_state"]
    assert state["effective_max_running_requests_per_dp"] == 2
    assert state["num_running_reqs"] == 2 and state["num_queue_reqs"] == 1
    assert state["max_total_num_tokens"] == engine.stats()["kv_budget_tokens"]
    assert state["last_gen_throughput"] >= 0


def test_messages_that_are_not_for_this_engine(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    driver = Driver()
    driver.ask("CheckWeightsReqInput", "weights")
    driver.send(PACK(["ProfileReq", "profile", None]))
    driver.run(engine)
    (first, second) = driver.errors
    assert first == ("weights", "CheckWeightsReqInput is not supported by the embedded engine")
    assert second[0] == "profile" and second[1].startswith("invalid request: Invalid value")


def test_a_message_that_does_not_decode_harms_no_other(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, 6]})
    driver = Driver()
    message = generate_template()
    message[GENERATE["rid"]] = "broken"
    message[GENERATE["token_ids_logprob"]] = [[0]]
    driver.send(PACK(message), [("input_ids", array("q", [40]))])
    driver.send(b"\xdc\xff")
    driver.send(PACK(generate_template()), [("input_ids", array("q", [40]))])
    driver.generate("good", [40], max_new_tokens=2, **GREEDY)
    driver.run(engine)
    ((rid, text),) = driver.errors
    assert rid == "broken"
    expected = "invalid request: Expected `int`, got `array` - at `$.token_ids_logprob[0]`"
    assert text == expected
    assert driver.ids("good") == [5, 6]
    assert len(engine.log_lines) == 2  # type: ignore[attr-defined]


# -- our own faults -------------------------------------------------------------------


def test_a_computation_that_fails_ends_what_it_was_for(tmp_path) -> None:
    fault = RuntimeError("no such luck")
    engine = scripted(tmp_path, {40: [5, 6, fault], 41: [7] * 9}, max_running_requests=2)
    driver = Driver()
    driver.generate("bad", [40], stream=True, **FOREVER)
    driver.generate("beside", [41], **FOREVER)
    driver.generate("next", [41], max_new_tokens=4, **GREEDY)
    driver.run(engine)
    failed = {
        "type": "abort",
        "message": "internal error: RuntimeError: no such luck",
        "status_code": 500,
        "err_type": "InternalServerError",
    }
    assert driver.finish("bad") == driver.finish("beside") == failed
    assert driver.ids("bad") == [5, 6]
    assert driver.ids("next") == [7] * 4
    assert driver.rows("next")[0]["counts"][1] == 0, "nothing of the failed pass may be reused"
    assert engine.stats()["failures"] == 2 and engine._cache.promised == 0


def test_a_decoder_that_fails_ends_only_its_request(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, 6, 7, 8], 41: [5, 9, 7, 8]})

    def decode(ids: list[int]) -> str:
        if 9 in ids:
            raise ValueError("cannot decode 9")
        return "x"

    engine._scheduler._decode = decode
    driver = Driver()
    for rid, key in (("good", 40), ("bad", 41)):
        driver.generate(rid, [key], max_new_tokens=4, **stop_params("q"), **GREEDY)
    driver.run(engine)
    assert driver.finish("bad")["status_code"] == 500
    assert driver.ids("good") == [5, 6, 7, 8]


def test_a_row_that_cannot_be_packed_is_the_only_one_lost(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5] * 9, 41: [6] * 9})
    driver = Driver()
    driver.generate("bad", [40], stream=True, max_new_tokens=9, **GREEDY)
    driver.generate("good", [41], stream=True, max_new_tokens=9, **GREEDY)

    def spoil() -> None:
        (bad,) = (r for r in engine._scheduler.running if r.rid == "bad")
        bad.cached = object()  # type: ignore[assignment]

    driver.at[3] = spoil
    driver.run(engine)
    assert [rid for rid, _ in driver.errors] == ["bad"]
    assert driver.ids("bad") == [5] * 3
    assert driver.ids("good") == [6] * 9
    assert engine._cache.promised == 0


def test_memory_that_runs_out_ends_only_its_request(tmp_path, monkeypatch) -> None:
    engine = scripted(tmp_path, {40: [5] * 600, 41: [6] * 9})
    driver = Driver()
    driver.generate("large", [40], max_new_tokens=600, **GREEDY)
    driver.generate("small", [41], max_new_tokens=9, **GREEDY)
    for slot in engine._cache.slots:
        monkeypatch.setattr(type(slot), "_room", limited_room(type(slot)._room))
    driver.run(engine)
    assert driver.finish("large")["message"].startswith("internal error: MemoryError")
    assert driver.ids("small") == [6] * 9


def limited_room(real):
    def room(slot, capacity: int):
        if capacity > 256:
            raise MemoryError("full")
        return real(slot, capacity)

    return room


def test_a_fault_of_the_scheduler_ends_what_runs_and_the_engine_goes_on(tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5] * 9})
    driver = Driver()
    driver.generate("first", [40], **FOREVER)
    real = engine._scheduler._pieces

    def broken(failed):
        engine._scheduler._pieces = real  # type: ignore[method-assign]
        raise KeyError("bug")

    def spoil() -> None:
        engine._scheduler._pieces = broken  # type: ignore[method-assign]

    driver.at[3] = spoil
    driver.at[5] = lambda: driver.generate("second", [40], max_new_tokens=4, **GREEDY)
    driver.run(engine)
    assert driver.finish("first")["status_code"] == 500
    assert driver.ids("second") == [5] * 4


def test_a_fault_with_a_message_is_told_its_sender(tmp_path, monkeypatch) -> None:
    engine = scripted(tmp_path, {40: [5] * 9})

    def broken(*given: Any) -> Any:
        raise KeyError("bug")

    monkeypatch.setattr(output, "build_refusal", broken)
    driver = Driver()
    driver.generate("bad", [], max_new_tokens=1)
    driver.generate("good", [40], max_new_tokens=2, **GREEDY)
    driver.run(engine)
    assert driver.errors == [("bad", "internal error: 'bug'")]
    assert driver.ids("good") == [5, 5]


# -- the loop -------------------------------------------------------------------------


def test_the_engine_ends_when_told_or_when_the_server_is_gone(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    stopping = threading.Event()
    driver = Driver()
    driver.closed = True
    driver.generate("r", [40], **FOREVER | {"stream": True})
    engine.run(driver, stopping)  # a push says False: returns
    assert len(driver.rows("r")) == 1

    class Parked(Driver):
        def wait_request(self, timeout_ms: int = 1000) -> bool:
            stopping.set()
            return False

    engine = scripted(tmp_path, {})
    engine.run(Parked(), stopping)
    assert stopping.is_set()


def test_a_closed_server_is_not_asked_in_a_busy_loop(tmp_path) -> None:
    engine = scripted(tmp_path, {})
    stopping = threading.Event()
    asked: list[int] = []

    class Closed(Driver):
        def wait_request(self, timeout_ms: int = 1000) -> bool:
            asked.append(timeout_ms)
            return False

    thread = threading.Thread(target=engine.run, args=(Closed(), stopping))
    thread.start()
    thread.join(0.5)
    stopping.set()
    thread.join(20)
    assert not thread.is_alive()
    assert 1 <= len(asked) <= 60


def beside_one_that_decodes(folder, prompt: list[int], **wish: Any) -> tuple[Driver, list[int]]:
    """What a request gets, and the sizes of its prompt's pieces."""
    engine = scripted(folder, {}, prefill_tokens_busy=16, prefix_cache=False)
    model = engine._scheduler.model
    assert model.config.logits_cost() == 1 + 32 * 80 / (32 * 96 + 3 * 32 * 48)  # 4 / 3
    forward = model.forward
    sizes: list[int] = []

    def watched(pieces: Any) -> Any:
        sizes.extend([len(piece.ids) for piece in pieces[1:]])
        return forward(pieces)

    model.forward = watched  # type: ignore[method-assign]
    driver = Driver()
    driver.generate("decoding", [40], **FOREVER | {"max_new_tokens": 30})
    given = {**FOREVER, "max_new_tokens": 1, **wish}
    driver.at[3] = lambda: driver.generate("r", prompt, **given)
    driver.run(engine)
    return driver, sizes


def test_a_prompt_whose_logprobs_are_wanted_takes_no_more_of_a_step(tmp_path) -> None:
    """Its logits are computed too: its pieces beside others are smaller, its answer is the same."""
    prompt = [43] * 60
    wish = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5}
    assert beside_one_that_decodes(tmp_path, prompt)[1] == [16, 16, 16, 12]
    late = wish | {"logprob_start_len": 59}
    assert beside_one_that_decodes(tmp_path, prompt, **late)[1] == [16, 16, 16, 12]
    driver, sizes = beside_one_that_decodes(tmp_path, prompt, **wish)
    assert sizes == [12] * 5
    alone = Driver()
    alone.generate("r", prompt, **wish, **FOREVER | {"max_new_tokens": 1})
    alone.run(scripted(tmp_path, {}))
    (row,), (expected,) = driver.rows("r"), alone.rows("r")
    for name in ("in", "in_top", "out", "out_top"):
        assert row[name] == expected[name]


def test_a_step_computes_one_token_of_a_prompt_at_least(tmp_path) -> None:
    """Also where its logits cost more than the room there is."""
    engine = scripted(tmp_path, {}, prefill_tokens=1, prefill_tokens_busy=1)
    driver = Driver()
    wish = {"return_logprob": True, "logprob_start_len": 0}
    for rid in ("a", "b"):
        driver.generate(rid, [41, 42, 43], **wish, **FOREVER | {"max_new_tokens": 2})
    driver.run(engine)
    for rid in ("a", "b"):
        assert driver.ids(rid) == [77, 77] and len(driver.rows(rid)[0]["in"][0]) == 3
