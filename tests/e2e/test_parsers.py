"""Parsers at a server's start."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("field", ("tool_call_parser", "reasoning_parser"))
def test_an_unknown_parser_ends_the_start(start, field):
    known = "hermes, json, qwen" if field == "tool_call_parser" else "deepseek-r1.*qwen3"
    with pytest.raises(TypeError, match=f"ServerArgs: {field} 'nope' .*{known}"):
        start(**{field: "nope"})
