"""The connection machine: states, events, edges. Owner: the core that accepted the connection.

One HTTP/1.1 connection, whose answers go out in the order of their requests. Requests that arrive
before their turn (pipelining) wait as parsed requests: in WAITING more BYTES change nothing, and
once the answer is complete the connection is idle for a moment and the next one is dispatched as
if it had just come. Input that is refused (408, 413, 431, malformed) counts as a request too.

* BYTES: something was read (or was buffered, when it is its turn).
* REQUEST: a whole request was parsed and dispatched.
* ANSWERED: the answer is complete and the connection stays.
* ANSWERED_CLOSE: the answer is complete and is the last one (`Connection: close`, HTTP/1.0, a
  refused head or body, a server that drains, the last request of a peer that sent FIN).
* PEER_EOF: the peer sent FIN, and what was read before it is parsed. It may still read, so what is
  owed is sent before the close; in HALF_CLOSED it is reported again once nothing is owed any more
  (the bytes left are no whole request).
* FLUSHED: the write buffer is empty; reported while draining only, at once when it was so already.
* IDLE_TIMEOUT: no request began in time, or a draining peer did not read in time.
* SHUTDOWN: the server drains and no request is under way here.
* ERROR: ours (an answer that was lost with another core). RESET: the peer's (RST, EPIPE). Nothing
  more is sent.
"""

from __future__ import annotations

from typing import Final

from tpc_server.fsm import ANY, Edge, Machine

OPEN_IDLE: Final = 0
READING: Final = 1
WAITING: Final = 2
DRAINING: Final = 3
HALF_CLOSED: Final = 4
CLOSED: Final = 5

STATES: Final = (
    "OPEN_IDLE",
    "READING",
    "WAITING",
    "DRAINING",
    "HALF_CLOSED",
    "CLOSED",
)
TERMINAL: Final = (CLOSED,)

BYTES: Final = 0
REQUEST: Final = 1
ANSWERED: Final = 2
ANSWERED_CLOSE: Final = 3
PEER_EOF: Final = 4
FLUSHED: Final = 5
IDLE_TIMEOUT: Final = 6
SHUTDOWN: Final = 7
ERROR: Final = 8
RESET: Final = 9

EVENTS: Final = (
    "BYTES",
    "REQUEST",
    "ANSWERED",
    "ANSWERED_CLOSE",
    "PEER_EOF",
    "FLUSHED",
    "IDLE_TIMEOUT",
    "SHUTDOWN",
    "ERROR",
    "RESET",
)
N_EVENTS: Final = 10

EDGES: Final[tuple[Edge, ...]] = (
    (OPEN_IDLE, BYTES, READING),
    # Not CLOSED: the end of the last answer may still be in the write buffer.
    (OPEN_IDLE, PEER_EOF, DRAINING),
    (OPEN_IDLE, IDLE_TIMEOUT, DRAINING),
    (OPEN_IDLE, SHUTDOWN, DRAINING),
    (READING, BYTES, READING),
    (READING, REQUEST, WAITING),
    (READING, PEER_EOF, DRAINING),
    (WAITING, BYTES, WAITING),
    (WAITING, ANSWERED, OPEN_IDLE),
    (WAITING, ANSWERED_CLOSE, DRAINING),
    (WAITING, PEER_EOF, HALF_CLOSED),
    # After FIN the requests already buffered are still owed an answer, in turn.
    (HALF_CLOSED, REQUEST, HALF_CLOSED),
    (HALF_CLOSED, ANSWERED, HALF_CLOSED),
    (HALF_CLOSED, ANSWERED_CLOSE, DRAINING),
    (HALF_CLOSED, PEER_EOF, DRAINING),
    (DRAINING, BYTES, DRAINING),  # read and thrown away: unread bytes would turn close into RST
    (DRAINING, PEER_EOF, DRAINING),
    (DRAINING, FLUSHED, CLOSED),
    (DRAINING, IDLE_TIMEOUT, CLOSED),
    (ANY, ERROR, CLOSED),
    (ANY, RESET, CLOSED),
)

MACHINE: Final = Machine("connection", STATES, EVENTS, EDGES, OPEN_IDLE, TERMINAL)

# (machine, state reached, machine, event it gets): the only ways one machine moves the other.
# A connection reaching WAITING accepts the requests of that call (none for a route that generates
# nothing), one reaching CLOSED aborts the live ones. The *last* live request of a call to end
# completes the answer: with which event depends on whether the stream can still end well and the
# connection can stay.
COUPLING: Final = (
    ("connection", "WAITING", "request", "ACCEPT"),
    ("connection", "CLOSED", "request", "ABORT"),
    ("request", "FINISHED", "connection", "ANSWERED, ANSWERED_CLOSE"),
    ("request", "ABORTED", "connection", "ANSWERED, ANSWERED_CLOSE, ERROR"),
    ("request", "FAILED", "connection", "ANSWERED, ANSWERED_CLOSE, ERROR"),
)
