"""Where the frontends' OpenAI answers differ, from each other or from ours. Owner: constants."""

from __future__ import annotations

from typing import Any

from tests.e2e.parity_replay import MISSING
from tests.e2e.parity_rows import PYTHON, RUST, Allowed, Choice, only_ours

_COMPLETIONS = "comp|comp_n|comp_stream|badmodel"
_CHAT = "tests/e2e/test_chat.py::"
_TEXT = "tests/e2e/test_completions.py::"


def _offset(ours: Any, theirs: Any) -> bool:
    return type(ours) is int and ours >= 0 and theirs == -1


def _null(ours: Any, theirs: Any) -> bool:
    return bool(ours is None and theirs == MISSING)


def _id(ours: Any, theirs: Any) -> bool:
    return bool(ours == MISSING) != bool(theirs == MISSING)


def _fragment(ours: Any, theirs: Any) -> bool:
    return "\ufffd" in str(theirs) and "\ufffd" not in str(ours)


OPENAI_CHOICES: tuple[Choice, ...] = (
    Choice(
        "text-offset", "`logprobs.text_offset` of a completion", "-1", "-1",
        "the character at which the token begins", "what the field is for",
        allowed=(
            Allowed(RUST, "comp", r".*logprobs\.text_offset\[\d+\]", _offset),
            Allowed(PYTHON, "comp", r".*logprobs\.text_offset\[\d+\]", _offset),
        ),
    ),
    Choice(
        "completion-fragments", "bytes of a token that are no text, as names in `logprobs`",
        "U+FFFD, entries with one name are one",
        "a character a byte (latin-1); U+FFFD where its guess says that the vocabulary is not of"
        " bytes, as for the recorded model",
        "a character a byte (latin-1)", "as Python means it: no entry is lost",
        allowed=tuple(
            Allowed(side, "comp", path, test)
            for side in (RUST, PYTHON)
            for path, test in (
                (r".*logprobs\.tokens\[\d+\]", _fragment),
                (r".*logprobs\.top_logprobs\[\d+\]\..*", _id),
            )
        ),
    ),
    Choice(
        "completion-nulls", "members of a completion that are null", "absent", "present",
        "present", "as Python",
        allowed=(
            Allowed(RUST, _COMPLETIONS, r".*\.(logprobs|finish_reason)", _null),
            Allowed(
                RUST, _COMPLETIONS, r".*usage\.(prompt|completion)_tokens_details", _null
            ),
        ),
    ),
    Choice(
        "completion-usage", "`usage.reasoning_tokens` and `metadata` of a completion", "absent",
        "present", "present", "as Python",
        allowed=(
            Allowed(RUST, _COMPLETIONS, r".*usage\.reasoning_tokens", only_ours),
            Allowed(RUST, _COMPLETIONS, r".*metadata", only_ours),
        ),
    ),
    Choice(
        "openai-error-shape", "body of an OpenAI error", "the flat object inside `error`",
        "the flat object", "the flat object", "as Python",
        allowed=(
            Allowed(
                RUST, "nomsgs", r"\[0\]\.(object|message|type|param|code|error)", _id
            ),
        ),
    ),
)  # fmt: skip

# Differences no recorded answer shows; each is shown by a test of ours.
OPENAI_CHOICES += (
    Choice(
        "samples-id", "`id` in a stream with n > 1", "one", "each sample's own", "one",
        "a client joins chunks by it", proof=_CHAT + "test_n",
    ),
    Choice(
        "finish-order", "finish chunks of a stream with n > 1", "-", "all after the last text",
        "each choice's as it ends", "a client need not wait for the others",
        proof=_CHAT + "test_n",
    ),
    Choice(
        "openai-null", "null for a field with a default, such as `max_tokens`", "the default",
        "400 on some", "the default", "as Rust, and as OpenAI",
        proof=_TEXT + "test_default_max_tokens_is_sixteen",
    ),
    Choice(
        "suffix", "`suffix`, `best_of` other than n", "400", "ignored", "400",
        "as Rust: what cannot be honoured is refused",
        proof=_TEXT + "test_bad_requests_name_the_field",
    ),
    Choice(
        "openai-refused",
        "`functions`, `function_call`, `audio`, `prediction`, `web_search_options`,"
        " `prompt_embeds`", "400", "ignored", "400",
        "as Rust: what cannot be honoured is refused",
        proof=_CHAT + "test_bad_requests_name_the_field",
    ),
    Choice(
        "chat-max-tokens-0", "chat: `max_completion_tokens` or `max_tokens` of 0", "-",
        "as if it were not there", "as if it were not there", "as Python",
        proof=_CHAT + "test_no_limit_by_default",
    ),
    Choice(
        "top-logprobs-alone", "`top_logprobs` without `logprobs`", "-", "ignored", "400",
        "what cannot be honoured is refused", proof=_CHAT + "test_bad_requests_name_the_field",
    ),
    Choice(
        "tools-without-parser", "`tools` with `tool_choice` auto and no `--tool-call-parser`",
        "400", "the call stays text", "400", "as Rust: the client would never see its call",
        proof=_CHAT + "test_bad_requests_name_the_field",
    ),
    Choice(
        "model-name", "`model` of another name", "answered", "answered", "answered",
        "as both", proof=_TEXT + "test_unknown_names_and_models_are_accepted",
    ),
    Choice(
        "template-names", "`--chat-template` with the name of a built-in conversation, or its JSON",
        "-", "its own prompt format", "ends the start", "prompts come from Jinja templates only",
        proof="tests/e2e/test_chat_start.py::test_a_template_that_is_no_good_ends_the_start",
    ),
    Choice(
        "named-templates", "a model with several named chat templates", "-",
        "the first, or `--hf-chat-template-name`",
        "`tool_use` with tools, else `default`, else the first; or `--chat-template` NAME",
        "as transformers", proof="tests/unit/test_chat_template.py::test_named_templates",
    ),
    Choice(
        "doubled-bos", "a chat template whose text begins with two BOS", "-", "both stay", "one",
        "no model was trained on two",
        proof="tests/unit/test_tokenize_chat.py::test_a_conversation_has_the_templates_bos_once",
    ),
)  # fmt: skip
