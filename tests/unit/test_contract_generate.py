"""/generate bodies: what they become, what is refused and in which words, on both JSON readers."""

from __future__ import annotations

import json
import marshal
from pathlib import Path
from typing import Any

import pytest

from tests.contract_corpus import BAD, BROKEN, GOOD, UNUSUAL
from tpc_server.boundary import codec
from tpc_server.boundary.messages import GENERATE, GENERATE_FIELDS, SAMPLING, decode_ingress
from tpc_server.contract.errors import BadRequest, native_error_body
from tpc_server.contract.fields import REFUSED, REQUEST_TABLE
from tpc_server.contract.generate import GenerateDecoder, GenerateRequest, Item
from tpc_server.contract.limits import Limits
from tpc_server.contract.sampling_fields import SAMPLING_NAMES
from tpc_server.render import plan

FRAMES = Path(__file__).parents[1] / "data" / "boundary_frames.jsonl"


def limits(**changes: Any) -> Limits:
    given: dict[str, Any] = {
        "enable_return_hidden_states": True,
        "enable_strict_thinking": True,
        "lora_ids": {"ada": "id-1"},
    }
    return Limits(100, 1000, **(given | changes))


@pytest.fixture(scope="module")
def decoder() -> GenerateDecoder:
    return GenerateDecoder(limits())


def decode(decoder: GenerateDecoder, body: Any) -> GenerateRequest:
    return decoder.decode(json.dumps(body).encode())


