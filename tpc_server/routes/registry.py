"""The registry of a prefill server, which SGLang's own ranks use. Owner: the core's thread.

Only where the server's role is prefill; without a key, for the ranks have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from ..contract.errors import BadRequest
from ..contract.registry import decode_dp_rank, decode_query, decode_route
from ..contract.values import decimal
from ..http1 import HttpRequest
from ..registry import Registry, RegistryBusy, RegistryFull, is_ready, place_of, shown
from ..render import native
from .beside import BesideHandlers

if TYPE_CHECKING:
    from ..stages.connections import Connection

_PLACE: Final = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
_WHOLE: Final = [-1, -1, -1, -1]  # a question for the server as a whole


class RegistryHandlers(BesideHandlers):
    """Ranks register, decode nodes ask."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        setup = self.setup
        self._registry = Registry(setup.registry_fd, setup.registry_entry_s)

    def registry_route(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """PUT, GET /route."""
        if request.method == b"PUT":
            row = self.read(request, decode_route)
            try:
                refusal = self._registry.register(row)
            except RegistryBusy:
                raise _busy() from None
            except RegistryFull:
                raise BadRequest("there is no room for so many ranks") from None
            if refusal:
                raise BadRequest(refusal)
            self._text(conn, request, close, 200, b"OK")
            return
        place = _place(request.query)
        try:
            topology = self._registry.topology()
        except RegistryBusy:
            raise _busy() from None
        if not is_ready(topology):
            count = len(topology.get("ranks", ()))
            raise BadRequest(f"not all ranks have registered yet ({count} have)", 503)
        if place == _WHOLE:
            self._json(conn, request, close, native.to_json(shown(topology)))
            return
        found = topology["ranks"].get(place_of(*place))
        if found is None:
            named = " ".join([f"{name}={at}" for name, at in zip(_PLACE, place, strict=True)])
            raise BadRequest(f"no such rank has registered: {named}", 404)
        body = native.to_json({"rank_ip": found[0], "rank_port": found[1]})
        self._json(conn, request, close, body)

    def register_dp_rank(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /register_dp_rank."""
        room, rank = self.read(request, decode_dp_rank)
        try:
            self._registry.note_room(room, rank)
        except RegistryBusy:
            raise _busy() from None
        self._text(conn, request, close, 200, b"OK")

    def query_dp_ranks(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /query_dp_ranks: rooms that nobody named are left out."""
        rooms = self.read(request, decode_query)
        try:
            found = self._registry.rooms(rooms)
        except RegistryBusy:
            raise _busy() from None
        named = {str(room): rank for room, rank in found.items()}
        self._json(conn, request, close, native.to_json(named))


def _busy() -> BadRequest:
    return BadRequest("the registry is busy; try again", 503)


def _place(query: bytes) -> list[int]:
    given = parse_qs(query.decode("latin-1"))
    place = []
    for name in _PLACE:
        number = decimal(given.get(name, [""])[-1])
        if number is None:
            raise BadRequest(f"the query must have {name}, an integer")
        place.append(number)
    return place
