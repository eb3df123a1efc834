"""Where SGLang's two frontends differ from each other or from ours, and why. Owner: constants.

One table, used twice: the parity tests allow a difference from a recorded answer only if exactly
one row here covers it, and `docs/COMPATIBILITY.md` is printed from it (`python -m
tests.e2e.test_parity_doc`). `proof` is RECORDED, or the test that shows a row which no recorded
answer shows.
"""

from __future__ import annotations

from typing import Any

from tests.e2e.parity_access import ACCESS_CHOICES
from tests.e2e.parity_openai import OPENAI_CHOICES
from tests.e2e.parity_parsers import PARSER_CHOICES
from tests.e2e.parity_replay import MISSING
from tests.e2e.parity_rows import (
    PYTHON,
    RECORDED,
    RUST,
    Allowed,
    Choice,
    only_ours,
    only_theirs,
)

__all__ = ["CHOICES", "PYTHON", "RECORDED", "RUST", "WITHOUT_PAIR", "rows_for"]

_CHOICES = "tests/e2e/test_parity_choices.py::"
_SMALL = "tests/e2e/test_small_routes.py::"
_METRICS = "tests/e2e/test_metrics.py::"


def _of_prefill(ours: Any, theirs: Any) -> bool:
    """One row more deeply nested, the same numbers."""
    return bool(theirs == [ours])


def _in_words(text: str) -> str:
    """A type error of theirs with our word for the type."""
    return text.replace("expected i64", "expected an integer")


_TIMES = (
    "num_retractions|storage_prefetch_wait|storage_staging_wait|forward_entry_time|queue_time"
    "|prefill_finished_time|cached_tokens_details|dp_rank|request_received_ts|first_token_latency"
    "|api_server_dispatch_finish_ts|request_finished_ts|decode_throughput"
    "|response_sent_to_client_ts"
)
_TOO_LONG = "toolong|toolong2"

