"""Which of SGLang's test kits run, on which server, with what; and what doesn't. Owner: constants.

A kit is a module of `sglang/test/kits`; its classes with tests are mixed into a test case that has
an address, a model and the settings below. `tests/data/sglang/python.json` holds what came of each
with SGLang's Python frontend; ours is run on those that passed. `docs/SGLANG_KITS.md` is made of
both (`python -m tests.sglang.kits_page`).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Final, NamedTuple


class Server(NamedTuple):
    """What kits want of a server beyond the flags that all have."""

    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    model: str = "dummy"  # or "answering" (`answering.py`)


PLAIN: Final = "plain"
SERVERS: Final = {
    PLAIN: Server(),
    "timeouts": Server(
        ("--max-running-requests", "16", "--max-total-tokens", "65536"),
        (("SGLANG_REQ_WAITING_TIMEOUT", "0.1"), ("SGLANG_REQ_RUNNING_TIMEOUT", "12")),
    ),
    "answering": Server(
        ("--load-format", "auto", "--reasoning-parser", "qwen3", "--enable-streaming-session"),
        (("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "1"),),
        "answering",
    ),
}  # fmt: skip
# Class, or one test of it -> the server that it runs on, where that isn't the plain one.
ON: Final = {
    "WaitingTimeoutMixin": "timeouts",
    "RunningTimeoutTwoWaveMixin": "timeouts",
    "ReasoningTokenUsageMixin": "answering",
    "SeparateReasoningMixin": "answering",
    "MatchedStopMixin": "answering",
    "JSONModeMixin": "answering",
    "JSONConstrainedMixin": "answering",
    "EBNFConstrainedMixin.test_ebnf_generate_complex_json": "answering",
    "EBNFConstrainedMixin.test_ebnf_generate_custom_log_format": "answering",
    "RegexConstrainedMixin.test_regex_generate_complex_json": "answering",
    "RegexConstrainedMixin.test_regex_generate_custom_log_format": "answering",
    "SpecFeatureKit.test_constrained_decoding": "answering",
    "SpecLogprobKit.test_logprob_decode_match_prefill": "answering",
    "SpecLogprobKit.test_logprob_mixed": "answering",
    "StreamingSessionKitMixin": "answering",
    "AbortLeakReproKitMixin": "answering",
}
# Class -> attributes that a test case of it has to bring, or that make it fit this model.
GIVEN: Final[dict[str, dict[str, Any]]] = {
    "WaitingTimeoutMixin": {
        "waiting_timeout_num_requests": 17,
        "waiting_timeout_max_new_tokens": 256,
    },
    "RunningTimeoutTwoWaveMixin": {"running_timeout_max_new_tokens": 4000},
    "PauseResumeInPlaceMixin": {
        "pause_num_requests": 16,
        "pause_max_new_tokens": 256,
        "pause_ignore_eos": True,
        "pause_duration": 2,
    },
    "PrefixCacheBranchingMixin": {"cache_chunk_size": 64},
    "KLDivergenceMixin": {
        "kl_div_thres": 0.01,
        "kl_div_max_samples": 2,
        "kl_div_prefill_max_new_tokens": 8,
        "kl_div_decode_max_new_tokens": 8,
    },
    "UnifiedRadixTreeTestMixin": {
        "max_new_tokens": 8,
        "num_groups": 2,
        "branches_per_group": 2,
        "prefix_len": 128,
    },
    "ReasoningTokenUsageMixin": {"reasoning_parser_name": "qwen3"},
    "SpecCorrectnessKit": {"acc_length_thres": 0.9, "batch_accept_len_thres": 0.9},
    "SpecLogprobKit": {"logprob_match_delta": 0.01},
    "SpecDecodingMixin": {
        "bs_1_speed_thres": 0.0,
        "accept_length_thres": 0.9,
        "bs_1_speed_attempts": 1,
    },
}
#: Half a minute and more on one core: with `--full` only.
LONG: Final = (
    "SpecLogprobKit.test_logprob_mixed",
    "StreamingSessionKitMixin.test_leak_logprob_concurrent",
    "SpecDecodingMixin.test_bs_1_speed",
    "SpecFeatureKit.test_radix_attention",
    "SpecFeatureKit.test_request_abort",
)
_DATA: Final = "a data set from the network, and a model that knows the answers"
_ANSWERS: Final = "a model that knows the answers: this one's weights are random"
_SPECULATION: Final = "speculative decoding, which wants a GPU"
_SHAPE: Final = "a model that knows which of the texts is wanted: the grammar allows others"
#: Not run, and what they want that is not here.
NOT_RUN: Final = {
    "MMLUSanityMixin.test_accuracy_floor": _DATA,
    "GSM8KMixin.test_gsm8k": _DATA,
    "MMLUMixin.test_mmlu": _DATA,
    "MMMUProMixin.test_mmmu_pro": _DATA,
    "HumanEvalMixin.test_human_eval": _DATA,
    "MGSMEnMixin.test_mgsm_en": _DATA,
    "LMEvalMixin.test_lm_eval": _DATA,
    "MMMUMixin.test_mmmu": f"a multimodal model; {_DATA}",
    "PDLogprobParityMixin.test_logprob_parity": "prefill and decode servers on GPUs, a router",
    "SpecParityKit.test_parity_vs_reference": _SPECULATION,
    "SpecAccuracyKit.test_gsm8k": f"{_SPECULATION}; {_DATA}",
    "SpecPerfKit.test_max_token_one": _DATA,
    "UnifiedRadixTreeTestMixin.test_gsm8k": _DATA,
    "AccuracyTwoPassMixin.test_gsm8k_two_passes": _DATA,
}
#: These fail with SGLang's Python frontend here, and why.
FAILS: Final = {
    "AccuracyTwoPassMixin.test_l3_prefetch_full_prefix_hit_after_flush": (
        "a storage behind the scheduler's cache"
    ),
    "BasicDecodeCorrectnessMixin.test_ascii_ratio": _ANSWERS,
    "BasicDecodeCorrectnessMixin.test_basic_math": _ANSWERS,
    "BasicDecodeCorrectnessMixin.test_capital_france": _ANSWERS,
    "BasicDecodeCorrectnessMixin.test_color_completion": _ANSWERS,
    "BasicSchedulerStressMixin.test_concurrent_requests": _ANSWERS,
    "BasicSchedulerStressMixin.test_streaming_response": _ANSWERS,
    "EBNFConstrainedMixin.test_ebnf_generate_complex_json": _SHAPE,
    "FwdOccupancyMixin.test_fwd_occupancy": "a GPU's timers",
    "MatchedStopMixin.test_finish_stop_eos": "the end-of-text ids of Llama's tokenizer",
    "PrefixCacheBranchingMixin.test_prefix_cache_branching": (
        "the prefix cache of a model with states (Mamba)"
    ),
    "SpecGrammarKit.test_grammar_logprob_count_matches_completion_tokens": _SPECULATION,
    "SpecGrammarKit.test_grammar_structured_output_no_trailing_tokens": _SPECULATION,
}
#: Modules of the folder without a test that a server answers.
HELPERS: Final = {
    "attention_unittest": "parts of tests of GPU kernels; no server",
    "cache_hit_kit": "a function for other tests; run by `test_kits.py`",
    "dsa_metadata_kit": "parts of tests of CUDA metadata; no server",
    "perf_bench_kit": "compares figures with those of a GPU",
    "radix_cache_server_kit": "a function for other tests; SpecFeatureKit.test_radix_attention",
    "unified_radix_cache": "parts of tests of the scheduler's cache; no server",
    "vlm_perf_kit": "a benchmark of a multimodal model",
}


def tests_in(folder: Path) -> dict[str, list[str]]:
    """Tests of each module of a folder of kits, as their text has them."""
    out: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("_"):
            continue
        found = out.setdefault(path.stem, [])
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for kind in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(kind, ast.ClassDef):
                    found += [
                        f"{kind.name}.{part.name}" for part in kind.body
                        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_")
                    ]  # fmt: skip
    return out


def server_of(test: str) -> str:
    """The server that a test runs on."""
    return ON.get(test) or ON.get(test.partition(".")[0], PLAIN)
