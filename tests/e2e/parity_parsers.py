"""Where our parsers of reasoning and tool calls differ from SGLang's. Owner: constants."""

from __future__ import annotations

from tests.e2e.parity_rows import Choice

_CALLS = "tests/unit/test_parsers_calls.py::"
_THINK = "tests/unit/test_parsers_think.py::"
_CUT = "tests/property/test_parsers_properties.py::"

PARSER_CHOICES: tuple[Choice, ...] = (
    Choice(
        "parser-cuts", "one text in other chunks", "-", "may give other content and calls",
        "the same", "an answer does not depend on its streaming", proof=_CUT + "test_any_cut",
    ),
    Choice(
        "unknown-function", "a call of a function that is not in `tools`", "-", "left out",
        "stays content, as written", "nothing a model says is lost",
        proof=_CALLS + "test_unknown_beside_known",
    ),
    Choice(
        "no-call", "text that only begins like a call", "-", "left out while streaming",
        "stays content, as written", "nothing a model says is lost",
        proof=_CALLS + "test_what_is_no_call_stays_content",
    ),
    Choice(
        "arguments-text", "arguments of a call", "-", "written anew", "as the model wrote them",
        "numbers and escapes keep their form; a stream and its whole agree",
        proof=_CALLS + "test_arguments_as_written",
    ),
    Choice(
        "one-call", "`parallel_tool_calls` false, and a second call", "-",
        "only the grammar knows of it", "the first counts, the rest stays content",
        "a client that asks for one call gets one", proof=_CALLS + "test_one_call_only",
    ),
    Choice(
        "content-behind-calls", "text behind a call, and white space beside one", "-",
        "dropped when not streaming, white space kept when streaming",
        "the text is content, the white space is not", "nothing a model says is lost",
        proof=_CALLS + "test_content_around",
    ),
    Choice(
        "think-later", "`<think>` in the middle of an answer", "-",
        "reasoning, what is before it sometimes too", "content",
        "a block of reasoning opens the output; an answer may write about the tag",
        proof=_THINK + "test_no_reasoning",
    ),
    Choice(
        "starts-inside", "whether an answer starts inside reasoning", "-",
        "by the template's wording, or the parser's name", "what the end of the prompt says",
        "a model without reasoning is not all reasoning",
        proof="tests/e2e/test_chat_tools.py::test_the_template_says_where_the_answer_starts",
    ),
    Choice(
        "call-in-reasoning", "a call in reasoning that is closed later", "-",
        "ends the reasoning while streaming, does not in the whole text", "does not",
        "a model may think about a call; that it forgot to close is known at the end",
        proof=_THINK + "test_a_call_ends_what_was_never_closed",
    ),
)  # fmt: skip
