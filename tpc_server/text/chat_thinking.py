"""What a chat template does, asked of it: open the reasoning, show later system messages.
Owner: the thread that starts the server."""

from __future__ import annotations

from typing import Final

from ..parsers.formats import CLOSED, NEITHER, OPEN, REASONING_PARSERS, SWITCHES
from .chat_prompt import ChatTemplateError
from .chat_source import ChatSource

_HELLO: Final = [{"role": "user", "content": "Hello"}]


def prompt_opens(source: ChatSource, reasoning: str) -> tuple[int, int, int]:
    """What the end of a prompt does, by the switch: not given, on, off.

    Templates write the opening tag themselves, or an empty block, or leave it to the model; no list
    of families says which, and the template always does.
    """
    from .chat_template import ChatTemplate  # imports jinja2

    template = ChatTemplate(source)
    form = REASONING_PARSERS[reasoning]
    found: list[int] = []
    for switch in (None, True, False):
        kwargs = {} if switch is None else dict.fromkeys(SWITCHES, switch)
        try:
            text = template.render(_HELLO, None, True, kwargs).rstrip()
        except ChatTemplateError:  # it wants another conversation
            text = ""
        opened, closed = text.endswith(form.open), text.endswith(form.close)
        found.append(OPEN if opened else CLOSED if closed else NEITHER)
    return found[0], found[1], found[2]


def inline_system(source: ChatSource) -> bool:
    """Whether a system message behind others is shown: some templates refuse it, or drop it."""
    from .chat_template import ChatTemplate

    told = "Speak of the inline system message."
    messages = [{"role": "system", "content": "Be brief."}, *_HELLO]
    messages += [{"role": "system", "content": told}, *_HELLO]
    try:
        return told in ChatTemplate(source).render(messages, None, True)
    except ChatTemplateError:
        return False