CHOICES: tuple[Choice, ...] = (
    # -- successful answers ----------------------------------------------------------
    Choice(
        "logprobs-length", "`meta_info.output_token_logprobs_length`", "absent", "present",
        "present", "as Python",
        allowed=(
            Allowed(RUST, ".*", r".*meta_info\.output_token_logprobs_length", only_ours),
        ),
    ),
    Choice(
        "prompt-token-ids", "`return_prompt_token_ids`", "accepted, nothing in the answer",
        "`prompt_token_ids`", "`prompt_token_ids`",
        "as Python; a field that is accepted is honoured",
        allowed=(Allowed(RUST, "input_ids", r"\[0\]\.prompt_token_ids", only_ours),),
    ),
    Choice(
        "empty-output-ids", "`output_ids` when nothing was generated", "absent", "`[]`", "`[]`",
        "as Python",
        allowed=(
            Allowed(RUST, "zero", r"\[0\]\.output_ids", lambda o, t: o == [] and t == MISSING),
        ),
    ),
    Choice(
        "hidden-nesting", "`hidden_states` of the prefill step", "one flat row a step",
        "the prefill's rows as a list of their own", "one flat row a step",
        "the boundary's columns carry each step as one flat row: the nesting is not in the frame",
        allowed=(
            Allowed(PYTHON, "hidden", r"\[0\]\.meta_info\.hidden_states\[0\]", _of_prefill),
        ),
    ),
    Choice(
        "times", "per-stage times, retractions, `dp_rank`, `cached_tokens_details` in `meta_info`",
        "absent", "present", "absent",
        "its scheduler gives them to the Python frontend only: they are not in the frame",
        allowed=(Allowed(PYTHON, ".*", rf".*meta_info\.({_TIMES})", only_theirs),),
    ),
    Choice(
        "key-order", "order of the keys", "`text`, `meta_info`, `output_ids`",
        "`text`, `output_ids`, `meta_info`",
        "`text`, `output_ids`, `meta_info`; in `meta_info` the counter is last",
        "as Python; the order inside `meta_info` lets a step's frame end in the one number that"
        " changes",
        proof=_CHOICES + "test_key_order",
    ),
    Choice(
        "n", "`n` > 1 on `/generate`", "400", "an array of n", "an array of n", "as Python",
        allowed=(
            Allowed(RUST, "n2", "status", lambda o, t: (o, t) == (200, 400)),
            Allowed(RUST, "n2", r"\[0\]", lambda o, t: "n must be 1" in t["error"]["message"]),
        ),
    ),
    Choice(
        "stop-id", "`output_ids` of a request that ended at a stop id", "without the stop id",
        "with it", "with it", "as Python; its text is trimmed in all three",
        proof=_CHOICES + "test_a_stop_id_stays_in_output_ids",
    ),
    Choice(
        "cut-character", "a character cut off by the end of the answer", "dropped", "U+FFFD",
        "U+FFFD", "as Python", proof=_CHOICES + "test_a_cut_character_is_shown",
    ),
    Choice(
        "special-tokens", "`skip_special_tokens: false`", "ignored in its newer source",
        "honoured", "honoured",
        "as Python", proof=_CHOICES + "test_special_tokens_are_shown_on_request",
    ),
    Choice(
        "stop-window", "`stop_str_max_len`: tokens of a stop string",
        "counted with special tokens", "without", "without", "as Python",
        proof=_CHOICES + "test_stop_window_counts_no_special_tokens",
    ),
    # -- aborts ----------------------------------------------------------------------
    Choice(
        "abort-answer", "the answer of a request ended by `/abort_request`",
        "499 `client disconnected`", "200, the text so far, finish reason `abort`",
        "200, the text so far, finish reason `abort`", "as Python",
        allowed=(
            Allowed(RUST, "aborted_.*", "status", lambda o, t: (o, t) == (200, 499)),
            Allowed(RUST, "aborted_.*", r"\[0\]\.(text|output_ids|meta_info)", only_ours),
            Allowed(RUST, "aborted_.*", r"\[0\]\.error", only_theirs),
        ),
    ),
    Choice(
        "queue-abort", "`meta_info` of a request aborted in the queue",
        "no answer (499)", "without prompt, cached and reasoning tokens",
        "with them", "the frame says them; an answer has the same keys whatever ended it",
        allowed=(
            Allowed(
                PYTHON, "aborted_queued.",
                r"\[0\]\.meta_info\.(prompt_tokens|cached_tokens|reasoning_tokens)", only_ours,
            ),
        ),
    ),
    Choice(
        "abort-status", "a stream that its scheduler aborts with a status of 400 to 599",
        "an error frame", "a frame with finish reason `abort`",
        "a frame with finish reason `abort`", "as Python; unary answers carry the status in all",
        proof=_CHOICES + "test_an_abort_with_a_status",
    ),
    Choice(
        "abort-empty", "`/abort_request` without a rid", "logged", "logged", "200, ignored",
        "it must never end everybody's requests",
        proof="tests/e2e/test_generate.py::test_abort_request",
    ),
    Choice(
        "abort-exact", "`/abort_request` of a rid that others start with", "ends exactly that rid",
        "ends those too once the rid itself is live", "ends exactly that rid, or its batch",
        "somebody else's request is not ended; wire rids have a suffix no other rid starts with",
        proof="tests/e2e/test_generate.py::test_abort_request",
    ),
    Choice(
        "abort-again", "abort of a request whose abort is under way", "not sent again",
        "not sent again", "may be sent again", "a scheduler takes the second one for nothing",
        proof="tests/e2e/test_parity.py::test_nothing_else_was_sent",
    ),
    # -- requests --------------------------------------------------------------------
    Choice(
        "put", "`PUT /generate`", "405", "as POST", "as POST", "as Python",
        proof=_CHOICES + "test_put",
    ),
    Choice(
        "text-and-ids", "both `text` and `input_ids`", "400", "the ids are used, the text ignored",
        "400", "as Rust: what cannot be honoured is refused, not ignored",
        proof=_CHOICES + "test_refused_as_rust_does",
    ),
    Choice(
        "empty-text", "`text` is `\"\"`", "400", "left to the scheduler, which refuses it", "400",
        "as Rust: the client learns it at once", proof=_CHOICES + "test_refused_as_rust_does",
    ),
    Choice(
        "rid-bytes", "a rid over 128 bytes", "400", "accepted", "400",
        "as Rust: rids travel in every frame", proof=_CHOICES + "test_refused_as_rust_does",
    ),
    Choice(
        "oov", "a token id outside the vocabulary", "400", "ends the whole server", "400",
        "as Rust; the text names the id and the range",
        proof=_CHOICES + "test_refused_as_rust_does",
    ),
    Choice(
        "empty-stop", "an empty stop string", "-", "matches the first token", "400",
        "neither: a one-token empty answer is nobody's wish",
        proof=_CHOICES + "test_refused_as_rust_does",
    ),
    Choice(
        "large-stops",
        "stop strings of over 4096 bytes together; stop patterns that may backtrack for long",
        "-", "accepted", "400",
        "neither: the scheduler looks for them at every step of all requests",
        proof=_CHOICES + "test_refused_though_others_take_it",
    ),
    Choice(
        "same-rid", "one rid twice at the same time", "both served", "the second is 400",
        "both served", "as Rust: one client cannot block another's rid; an abort ends both",
        proof=_CHOICES + "test_one_rid_twice",
    ),
    Choice(
        "session-id", "`meta_info.id` of a request in a session", "-", "the client's rid",
        "the client's rid with a suffix, which an abort takes too",
        "`session_params.rid` names it so: the session knows the rid on the wire",
        proof="tests/e2e/test_control_routes.py::test_a_session",
    ),
    Choice(
        "pause-abort", "`/pause_generation` with mode `abort`", "-",
        "aborts again and again until nothing runs; requests wait in the frontend",
        "retracted, then aborted in the scheduler's queue; requests wait in the scheduler",
        "in one go, whatever frontends there are",
        proof="tests/e2e/test_control_routes.py::test_a_pause_that_ends_what_runs",
    ),
    Choice(
        "batch-failure", "one element of a batch fails", "an `{error}` entry, status 200",
        "the whole call fails", "the whole call fails; the others are aborted", "as Python",
        proof=_CHOICES + "test_one_element_of_a_batch_fails",
    ),
    # -- errors ----------------------------------------------------------------------
    Choice(
        "error-prefix", "text of a refused request", "`validation failed: ` before it", "the text",
        "the text", "as Python",
        allowed=(
            Allowed(
                RUST, f"{_TOO_LONG}|oov", r"\[0\]\.error\.message",
                lambda o, t: t == "validation failed: " + o,
            ),
        ),
    ),
    Choice(
        "empty-prompt", "text where a prompt or the messages are empty",
        "`prompt cannot be empty`", "`Messages cannot be empty.`, `param` null",
        "`text cannot be empty`; `messages cannot be empty.`, `param` `messages`",
        "an error names its field",
        allowed=(
            Allowed(
                RUST, "empty", r"\[0\]\.error\.message",
                lambda o, t: (o, t)
                == ("text cannot be empty", "validation failed: prompt cannot be empty"),
            ),
            Allowed(
                PYTHON, "nomsgs", r"\[0\]\.message",
                lambda o, t: (o, t) == ("messages cannot be empty.", "Messages cannot be empty."),
            ),
            Allowed(
                PYTHON, "nomsgs", r"\[0\]\.param", lambda o, t: (o, t) == ("messages", None)
            ),
        ),
    ),
    Choice(
        "error-shape", "body of a native error", "`{\"error\":{\"message\",\"code\"}}`",
        "`{\"error\":{\"message\"}}`, or `{\"error\":\"text\"}` from its first check",
        "`{\"error\":{\"message\",\"code\"}}`",
        "one shape for all errors; it holds Python's usual one",
        allowed=(
            Allowed(PYTHON, _TOO_LONG, r"\[0\]\.error\.code", lambda o, t: o == 400),
            Allowed(
                PYTHON, "bad", r"\[0\]\.error",
                lambda o, t: o == {"message": t, "code": 400},
            ),
        ),
    ),
    Choice(
        "ended-shape", "body when the scheduler ends a native request with a status over 400",
        "`{\"error\":{\"message\",\"code\"}}`", "`{object,message,type,param,code}`",
        "the members of both", "a client of either finds what it looks for",
        proof=_CHOICES + "test_an_abort_with_a_status",
    ),
    Choice(
        "error-path", "text of a type error", "the value and a type of Rust's (`i64`)",
        "the value and a type of Rust's (`i64`)", "the value, a type in words, the field's path",
        "an error names its field; `an integer` is understood without knowing Rust",
        allowed=(
            Allowed(
                RUST, "badtype", r"\[0\]\.error\.message",
                lambda o, t: o == _in_words(t) + " at `sampling_params.top_k`",
            ),
            Allowed(
                PYTHON, "badtype", r"\[0\]\.error",
                lambda o, t: o
                == {"message": _in_words(t) + " at `sampling_params.top_k`", "code": 400},
            ),
        ),
    ),
    Choice(
        "no-prompt", "text when there is no prompt",
        "``either `text` or `input_ids` must be provided``",
        "`Either text, input_ids or input_embeds should be provided.`", "Python's", "as Python",
        allowed=(
            Allowed(
                RUST, "none", r"\[0\]\.error\.message",
                lambda o, t: o == "Either text, input_ids or input_embeds should be provided.",
            ),
        ),
    ),
    Choice(
        "stream-error", "an error in the middle of a stream", "`message`, `code`",
        "`message`, `type` `invalid_request_error`, `code`, `retryable` false",
        "the same four keys; `type` `internal_error` from 500 up, `retryable` true for 429 and 503",
        "Python's keys with values that are true",
        proof="tests/e2e/test_parity_malformed.py::test_a_stream_gets_an_error_frame_and_done",
    ),
    # -- other routes ----------------------------------------------------------------
    Choice(
        "model-info", "`/model_info`", "no `has_*_understanding`, `model_type`",
        "and `architectures`, `embedding`", "without `architectures`, `embedding`",
        "they are not among the server's arguments",
        allowed=(
            Allowed(
                RUST, "/model_info",
                r"\[0\]\.(has_image_understanding|has_audio_understanding|model_type)", only_ours,
            ),
            Allowed(PYTHON, "/model_info", r"\[0\]\.(architectures|embedding)", only_theirs),
        ),
    ),
    Choice(
        "server-info", "`/server_info`", "an allow-list", "all arguments, keys included",
        "an allow-list", "as Rust: a key must not appear",
        proof=_CHOICES + "test_server_info_shows_no_key",
    ),
    Choice(
        "get-server-info", "`/get_server_info`", "404", "present", "present", "as Python",
        proof=_CHOICES + "test_server_info_shows_no_key",
    ),
    Choice(
        "stop-sequence", "`/v1/messages`: a stop sequence ends it", "-",
        "`stop_reason` end_turn", "stop_sequence, and which one", "as Anthropic's API",
        proof="tests/e2e/test_anthropic.py::test_why_it_ended",
    ),
    Choice(
        "messages-errors", "`/v1/messages`: what is wrong with a body", "-",
        "pydantic's words; `Internal server error` for all of 5xx",
        "the field by its path; a 503 says why", "as on the other routes",
        proof="tests/e2e/test_anthropic.py::test_refused",
    ),
    Choice(
        "drain", "SIGTERM with requests running", "cuts them", "waits for them",
        "waits for them within `--drain-timeout`", "as Python",
        proof="tests/e2e/test_lifecycle.py::test_drain_lets_streams_finish_and_closes_connections",
    ),
    Choice(
        "text-types", "types of `/tokenize` and `/detokenize` fields", "strict",
        "what pydantic turns into the type (`\"5\"` is a token id)", "strict",
        "as every other route", proof=_SMALL + "test_refused_text_calls",
    ),
    Choice(
        "detokenize-oov", "`/detokenize` of an id outside the vocabulary", "-",
        "skipped; 500 if it is negative", "400", "the text names the id and the range",
        proof=_SMALL + "test_refused_text_calls",
    ),
    Choice(
        "tokenize-chat-fields", "`/tokenize` with a prompt and fields of a conversation", "-",
        "they are ignored", "400", "what cannot be honoured is refused",
        proof=_SMALL + "test_refused_text_calls",
    ),
    Choice(
        "content-type", "a body whose Content-Type is not JSON", "400 or 415", "400",
        "read as JSON", "what it is decides; curl's default type works",
        proof=_SMALL + "test_any_content_type",
    ),
    # -- OpenAI routes ---------------------------------------------------------------
    *OPENAI_CHOICES,
    *PARSER_CHOICES,
    Choice(
        "metrics-labels", "`custom_labels` with a name that is no label of the metrics",
        "not known", "an exception in the loop that handles outputs", "passed over",
        "a client must not choose labels; `model_name` cannot be forged either",
        proof=_METRICS + "test_labels_of_requests",
    ),
    Choice(
        "metrics-paths", "HTTP counters of paths that no route takes", "none",
        "a label for each path", "one label for all", "clients must not grow the metrics",
        proof=_METRICS + "test_errors_and_unknown_paths_are_counted_by_status",
    ),
    Choice(
        "loads-query", "`/v1/loads` with an unknown section or format", "not known",
        "500; JSON for any format but `prometheus`", "400 that names the parameter",
        "as every other route", proof="tests/e2e/test_loads.py::test_bad_queries_are_400",
    ),
    Choice(
        "loads-source", "`/v1/loads` where no snapshot file is published", "an error",
        "an empty list",
        "what the scheduler's internal state says, else our own counts, with `source`",
        "a router learns something, and what it rests on",
        proof="tests/e2e/test_loads.py::test_a_silent_scheduler_does_not_keep_the_answer",
    ),
    *ACCESS_CHOICES,
    Choice(
        "chat-thinking", "`thinking` of a chat request", "-",
        "for one model's template only, else ignored",
        "its `type` is the variable `thinking_mode` of any template", "nothing is ignored",
        proof="tests/unit/test_every_field.py::test_a_field_is_honoured_or_refused_by_its_name",
    ),
    # -- towards the scheduler -------------------------------------------------------
    Choice(
        "wire-rid", "rid on the wire", "the client's with a suffix; the server's own without",
        "as given", "every client's request with a suffix",
        "no rid is ever the start of another one",
        proof="tests/e2e/test_parity.py::test_wire_rids",
    ),
)  # fmt: skip


