"""/tokenize, /detokenize, counts: calls of the tokenize core. Owner: the core's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import frame
from ..contract.anthropic import MessagesDecoder
from ..contract.chat import ChatDecoder
from ..contract.errors import BadRequest, openai_error_body
from ..contract.generate import GenerateDecoder
from ..contract.texts import TextsBody, decode_detokenize, decode_tokenize
from ..http1 import HttpRequest
from ..render import http
from ..stages import stream as records
from .base import PROBE_PLAN
from .beside import BesideHandlers

if TYPE_CHECKING:
    from ..stages.connections import Connection


class TextHandlers(BesideHandlers):
    """The tokenizer as a service."""

    _chat: ChatDecoder  # of the OpenAI handlers
    _messages: MessagesDecoder

    def tokenize(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /tokenize."""
        try:
            wanted = self.read(request, self._decode_tokenize)
            self._call(conn, request, close, frame.T_TEXTS, True, *wanted)
        except BadRequest as error:
            self._flat_error(conn, close, error)

    def detokenize(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /detokenize."""
        try:
            wanted = self.read(request, self._decode_detokenize)
            self._call(conn, request, close, frame.T_TEXTS, False, *wanted)
        except BadRequest as error:
            self._flat_error(conn, close, error)

    def count_tokens(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /v1/messages/count_tokens."""
        if self.setup.skip_tokenizer:
            raise BadRequest("this route needs a tokenizer: this server has none")
        chat = self.read(request, self._messages.conversation, self._another_counter)
        self._call(conn, request, close, frame.T_COUNT, chat)

    def _another_counter(self) -> Callable[[bytes], tuple[Any, ...]]:
        limits = self.setup.limits
        decoder = MessagesDecoder(limits, GenerateDecoder(limits), self.setup.openai)
        return decoder.conversation

    def _decode_tokenize(self, body: bytes) -> TextsBody:
        return decode_tokenize(body, self.setup.limits, self._chat)

    def _decode_detokenize(self, body: bytes) -> TextsBody:
        return decode_detokenize(body, self.setup.limits, self.setup.vocab_size)

    def _call(
        self, conn: Connection, request: HttpRequest, close: bool, kind: int, *wanted: Any
    ) -> None:
        """To the tokenize stage, as a group without a scheduler's part."""
        if self._tok_port.backlog > self._most_held:
            raise BadRequest("the server is overloaded; try again later", 503)
        rid = self._own_rid()
        self._open(
            conn.key, records.CONTROL, False, False, request.http11, close, False, b"",
            records.COUNT if kind == frame.T_COUNT else records.TEXTS,
            time.monotonic_ns(), 0, [(rid, rid, PROBE_PLAN, None)],
        )  # fmt: skip
        self._tok_port.send((kind, self._detok_core, rid, *wanted))

    def _flat_error(self, conn: Connection, close: bool, error: BadRequest) -> None:
        self.counters.errors += 1
        body = openai_error_body(error.message, error.status)
        self._stage.answer(conn, error.status, body, http.JSON, close)