def refusal(decoder: GenerateDecoder, body: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        decode(decoder, body)
    assert caught.value.status == 400
    return caught.value.message


def sampling(item: Item, name: str) -> Any:
    return item.wire[GENERATE["sampling_params"]][SAMPLING[name]]


@pytest.mark.parametrize("body", GOOD, ids=lambda body: json.dumps(body)[:60])
def test_good_bodies_become_valid_messages(decoder: GenerateDecoder, body: Any) -> None:
    request = decode(decoder, body)
    pack = codec.make_packer()
    for item in request.items:
        assert (item.text is None) != (item.input_ids is None)
        item.wire[GENERATE["rid"]] = item.rid
        assert decode_ingress(pack(item.wire))[: len(item.wire)] == item.wire
        assert Item(*marshal.loads(marshal.dumps(item.to_tuple()))).to_tuple() == item.to_tuple()
        assert len(item.plan) == 10
        assert sampling(item, "is_normalized") and sampling(item, "n") == 1
        assert sampling(item, "stop") is None and sampling(item, "stop_regex") is None


@pytest.mark.parametrize(("body", "text"), BAD, ids=[json.dumps(row[0])[:60] for row in BAD])
def test_bad_bodies_are_refused_in_these_words(
    decoder: GenerateDecoder, body: Any, text: str
) -> None:
    assert refusal(decoder, body) == text


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:40]))
def test_broken_bodies_are_refused(decoder: GenerateDecoder, body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        decoder.decode(body)
    json.loads(native_error_body(caught.value.message))


@pytest.mark.parametrize("body", UNUSUAL, ids=lambda body: repr(body[:40]))
def test_unusual_bodies_are_taken(decoder: GenerateDecoder, body: bytes) -> None:
    assert decoder.decode(body).items[0].text


def test_last_of_two_equal_keys_wins(decoder: GenerateDecoder) -> None:
    assert decoder.decode(b'{"text":"a","text":"b"}').items[0].text == "b"


def test_recorded_requests_become_the_recorded_messages(decoder: GenerateDecoder) -> None:
    """Bodies behind recorded ingress frames; everything but the wire rid is equal."""
    greedy = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    short = {**greedy, "max_new_tokens": 16}
    bodies: dict[str, dict[str, Any]] = {
        "plain": {"text": "Hello world", "sampling_params": greedy, "rid": "plain"},
        "lp": {"text": "Hello world again", "sampling_params": greedy, "rid": "lp",
               "return_logprob": True, "logprob_start_len": 0},
        "top": {"text": "Hello world again", "sampling_params": greedy, "rid": "top",
                "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
                "return_text_in_logprobs": True},
        "tokids": {"text": "Hello world again", "sampling_params": greedy, "rid": "tokids",
                   "return_logprob": True, "logprob_start_len": 1, "token_ids_logprob": [5, 9]},
        "stop": {"text": "Hello world again", "sampling_params": greedy, "rid": "stop",
                 "stream": True, "return_logprob": True, "logprob_start_len": 0,
                 "top_logprobs_num": 2},
        "hid": {"text": "Hello world", "sampling_params": {**greedy, "max_new_tokens": 2},
                "rid": "hid", "return_hidden_states": True},
        "": {"text": "Hello world", "sampling_params": {**short, "stop": ["示例"]}},
        "notrim": {"text": "Hello world",
                   "sampling_params": {**short, "stop": ["示例"], "no_stop_trim": True}},
        "stopid": {"text": "Hello world", "sampling_params": {**short, "stop_token_ids": [31669]}},
        "regex": {"text": "Hello world", "sampling_params": {**short, "stop_regex": "D[a-z]l"}},
        "zero": {"text": "Hello", "sampling_params": {**greedy, "max_new_tokens": 0}},
    }  # fmt: skip
    recorded = [
        frame["decoded"]
        for frame in map(json.loads, FRAMES.read_text().splitlines())
        if frame["kind"] == "ingress" and frame["decoded"][0] == "TokenizedGenerateReqInput"
    ]
    rid, window = GENERATE["rid"], SAMPLING["stop_str_max_len"]
    for body in bodies.values():
        wire = decode(decoder, body).items[0].wire
        if wire[GENERATE["sampling_params"]][SAMPLING["stop_strs"]]:
            wire[GENERATE["sampling_params"]][window] = 1  # the tokenize stage's part
        same = [message for message in recorded if message[2:] == wire[2:]]
        assert same, body
        assert wire[rid] is None


def test_greedy_and_no_limit_forms(decoder: GenerateDecoder) -> None:
    item = decode(decoder, {"text": "a", "sampling_params": {"temperature": 0, "top_k": 7}}).items[
        0
    ]
    assert (sampling(item, "temperature"), sampling(item, "top_k")) == (1.0, 1)
    for top_k in (-1, None):
        item = decode(decoder, {"text": "a", "sampling_params": {"top_k": top_k}}).items[0]
        assert sampling(item, "top_k") == 1 << 30
    item = decode(decoder, {"text": "a", "sampling_params": {"temperature": 1}}).items[0]
    assert type(sampling(item, "temperature")) is float


def test_stops_are_lists_and_ids_a_set(decoder: GenerateDecoder) -> None:
    params = {"stop": "x", "stop_regex": "[0-9]{2,5}x", "stop_token_ids": [5, 0, 5]}
    item = decode(decoder, {"text": "a", "sampling_params": params}).items[0]
    assert sampling(item, "stop_strs") == ["x"]
    assert sampling(item, "stop_regex_strs") == ["[0-9]{2,5}x"]
    assert sampling(item, "stop_regex_max_len") == 6
    assert sampling(item, "stop_token_ids") == [5, 0]
    assert item.plan[plan.STOPS] is True
    none: dict[str, Any] = {"stop": [], "stop_token_ids": []}
    item = decode(decoder, {"text": "a", "sampling_params": none}).items[0]
    assert sampling(item, "stop_token_ids") is None
    assert item.plan[plan.STOPS] is False


@pytest.mark.parametrize("pattern", ["(", "(a+)+b", "(a*)*", "(?:x{30}){30}"])
def test_dangerous_stop_patterns_are_refused(decoder: GenerateDecoder, pattern: str) -> None:
    body = {"text": "a", "sampling_params": {"stop_regex": ["ok", pattern]}}
    assert refusal(decoder, body).startswith("invalid stop_regex at `sampling_params.stop_regex`: ")


def test_max_new_tokens_absent_null_and_preferred() -> None:
    given: list[tuple[Limits, dict[str, Any], int | None]] = [
        (limits(), {}, 128),
        (limits(), {"max_new_tokens": None}, None),
        (limits(default_max_new_tokens=None), {}, None),
        (limits(default_max_new_tokens=7), {}, 7),
        (limits(preferred_sampling_params={"max_new_tokens": 9}), {}, 9),
        (limits(preferred_sampling_params={"max_new_tokens": 9}), {"max_new_tokens": 3}, 3),
        (limits(preferred_sampling_params={"max_new_tokens": 9}), {"max_new_tokens": None}, None),
    ]
    for bounds, params, want in given:
        request = decode(GenerateDecoder(bounds), {"text": "a", "sampling_params": params})
        assert sampling(request.items[0], "max_new_tokens") == want


def test_preferred_parameters_lie_under_the_request() -> None:
    decoder = GenerateDecoder(limits(preferred_sampling_params={"temperature": 0.5, "top_k": 9}))
    item = decode(decoder, {"text": "a"}).items[0]
    assert (sampling(item, "temperature"), sampling(item, "top_k")) == (0.5, 9)
    item = decode(decoder, {"text": "a", "sampling_params": {"top_k": None}}).items[0]
    assert (sampling(item, "temperature"), sampling(item, "top_k")) == (0.5, 1 << 30)
    with pytest.raises(ValueError, match="preferred_sampling_params: unknown field `nonsense`"):
        GenerateDecoder(limits(preferred_sampling_params={"nonsense": 1}))


def test_rids(decoder: GenerateDecoder) -> None:
    def shown(body: Any) -> list[tuple[str, str | None]]:
        return [(item.rid, item.group) for item in decode(decoder, body).items]

    assert shown({"text": "a", "rid": "r"}) == [("r", None)]
    assert shown({"text": ["a"], "rid": "r"}) == [("r_0", "r")]
    assert shown({"text": ["a", "b"], "rid": "r"}) == [("r_0", "r"), ("r_1", "r")]
    assert shown({"text": ["a", "b"], "rid": ["x", "y"]}) == [("x", None), ("y", None)]
    fresh = [rid for rid, _ in shown({"text": ["a", "b"]})]
    assert len(set(fresh)) == 2 and all(len(rid) == 32 and int(rid, 16) >= 0 for rid in fresh)
    many = shown({"text": ["a", "b"], "rid": ["x", "y"], "sampling_params": {"n": 2}})
    assert [group for _, group in many] == ["x", "x", "y", "y"]
    assert len({rid for rid, _ in many}) == 4
    assert len({decoder.new_rid() for _ in range(1000)}) == 1000


def test_batches_and_samples_in_order(decoder: GenerateDecoder) -> None:
    assert not decode(decoder, {"text": "a"}).is_batch
    assert decode(decoder, {"text": ["a"]}).is_batch
    assert decode(decoder, {"input_ids": [[1]]}).is_batch
    assert not decode(decoder, {"input_ids": [1]}).is_batch
    request = decode(decoder, {"text": ["a", "b"], "sampling_params": {"n": 2, "stop": ["x"]}})
    assert request.is_batch and [item.text for item in request.items] == ["a", "a", "b", "b"]
    request.items[0].wire[GENERATE["sampling_params"]][SAMPLING["stop_strs"]].append("y")
    request.items[0].wire[GENERATE["sampling_params"]][0] = 1
    assert sampling(request.items[1], "stop_strs") == ["x"]
    assert sampling(request.items[1], "max_new_tokens") == 128
    assert decode(decoder, {"text": "a", "sampling_params": {"n": 2}}).is_batch


def test_batch_values_go_to_their_items(decoder: GenerateDecoder) -> None:
    body = {
        "text": ["a", "b"], "bootstrap_room": 5, "bootstrap_host": ["h", None],
        "extra_key": ["k", ""], "cache_salt": "s", "token_ids_logprob": [[1], None],
        "return_logprob": [True, False], "top_logprobs_num": [2, 0], "lora_path": [None, "ada"],
        "sampling_params": [{"top_k": 3}, None], "priority": 4, "stream": True,
    }  # fmt: skip
    one, two = decode(decoder, body).items

    def wire(item: Item, name: str) -> Any:
        return item.wire[GENERATE[name]]

    assert (wire(one, "bootstrap_room"), wire(two, "bootstrap_room")) == (5, 6)
    assert (wire(one, "bootstrap_host"), wire(two, "bootstrap_host")) == ("h", None)
    assert (wire(one, "extra_key"), wire(two, "extra_key")) == ("k", None)
    assert (wire(one, "cache_salt"), wire(two, "cache_salt")) == ("s", "s")
    assert (one.token_ids_logprob, two.token_ids_logprob) == ([1], None)
    assert (wire(one, "return_logprob"), wire(two, "return_logprob")) == (True, False)
    assert (wire(one, "lora_id"), wire(two, "lora_id")) == (None, "id-1")
    assert (sampling(one, "top_k"), sampling(two, "top_k")) == (3, 1 << 30)
    assert wire(two, "priority") == 4 and wire(two, "stream") is True
    assert one.plan[plan.LOGPROB] and one.plan[plan.TOP_LOGPROBS] == 2
    assert one.plan[plan.TOKEN_IDS_LOGPROB] and not two.plan[plan.TOKEN_IDS_LOGPROB]


def test_rendering_plan(decoder: GenerateDecoder) -> None:
    body = {
        "text": "a", "return_logprob": True, "return_text_in_logprobs": True,
        "return_hidden_states": True, "return_prompt_token_ids": True, "top_logprobs_num": 3,
        "token_ids_logprob": [1],
        "sampling_params": {"skip_special_tokens": False, "no_stop_trim": True,
                            "spaces_between_special_tokens": False, "stop_regex": "a"},
    }  # fmt: skip
    item = decode(decoder, body).items[0]
    assert item.plan == (False, False, True, True, True, True, True, 3, True, True)
    assert decode(decoder, {"text": "a"}).items[0].plan == (
        True, True, False, False, False, False, False, 0, False, False,
    )  # fmt: skip


def test_labels_metrics_and_thinking(decoder: GenerateDecoder) -> None:
    request = decode(decoder, {"text": "a", "custom_labels": {"t": "x"}, "log_metrics": False})
    assert request.custom_labels == {"t": "x"} and not request.log_metrics
    params = {"custom_params": {"a": 1}}
    body = {"text": "a", "max_thinking_tokens": 7, "sampling_params": params}
    item = decode(decoder, body).items[0]
    assert sampling(item, "custom_params") == {"a": 1, "thinking_budget": 7}
    plain = GenerateDecoder(limits(enable_strict_thinking=False))
    assert "--enable-strict-thinking" in refusal(plain, body)


def test_default_priority() -> None:
    decoder = GenerateDecoder(limits(default_priority=3))
    for extra, want in (({}, 3), ({"priority": None}, 3), ({"priority": 1}, 1), ({"x": 1}, 3)):
        item = decode(decoder, {"text": "a", **extra}).items[0]
        assert item.wire[GENERATE["priority"]] == want


def test_what_depends_on_the_server() -> None:
    bare = GenerateDecoder(limits(enable_return_hidden_states=False, lora_ids={}, grammars=False))
    hidden = {"text": "a", "return_hidden_states": True}
    assert "--enable-return-hidden-states" in refusal(bare, hidden)
    assert "(loaded: none)" in refusal(bare, {"text": "a", "lora_path": "ada"})
    for name in ("json_schema", "regex", "ebnf", "structural_tag"):
        text = refusal(bare, {"text": "a", "sampling_params": {name: "x"}})
        assert text == f"{name} is not supported by this server's engine"
    raw = GenerateDecoder(limits(skip_tokenizer_init=True))
    assert decode(raw, {"input_ids": [1]}).items[0].input_ids == [1]
    assert "skip_tokenizer_init" in refusal(raw, {"text": "a"})
    for params in ({"stop": "."}, {"stop_regex": "."}, {"min_new_tokens": 1}):
        text = refusal(raw, {"input_ids": [1], "sampling_params": params})
        assert f"{next(iter(params))}=" in text
        assert "is unavailable when skip_tokenizer_init=True" in text


def test_copies_of_a_prompt_are_bounded() -> None:
    decoder = GenerateDecoder(limits(max_clone_bytes=1000))
    assert len(decode(decoder, {"text": "a" * 100, "sampling_params": {"n": 3}}).items) == 3
    assert "copies" in refusal(decoder, {"text": "a" * 100, "sampling_params": {"n": 4}})
    assert "over the limit of 4096" in refusal(decoder, {"text": ["a"] * 4097})
    for n in (4097, 1 << 40):
        text = refusal(decoder, {"text": "a" * 999, "sampling_params": {"n": n}})
        assert text == f"n must be at most 4096, got {n}."


def test_copies_of_everything_else_are_bounded(decoder: GenerateDecoder) -> None:
    """With n, and for a batch: what is one for all in the body is there once a request."""
    many: list[dict[str, Any]] = [
        {"custom_params": {f"k{k}": k for k in range(2000)}},
        {"stop_token_ids": [1] * 2000},
    ]
    for params in (*many, {"json_schema": '{"a":"%s"}' % ("b" * 9000)}):
        decode(decoder, {"text": "a", "sampling_params": {"n": 9, **params}})
        decode(decoder, {"text": ["a"] * 9, "sampling_params": params})
        text = refusal(decoder, {"text": "a", "sampling_params": {"n": 4096, **params}})
        assert text == "n is too large: 4096 copies of this request exceed 67108864 bytes"
        text = refusal(decoder, {"text": ["a"] * 4096, "sampling_params": params})
        assert text == "parameters for 4096 prompts exceed 67108864 bytes"
    body = {"text": "a", "sampling_params": {"n": 4096}, "extra_key": "k" * 9999}
    assert "4096 copies" in refusal(decoder, body)
    # One a prompt: nothing is copied.
    for more in (
        {"sampling_params": [{"stop_token_ids": [1] * 9}] * 4096},
        {"extra_key": ["k" * 99] * 4096},
    ):
        assert len(decode(decoder, {"text": ["a"] * 4096, **more}).items) == 4096


def test_alternatives_of_prompts_are_bounded() -> None:
    """All of a request's together, from where they begin; a text's are counted as tokens."""
    decoder = GenerateDecoder(limits(max_logprob_entries=100))
    ids = list(range(20))
    body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0}
    for more in (
        {"top_logprobs_num": 5},
        {"top_logprobs_num": 20, "logprob_start_len": 15},
        {"top_logprobs_num": 100, "logprob_start_len": -1},
        {"top_logprobs_num": 100, "return_logprob": False},
        {"top_logprobs_num": 2, "token_ids_logprob": [1, 2, 3]},
        {"top_logprobs_num": 1, "sampling_params": {"n": 5}},
        {"input_ids": [ids, ids], "top_logprobs_num": [0, 5]},
    ):
        assert decode(decoder, body | more).items
    for more in (
        {"top_logprobs_num": 6},
        {"top_logprobs_num": 21, "logprob_start_len": 15},
        {"top_logprobs_num": 2, "token_ids_logprob": [1, 2, 3, 4]},
        {"top_logprobs_num": 1, "sampling_params": {"n": 6}},
        {"input_ids": [ids, ids], "top_logprobs_num": [1, 5]},
    ):
        text = refusal(decoder, body | more)
        assert text.startswith("top_logprobs_num is too large: ")
        assert text.endswith("limit of 100 (--max-logprob-entries, TPC_MAX_LOGPROB_ENTRIES)")
    text = refusal(decoder, body | {"token_ids_logprob": [1] * 6})
    assert text.startswith("token_ids_logprob is too large: with 6 alternatives at each of 20")
    body |= {"input_ids": None, "text": "a" * 99, "top_logprobs_num": 99}
    assert len(decode(decoder, body).items) == 1


