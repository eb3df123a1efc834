"""What each family writes around reasoning and tool calls, as data. Owner: any thread (constants).

A new family is a line here as long as its markers or its JSON differ and nothing else does. The
names are SGLang's for `--reasoning-parser` and `--tool-call-parser`; `think` and `json` are ours.
Python 3.9, as the command line that lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple


class ThinkFormat(NamedTuple):
    """A block of reasoning at the start of the output."""

    open: str = "<think>"
    close: str = "</think>"
    #: The output starts inside the block, whatever the request says.
    always: bool = False
    #: The template argument that switches thinking, and whether it is on when nobody says.
    switch: str = ""
    default_on: bool = False
    #: Ends a block that is never closed: models forget the closing tag before a call.
    tool: str = ""


class ToolFormat(NamedTuple):
    """Calls as JSON objects, in blocks between markers or as the whole content."""

    begin: str = ""
    end: str = ""
    #: Content that starts with a call or an array of calls is a block without markers.
    bare: bool = False
    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")


_TOOL: Final = "<tool_call>"
_ALWAYS: Final = ThinkFormat(always=True)
_QWEN: Final = ThinkFormat(switch="enable_thinking", default_on=True, tool=_TOOL)
_QWEN_ALWAYS: Final = ThinkFormat(always=True, tool=_TOOL)
_ON_REQUEST: Final = ThinkFormat(switch="enable_thinking", tool=_TOOL)
_DEEPSEEK: Final = ThinkFormat(switch="thinking")

REASONING_PARSERS: Final[Mapping[str, ThinkFormat]] = {
    "think": ThinkFormat(),
    "deepseek-r1": _ALWAYS,
    "deepseek-v3": ThinkFormat(switch="thinking", tool=_TOOL),
    "deepseek-v4": _DEEPSEEK,
    "deepseek-v41": _DEEPSEEK,
    "dots": _QWEN,
    "gigachat35": _ALWAYS,
    "glm45": _QWEN,
    "interns1": _QWEN,
    "kimi": ThinkFormat("◁think▷", "◁/think▷"),
    "kimi_k2": ThinkFormat(switch="thinking", default_on=True, tool="<|tool_calls_section_begin|>"),
    "mimo": _ON_REQUEST,
    "minimax": _QWEN_ALWAYS,
    "mistral": ThinkFormat("[THINK]", "[/THINK]"),
    "nanbeige": _QWEN,
    "nemotron_3": _QWEN,
    "poolside_v1": _ON_REQUEST,
    "qwen3": _QWEN,
    "qwen3-thinking": _QWEN_ALWAYS,
    "step3": _ALWAYS,
    "step3p5": _ALWAYS,
}

_HERMES: Final = ToolFormat(_TOOL, "</tool_call>")

TOOL_PARSERS: Final[Mapping[str, ToolFormat]] = {
    "json": ToolFormat(bare=True),
    "hermes": _HERMES,
    "qwen": _HERMES,
    "qwen25": _HERMES,
}


#: The template arguments that switch reasoning on and off.
SWITCHES: Final = ("enable_thinking", "thinking")
# What the end of a prompt does with the block of reasoning.
NEITHER: Final = 0
OPEN: Final = 1
CLOSED: Final = 2


def thinks(
    name: str, template_kwargs: Mapping[str, Any] | None = None,
    opens: Sequence[int] | None = None, continued: str = "",
) -> tuple[bool, bool]:  # fmt: skip
    """(whether the output starts inside reasoning, whether the model may reason at all).

    `opens` is what the template does when no switch is given, when it is on, and off; without it
    the family decides, as in SGLang's table. `continued` is the beginning of the answer, where the
    request has it.
    """
    form = REASONING_PARSERS[name]
    given = template_kwargs or {}
    wanted = given.get(form.switch) if form.switch else None
    may = form.always or (wanted is not False if form.default_on else wanted is True)
    inside = may
    if opens is not None:
        switch = next((given[key] for key in SWITCHES if given.get(key) is not None), None)
        state = opens[0 if switch is None else 1 if switch else 2]
        if state == NEITHER:
            inside = form.always  # the others say it themselves
        else:
            inside = may = state == OPEN
    if form.close in continued:
        inside = False
    elif form.open in continued:
        inside = may = True
    return inside, may


def check_names(reasoning: str | None, tools: str | None) -> None:
    """Raise ValueError for a parser that does not exist; its text lists those that do."""
    for flag, name, known in (
        ("reasoning_parser", reasoning, REASONING_PARSERS),
        ("tool_call_parser", tools, TOOL_PARSERS),
    ):
        if name and name not in known:
            raise ValueError(f"{flag} {name!r} is not known; known are {', '.join(sorted(known))}")
