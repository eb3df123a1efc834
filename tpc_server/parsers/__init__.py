"""Reasoning and tool calls in generated text. Owner: the core that detokenizes the stream.

`make_parser` gives one parser per stream; `formats` describes the families, `think` and `calls`
are the two engines that read the descriptions. Standard library only.
"""

from __future__ import annotations

from .base import REASONING_PARSERS, TOOL_PARSERS, Event, TextParser, check_names, make_parser
from .choice import json_schema_for_choice
from .formats import thinks

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "Event",
    "TextParser",
    "check_names",
    "json_schema_for_choice",
    "make_parser",
    "thinks",
]