# Fields of the protocol's request type that are not in the tables of messages.
_REQUEST_TYPE = {
    "rid", "session_id", "text", "input_ids", "input_embeds", "image_data", "video_data",
    "audio_data", "mm_hashes", "mm_content_hashes", "use_audio_in_video", "video_config",
    "sampling_params", "watermark", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "token_ids_logprob", "return_sampling_mask", "sampling_logprobs_mode",
    "return_text_in_logprobs", "return_flat_raw_top_logprobs",
    "return_flat_raw_output_top_logprobs", "return_flat_raw_top_logprobs_b64", "stream",
    "log_metrics", "return_hidden_states", "return_routed_experts", "routed_experts_start_len",
    "return_indexer_topk", "modalities", "session_params", "lora_path", "lora_id",
    "custom_logit_processor", "positional_embed_overrides", "bootstrap_host", "bootstrap_port",
    "bootstrap_room", "bootstrap_pair_key", "decode_tp_size", "routed_dp_rank",
    "data_parallel_rank", "disagg_prefill_dp_rank", "routing_key", "conversation_id",
    "http_worker_ipc", "background", "require_reasoning", "max_thinking_tokens", "priority",
    "extra_key", "no_logs", "custom_labels", "return_bytes", "return_entropy",
    "return_prompt_token_ids", "external_trace_header", "received_time",
    "need_wait_for_mm_inputs", "num_items_assigned", "encoder_urls", "max_dynamic_patch",
    "min_dynamic_patch", "image_max_dynamic_patch", "video_max_dynamic_patch", "images_config",
    "mm_processor_kwargs", "multi_item_delimiter_indices", "token_indices_to_pool", "cache_salt",
    "kv_hints",
}  # fmt: skip
# Message fields that no client sets: the server fills them or leaves them.
_OURS = {
    "input_text", "mm_inputs", "time_stats", "pp_prefetch_ticketed", "lora_name", "lora_id",
}  # fmt: skip


