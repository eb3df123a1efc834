"""/v1/completions, /v1/chat/completions, /v1/messages. Owner: the core's thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..boundary.messages import GENERATE
from ..contract.anthropic import MessagesDecoder
from ..contract.chat import ChatDecoder
from ..contract.completion import CompletionDecoder
from ..contract.errors import BadRequest, anthropic_error_body, openai_error_body
from ..contract.generate import GenerateDecoder, Item
from ..contract.openai import OpenAICall
from ..contract.values import I64_MAX, I64_MIN, decimal
from ..http1 import ROUTED, HttpRequest
from ..render import http
from ..render.openai import Spec
from ..stages import stream as records
from .generate import GenerateHandlers

if TYPE_CHECKING:
    from ..stages.connections import Connection

_Decoder = ChatDecoder | CompletionDecoder | MessagesDecoder
_RANK: Final = GENERATE["routed_dp_rank"]
_KEY: Final = GENERATE["routing_key"]


class OpenAIHandlers(GenerateHandlers):
    """Other providers' routes: decoded to the native request, answered in their own shape."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        limits, facts = self.setup.limits, self.setup.openai
        self._chat = ChatDecoder(limits, self._decoder, facts)
        self._completion = CompletionDecoder(limits, self._decoder, facts)
        self._messages = MessagesDecoder(limits, self._decoder, facts)

    def chat(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /v1/chat/completions."""
        self._complete(conn, request, close, records.CHAT, self._chat)

    def completions(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /v1/completions."""
        self._complete(conn, request, close, records.COMPLETION, self._completion)

    def messages(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /v1/messages."""
        self._complete(conn, request, close, records.MESSAGES, self._messages)

    def _another(self, decoder: _Decoder) -> Callable[[bytes], OpenAICall]:
        limits = self.setup.limits
        return type(decoder)(limits, GenerateDecoder(limits), self.setup.openai).decode

    def _complete(
        self, conn: Connection, request: HttpRequest, close: bool, api: int,
        decoder: _Decoder,
    ) -> None:  # fmt: skip
        try:
            if self.setup.skip_tokenizer:
                raise BadRequest("this route needs a tokenizer: this server has none")
            wanted, facts = self.read(request, decoder.decode, partial(self._another, decoder))
            first = wanted.items[0]
            if request.marked:
                _route(request.headers, wanted.items)
            labels = self._labels(request)
            if labels is not None:
                wanted.custom_labels = labels
            spec = Spec(first.group or first.rid, created=int(time.time()), **facts)
            self.submit(conn, request, close, api, tuple(spec), wanted)
        except BadRequest as error:
            self.counters.errors += 1
            told = anthropic_error_body if api == records.MESSAGES else openai_error_body
            body = told(error.message, error.status)
            self._stage.answer(conn, error.status, body, http.JSON, close)

    def _labels(self, request: HttpRequest) -> dict[str, str] | None:
        """What a proxy wants the request to be counted under; unusable text is passed over."""
        header = request.headers.get(b"x-custom-labels")
        if header is None or self.layout is None:
            return None
        try:
            labels = json.loads(header)
        except (ValueError, RecursionError):
            return None
        if type(labels) is not dict:
            return None
        return {name: value for name, value in labels.items() if type(value) is str}


def _route(headers: dict[bytes, bytes], items: list[Item]) -> None:
    """What a router said in its headers, which counts more than the body. Raises BadRequest."""
    rank, key = [headers.get(name) for name in ROUTED]
    if rank is not None:
        number = _number(rank)
        for item in items:
            item.wire[_RANK] = number
    if key is not None:
        for item in items:
            item.wire[_KEY] = key.decode("latin-1")


def _number(text: bytes) -> int:
    number = decimal(text.decode("latin-1"))
    if number is None or not I64_MIN <= number <= I64_MAX:
        shown = text[:64].decode("latin-1")
        raise BadRequest(f"invalid X-Data-Parallel-Rank header {shown!r}: it must be an integer")
    return number
