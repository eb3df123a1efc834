"""/parse_function_call and /separate_reasoning: the parsers alone. Owner: the core's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import frame
from ..contract.errors import BadRequest
from ..contract.parse import decode_parse, decode_separate
from ..http1 import HttpRequest
from .texts import TextHandlers

if TYPE_CHECKING:
    from ..stages.connections import Connection


class ParseHandlers(TextHandlers):
    """The parsers as a service; the tokenize stage runs them, which has threads for long texts."""

    def parse_function_call(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /parse_function_call."""
        try:
            facts = self.setup.openai
            wanted = self.read(request, lambda body: decode_parse(body, facts))
            self._call(conn, request, close, frame.T_PARSE, True, *wanted)
        except BadRequest as error:
            self._flat_error(conn, close, error)

    def separate_reasoning(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /separate_reasoning."""
        try:
            facts = self.setup.openai
            wanted = self.read(request, lambda body: decode_separate(body, facts))
            self._call(conn, request, close, frame.T_PARSE, False, *wanted)
        except BadRequest as error:
            self._flat_error(conn, close, error)
