"""Bodies that would hold up the core, decoded by a helper thread. Owner: the core's thread.

A handler asks `read` for what its body says. Where that takes milliseconds, `read` raises
`Elsewhere`; the body goes to a helper thread, and when it is done there, the handler runs again and
`read` has the answer. The connection's next request waits as behind any other that is in flight.
"""

from __future__ import annotations

import traceback
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..body import LARGE_BYTES, whole
from ..contract.errors import BadRequest, TooMuchHere
from ..contract.generate import GenerateRequest
from ..contract.openai import OpenAICall
from ..helper import Helper
from ..http1 import HttpRequest
from .base import Handlers

if TYPE_CHECKING:
    from ..stages.connections import Connection

T = TypeVar("T")

#: Bodies up to this are always decoded at once, those up to LARGE_BYTES as their number of commas
#: says, larger ones elsewhere.
HERE_BYTES: Final = 16 << 10
MANY_VALUES: Final = 1024
HUGE_BYTES: Final = 4 << 20  # these have a thread of their own
MOST_BYTES: Final = 256 << 20  # that wait for the helper
_LONG_IDS: Final = 256


class Elsewhere(Exception):
    """`decode` is to be called with the request's body on a helper thread."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        super().__init__()
        self.decode = decode


class _Waiting(NamedTuple):
    conn: Connection
    request: HttpRequest
    close: bool
    handler: Any
    size: int


class BesideHandlers(Handlers):
    """Decoding beside the core."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.helper_hook: Any = None  # registers a helper's descriptor with the reactor
        self.beside: dict[int, _Waiting] = {}  # by connection key
        self._beside_bytes = 0
        self._bodies: Helper | None = None
        self._outcome: tuple[Any, Exception | None] | None = None  # for the handler that runs again

    def read(
        self, request: HttpRequest, decode: Callable[[bytes], T],
        make: Callable[[], Callable[[bytes], T]] | None = None,
    ) -> T:  # fmt: skip
        """What `decode` makes of the body. `make` gives a `decode` of its own to a helper thread,
        where the core's one keeps a state. Raises BadRequest and Elsewhere."""
        outcome = self._outcome
        if outcome is not None:
            self._outcome = None
            value, error = outcome
            if error is not None:
                try:
                    raise error if isinstance(error, BadRequest) else self._broken(error)
                finally:  # its trace holds this frame: they would hold each other for ever
                    del error, outcome
            return value  # type: ignore[no-any-return]
        body = request.body
        if len(body) > HERE_BYTES and _is_heavy(body):
            raise Elsewhere(make() if make is not None else decode)
        try:
            return decode(body)
        except TooMuchHere:
            raise Elsewhere(make() if make is not None else decode) from None
        except BadRequest:
            raise
        except Exception as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> BadRequest:
        """A decoder failed, which none should: the request pays for it, not the core's others."""
        stack = "".join(traceback.format_exception(error))
        self.setup.log("error", "a body could not be decoded", core=self.core, stack=stack)
        return BadRequest("the server failed to decode this request", 500)

    def decode_beside(
        self, conn: Connection, request: HttpRequest, close: bool, handler: Any, where: Elsewhere
    ) -> None:
        """Hand the body over; the handler runs again with what comes of it."""
        body, request.body = request.body, b""
        size = len(body)
        self.beside[conn.key] = _Waiting(conn, request, close, handler, size)
        self._beside_bytes += size
        if self._beside_bytes > MOST_BYTES and len(self.beside) > 1:
            overloaded = BadRequest("the server is overloaded; try again later", 503)
            self._go_on(conn.key, None, overloaded)
            return
        try:
            if self._bodies is None:
                helper = Helper("tpc-decode")
                self.helper_hook(helper.fileno(), _Reader(self))
                self._bodies = helper
            self._bodies.call(conn.key, size > HUGE_BYTES, _decoded, where.decode, body)
        except (OSError, RuntimeError):  # no descriptors, no threads
            try:
                value = where.decode(whole(body))
            except Exception as error:
                self._go_on(conn.key, None, error)
            else:
                self._go_on(conn.key, value, None)

    def take_bodies(self) -> None:
        """Bodies are decoded."""
        assert self._bodies is not None
        for key, value, error in self._bodies.results():
            self._go_on(key, value, error)

    def _go_on(self, key: int, value: Any, error: Exception | None) -> None:
        conn, request, close, handler, size = self.beside.pop(key)
        self._beside_bytes -= size
        self._outcome = (value, error)
        self._stage.extra = self.extra_lines(request.headers)
        try:
            self.handle(handler, conn, request, close)
        finally:
            self._outcome = None
            self._stage.extra = b""

    def forget(self, key: int) -> None:
        """The client of a body is gone."""
        waiting = self.beside.pop(key, None)
        if waiting is not None:
            self._beside_bytes -= waiting.size
            if self._bodies is not None:
                self._bodies.cancel(key)

    def refuse_bodies(self, message: str) -> None:
        """The server stops: nothing waits for a helper."""
        for key in list(self.beside):
            if self._bodies is not None:
                self._bodies.cancel(key)
            self._go_on(key, None, BadRequest(message, 503))

    def end_helpers(self) -> None:
        """A core that ends or is rebuilt."""
        self.beside.clear()
        if self._bodies is not None:
            self._bodies.close()
            self._bodies = None

    def handle(self, handler: Any, conn: Connection, request: HttpRequest, close: bool) -> None:
        """Run a handler; the router's."""
        raise NotImplementedError


class _Reader:
    """Reactor handler of the helper's descriptor."""

    __slots__ = ("_handlers",)

    def __init__(self, handlers: BesideHandlers) -> None:
        self._handlers = handlers

    def on_events(self, fd: int, mask: int) -> None:
        """The helper has results."""
        self._handlers.take_bodies()


def _is_heavy(body: bytes) -> bool:
    """Whether decoding takes longer than a turn of the core may."""
    return len(body) > LARGE_BYTES or body.count(b",") > MANY_VALUES


def _decoded(decode: Callable[[bytes], Any], body: Any) -> Any:
    """On the helper thread: ids are packed there too, as the scheduler takes them."""
    value = decode(whole(body))
    wanted = value.request if isinstance(value, OpenAICall) else value
    if isinstance(wanted, GenerateRequest):
        for item in wanted.items:
            ids = item.input_ids
            if type(ids) is list and len(ids) > _LONG_IDS:
                item.input_ids = array("q", ids).tobytes()
    return value