def test_every_field_of_the_request_type_has_a_place(decoder: GenerateDecoder) -> None:
    handled = {field.name for field in REQUEST_TABLE} | set(REFUSED)
    assert handled >= _REQUEST_TYPE
    assert {field.name for field in GENERATE_FIELDS} <= handled | _OURS
    assert not {field.name for field in REQUEST_TABLE} & set(REFUSED)
    for name in REFUSED:
        for value in (True, 1, "x", ["x"], {"x": 1}):
            text = refusal(decoder, {"text": "a", name: value})
            assert text.startswith(f"{name} is not supported by this server: "), name
        nothing: tuple[Any, ...] = (None, False, 0, "", [], {})
        for empty in nothing:
            assert len(decode(decoder, {"text": "a", name: empty}).items) == 1


def test_every_sampling_parameter_is_forwarded_or_refused(decoder: GenerateDecoder) -> None:
    given: dict[str, Any] = {
        "max_new_tokens": 5, "stop": ["x"], "stop_token_ids": [1], "stop_regex": ["x"],
        "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5, "frequency_penalty": 0.5,
        "presence_penalty": 0.5, "repetition_penalty": 0.5, "min_new_tokens": 1, "n": 2,
        "json_schema": "{}", "regex": "x", "ebnf": "x", "structural_tag": "x",
        "ignore_eos": True, "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "no_stop_trim": True, "stream_interval": 2, "logit_bias": {"1": 1.0}, "sampling_seed": 3,
        "custom_params": {"a": 1},
    }  # fmt: skip
    refused: dict[str, Any] = {"beam_width": 2, "watermark": {"enabled": True}, "choice": ["a"]}
    assert {*given, *refused} == set(SAMPLING_NAMES) and len(SAMPLING_NAMES) == 28
    renamed = {"stop": "stop_strs", "stop_regex": "stop_regex_strs"}
    for name, value in given.items():
        items = decode(decoder, {"text": "a", "sampling_params": {name: value}}).items
        if name == "n":
            assert len(items) == value
        else:
            assert sampling(items[0], renamed.get(name, name)) == value
    for name, value in refused.items():
        assert name in refusal(decoder, {"text": "a", "sampling_params": {name: value}})