def rows_for(side: str, name: str, path: str, ours: Any, theirs: Any) -> list[str]:
    """Keys of the rows that allow a difference."""
    return [
        choice.key
        for choice in CHOICES
        if any(a.covers(side, name, path, ours, theirs) for a in choice.allowed)
    ]


# Recorded answers that nothing is compared with, and why.
WITHOUT_PAIR: dict[str, str] = {
    "/server_info": "recorded cut off, and an allow-list of our own arguments is ours to choose",
    "/metrics": "recorded cut off, before any family of a frontend",
    "/v1/loads": "the scheduler's snapshot was not recorded; tests/unit/test_loads.py makes one"
    " of the recorded load",
    "badmodel": "sampled at random: Python's answer belongs to frames that were not recorded",
    "aborted_run0": "Python's was recorded cut off, some of its frames not at all: the text is"
    " compared with the frames that were",
    "aborted_run1": "as aborted_run0",
    "aborted_run2": "as aborted_run0",
    "aborted_run3": "as aborted_run0",
}

# Recorded messages no answer was recorded for, or none of ours corresponds to.
MESSAGES_WITHOUT_PAIR: dict[str, str] = {
    "TokenizedGenerateReqInput of the warm-up": "the server's own request: nobody gets an answer",
    "GetInternalStateReq": "the scheduler's answer was not recorded",
    "FlushCacheReqInput (2)": "the client's answers were not recorded; ours are 200",
    "CheckWeightsReqInput": "the client's answer was not recorded; ours is checked by the"
    " scheduler's, which was",
}
