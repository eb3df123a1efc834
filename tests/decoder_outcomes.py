"""What each JSON reader of this build makes of a corpus of bodies. Owner: tests.

Run as a program by the test, in another environment too: it prints JSON,
{reader: [outcome of each body]}. An outcome is the decoded request as text, or "refused: " and why.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.decoder_corpus import corpus
from tpc_server.contract import (
    abort,
    anthropic,
    chat,
    completion,
    control,
    generate,
    json_body,
    parse,
    registry,
    texts,
    vertex,
)
from tpc_server.contract.errors import BadRequest, TooMuchHere
from tpc_server.contract.limits import Limits
from tpc_server.contract.openai import OpenAIFacts

MODULES: tuple[Any, ...] = (
    abort, anthropic, chat, completion, control, generate, parse, registry, texts, vertex,
)  # fmt: skip
_LONG = 400  # longer outcomes are told by their digest


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """A decoder of each request type, of one server's limits."""
    limits = Limits(
        100, 1000, enable_return_hidden_states=True, enable_strict_thinking=True,
        enable_custom_logit_processor=True,
        lora_ids={"ada": "1"}, max_batch=64,
    )  # fmt: skip
    native = generate.GenerateDecoder(limits)
    native.new_rid = lambda: "fresh"  # type: ignore[method-assign]  # fresh ids would differ
    facts = OpenAIFacts(
        "tiny", has_chat_template=True, tool_parser="json", reasoning_parser="deepseek-r1"
    )
    chats = chat.ChatDecoder(limits, native, facts)
    messages = anthropic.MessagesDecoder(limits, native, facts)
    return {
        "generate": native.decode,
        "messages": messages.decode,
        "count": messages.conversation,
        "chat": chats.decode,
        "completion": completion.CompletionDecoder(limits, native, facts).decode,
        "abort": abort.decode_abort,
        "tokenize": lambda body: texts.decode_tokenize(body, limits, chats),
        "detokenize": lambda body: texts.decode_detokenize(body, limits, 1000),
        "parse": lambda body: parse.decode_parse(body, facts),
        "separate": lambda body: parse.decode_separate(body, facts),
        "vertex": lambda body: vertex.decode_vertex(native, body),
        "weights": control.decode_weights,
        "attach": control.decode_attach,
        "pause": control.decode_pause,
        "continue": control.decode_continue,
        "open": control.decode_open,
        "close": control.decode_close,
        "route": registry.decode_route,
        "dp_rank": registry.decode_dp_rank,
        "query": registry.decode_query,
    }


def told(value: Any) -> str:
    """A decoded request as text: every member of it."""
    if isinstance(value, generate.GenerateRequest):
        items = [item.to_tuple() for item in value.items]
        return repr((value.stream, value.is_batch, value.log_metrics, value.custom_labels, items))
    if isinstance(value, tuple):
        return "(" + ", ".join([told(member) for member in value]) + ")"
    return repr(value)


def outcomes(parser: Callable[[bytes], Any], bodies: list[tuple[str, bytes]]) -> list[str]:
    """Of each body, read by `parser`."""
    before = [module.parse_object for module in MODULES]
    for module in MODULES:
        module.parse_object = parser
    try:
        by_type = decoders()
        return [_outcome(by_type[kind], body) for kind, body in bodies]
    finally:
        for module, kept in zip(MODULES, before, strict=True):
            module.parse_object = kept


def _outcome(decode: Callable[[bytes], Any], body: bytes) -> str:
    try:
        text = told(decode(body))
    except TooMuchHere:
        text = "elsewhere"
    except BadRequest as error:
        text = f"refused: {error.status} {error.message}"
    if len(text) > _LONG:
        text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text


def main() -> None:
    bodies = corpus()
    print(json.dumps({name: outcomes(p, bodies) for name, p in json_body.PARSERS.items()}))


if __name__ == "__main__":
    main()