def test_templates_are_not_shared_between_requests(decoder: GenerateDecoder) -> None:
    for body in ({"text": "a"}, {"text": "a", "sampling_params": {"top_k": 3}}, {"text": ["a"]}):
        first = decode(decoder, body).items[0]
        first.wire[GENERATE["rid"]] = "changed"
        first.wire[GENERATE["sampling_params"]][SAMPLING["stop_strs"]].append("changed")
        first.wire[GENERATE["sampling_params"]][SAMPLING["stop_str_max_len"]] = 99
        second = decode(decoder, body).items[0]
        assert second.wire[GENERATE["rid"]] is None
        assert sampling(second, "stop_strs") == [] and sampling(second, "stop_str_max_len") == 0


def test_error_body_holds_both_shapes() -> None:
    body = json.loads(native_error_body('no "x" 😀\n', 503))
    assert body == {"error": {"message": 'no "x" 😀\n', "code": 503}}


def sampled(decoder: GenerateDecoder, params: dict[str, Any]) -> list[Any]:
    (item,) = decode(decoder, {"text": "x", "sampling_params": params}).items
    wire: list[Any] = item.wire[GENERATE["sampling_params"]]
    return wire


def test_parameters_that_come_again_are_decoded_alike(decoder: GenerateDecoder) -> None:
    given = {"temperature": 1, "max_new_tokens": 5, "sampling_seed": 7, "ignore_eos": True}
    first = sampled(decoder, given)
    for seed in (7, 8):
        again = sampled(decoder, given | {"sampling_seed": seed})
        assert again[SAMPLING["sampling_seed"]] == seed
        again[SAMPLING["sampling_seed"]] = 7
        assert again == first and again is not first
        again[SAMPLING["stop_strs"]].append("no one else's")
    assert sampled(decoder, given) == first
    assert sampled(decoder, {k: v for k, v in given.items() if k != "sampling_seed"}) == [
        None if k == SAMPLING["sampling_seed"] else v for k, v in enumerate(first)
    ]


@pytest.mark.parametrize("wrong", [True, 5.0, "5", [5]])
def test_equal_values_of_another_type_are_not_taken_for_those_that_came(
    decoder: GenerateDecoder, wrong: Any
) -> None:
    assert sampled(decoder, {"max_new_tokens": 5})[0] == 5
    assert "max_new_tokens" in refusal(
        decoder, {"text": "x", "sampling_params": {"max_new_tokens": wrong}}
    )
    assert refusal(decoder, {"text": "x", "sampling_params": {"sampling_seed": True}})


def test_strings_among_the_parameters_are_decoded_each_time(decoder: GenerateDecoder) -> None:
    for _ in range(2):
        wire = sampled(decoder, {"regex": "a*", "max_new_tokens": 5, "sampling_seed": 3})
        assert wire[SAMPLING["regex"]] == "a*" and wire[SAMPLING["sampling_seed"]] == 3
