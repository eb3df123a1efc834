"""Bugs that other frontends had: which tests are about which, and what these share. Owner: tests.

The numbers are those of the project's list of public reports; `test_known_bugs_table.py` sees to it
that each of them has its tests, and that these are there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import tiny_tokenizer
from tests.e2e.test_chat import TEMPLATE
from tests.http_client import Answer, Client
from tests.http_client import call as call_at
from tests.synthetic_server import Running

APIS = ("/generate", "/v1/completions", "/v1/chat/completions")
_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}

_TEXTS = "tests.e2e.test_known_bugs::test_text"
_UNIT = "tests.unit."
#: case -> tests, each of which fails where the bug is
CASES: dict[int, tuple[str, ...]] = {
    1: (_TEXTS, _UNIT + "test_text_detok::test_frame_by_frame"),
    2: (_TEXTS, _UNIT + "test_text_detok::test_frame_by_frame"),
    3: (_TEXTS,),
    4: (_TEXTS, _UNIT + "test_hold_back::test_the_llama_engine_does_too"),
    6: (_TEXTS,),
    7: (_TEXTS,),
    9: (_TEXTS,),
    11: (
        "tests.e2e.test_known_bugs::test_11_no_text_waits_for_a_stop_that_does_not_come",
        _UNIT + "test_stream_rules::test_wrong_streams_are_seen",  # of every stream of every test
    ),
    13: (
        _UNIT + "test_text_detok::test_a_token_costs_the_same_whatever_came_before",
        _UNIT + "test_text_detok::test_fallback_half_characters_cost_the_same_too",
        _UNIT + "test_text_windowed::test_a_window_that_never_settles_is_cut",
    ),
    15: (
        "tests.e2e.test_known_bugs_life::test_15_a_client_that_is_gone_is_aborted",
        "tests.e2e.test_children::test_a_disconnect_ends_them_all",
    ),
    16: (
        "tests.e2e.test_known_bugs_life::test_16_a_client_that_goes_before_the_first_token",
        "tests.e2e.test_children::test_a_disconnect_ends_them_all",
    ),
    17: ("tests.e2e.test_known_bugs_life::test_17_one_rid_twice",),
    19: ("tests.e2e.test_known_bugs_life::test_19_an_empty_abort_ends_nobody",),
    22: (
        "tests.e2e.test_known_bugs_life::test_22_readers_that_stop_and_readers_that_go_on",
        "tests.e2e.test_backpressure::test_incremental_reader_that_stops_is_aborted_alone",
        "tests.e2e.test_backpressure::test_cumulative_reader_that_stops_gets_the_newest_only",
        "tests.e2e.test_backpressure::test_incremental_reader_that_lags_loses_nothing",
        "tests.e2e.test_backpressure::test_a_reader_that_takes_nothing_is_given_up",
    ),
    23: (
        "tests.e2e.test_lifecycle::test_drain_lets_streams_finish_and_closes_connections",
        "tests.e2e.test_program::test_a_signal_drains_and_exits_with_0",
        "tests.e2e.test_program::test_what_does_not_finish_in_time_gets_an_error_and_done",
    ),
    24: (
        "tests.e2e.test_known_bugs_life::test_24_what_is_huge_costs_its_core_nothing",
        "tests.e2e.test_known_bugs_life::test_24_others_are_served_meanwhile",
        "tests.e2e.test_large_bodies::test_others_are_served_while_a_large_body_is_decoded",
        "tests.e2e.test_long_chat::test_other_streams_go_on_while_a_long_conversation_is_rendered",
    ),
    25: ("tests.e2e.test_known_bugs::test_25_no_such_temperature",),
    26: ("tests.e2e.test_known_bugs::test_26_nulls_are_defaults",),
    28: ("tests.e2e.test_known_bugs::test_28_ids_that_are_none",),
    31: (
        "tests.e2e.test_known_bugs::test_31_half_characters_in_json",
        "tests.e2e.test_known_bugs::test_31_bodies_that_are_no_object",
    ),
    34: ("tests.e2e.test_known_bugs::test_34_one_bos",),
    35: ("tests.e2e.test_known_bugs::test_35_stops_without_a_tokenizer",),
    38: ("tests.e2e.test_known_bugs::test_38_usage_chunks",),
    40: ("tests.e2e.test_known_bugs::test_40_usage_of_samples",),
    42: (
        "tests.e2e.test_access::test_no_key_is_ever_shown",
        "tests.e2e.test_program::test_keys_are_nowhere_to_be_read",
        "tests.e2e.test_http::test_server_info_is_an_allow_list",
    ),
    43: (
        "tests.e2e.test_access::test_every_route_without_a_key",
        "tests.e2e.test_access::test_however_a_path_is_written",
        "tests.e2e.test_access::test_what_a_key_opens",
        "tests.e2e.test_small_routes::test_a_path_that_a_proxy_puts_in_front",
    ),
    45: (
        "tests.e2e.test_http::test_expect_continue",
        "tests.e2e.test_access::test_a_bad_key_is_told_before_the_body_is_read",
    ),
    46: ("tests.e2e.test_smuggling::test_no_smuggling", _UNIT + "test_http1::test_what_is_refused"),
    49: ("tests.e2e.test_known_bugs_life::test_49_one_tokenizer_and_many_threads",),
    50: (
        "tests.e2e.test_known_bugs_life::test_50_no_event_loop_of_the_standard_library",
        "tests.stress.test_server_stress::test_the_whole_server",
    ),
    51: ("tests.e2e.test_known_bugs::test_51_empty_stop",),
}


def write_model(folder: Path, adds_bos: bool = False) -> Path:
    """The byte tokenizer with a chat template; `adds_bos`: to every text. Its file asks for
    truncation and padding, which a server does neither."""
    made = tiny_tokenizer.tokenizer_json()
    if adds_bos:
        bos = {"id": "<bos>", "ids": [tiny_tokenizer.BOS], "tokens": ["<bos>"]}
        first = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
        pair = [first, *({"Sequence": {"id": name, "type_id": 0}} for name in "AB")]
        made |= {
            "post_processor": {
                "type": "TemplateProcessing", "single": pair[:2], "pair": pair,
                "special_tokens": {"<bos>": bos},
            },
            "truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0,
                           "direction": "Right"},
            "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None,
                        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
        }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    return folder


def body_of(api: str, text: Any = "x", stream: bool = False, **params: Any) -> dict[str, Any]:
    """A request in the words of the route; `params` in OpenAI's."""
    rid = {"rid": params.pop("rid")} if "rid" in params else {}
    if api == "/generate":
        sampling = {_NAMES.get(k, k): v for k, v in params.items()}
        if "max_new_tokens" not in sampling:
            sampling["max_new_tokens"] = 200
        return {"text": text, "stream": stream, "sampling_params": sampling, **rid}
    params.setdefault("max_tokens", 200)
    prompt = {"prompt": text} if api == APIS[1] else {
        "messages": [{"role": "user", "content": text}]
    }  # fmt: skip
    return {**prompt, "stream": stream, **params, **rid}


def ask(run: Running, api: str, text: Any = "x", stream: bool = False, **params: Any) -> Answer:
    """One request; `halves`: see `Client`."""
    halves = params.pop("halves", False)
    return call_at(run.address, "POST", api, body_of(api, text, stream, **params), halves)


def begin(run: Running, api: str, count: int, body: dict[str, Any]) -> Client:
    """A connection with a request whose `count` children the engine has."""
    client = Client(run.address)
    client.request("POST", api, body)
    run.wait_for(count)
    return client


def said(api: str, body: Any) -> tuple[str, Any, Any]:
    """(text, finish reason, what matched) of an unary answer."""
    if api == "/generate":
        finish = body["meta_info"]["finish_reason"]
        return body["text"], finish["type"], finish.get("matched")
    choice = body["choices"][0]
    text = choice["text"] if api == APIS[1] else choice["message"]["content"]
    return text, choice["finish_reason"], choice["matched_stop"]
