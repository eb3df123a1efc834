"""Whether a chat template takes a message's content as a string or as parts. Owner: stateless.

As SGLang's Python frontend finds out: a template that speaks of media, or loops over a message's
content, is given the parts; every other one is given one string.
"""

from __future__ import annotations

from typing import Any, Final

from jinja2 import nodes

from .chat_messages import PARTS, STRING

_MEDIA_WORDS: Final = ("image", "audio", "video", "vision")
#: What templates call the message of their loop.
_MESSAGE_NAMES: Final = ("message", "msg", "m")


def content_format(environment: Any, template: str) -> str:
    """`STRING` or `PARTS`."""
    if any(word in template for word in _MEDIA_WORDS):
        return PARTS
    loops = environment.parse(template).find_all(nodes.For)
    return PARTS if any(_is_content(loop.iter) for loop in loops) else STRING


def _is_content(node: Any) -> bool:
    """`message.content` or `message['content']`, maybe filtered, tested or sliced."""
    while isinstance(node, (nodes.Filter, nodes.Test)) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if isinstance(node, nodes.Getitem):
        wanted = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    else:
        wanted = isinstance(node, nodes.Getattr) and node.attr == "content"
    if not wanted:
        return False
    name = node.node
    return isinstance(name, nodes.Name) and name.ctx == "load" and name.name in _MESSAGE_NAMES
