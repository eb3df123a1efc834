"""The connection machine: states, events, edges. Owner: the core that accepted the connection.

One HTTP/1.1 connection, whose answers go out in the order of their requests. Requests that arrive
before their turn (pipelining) stay bytes in the read buffer: in WAITING and STREAMING more BYTES
change nothing, and once the answer is complete the connection is idle and the buffered bytes are
fed as if they had just come.

* BYTES: something was read (or was buffered, when it is its turn).
* REQUEST: a whole request was parsed and dispatched.
* HEAD_SENT: the head of a streamed answer is in the write buffer.
* ANSWERED: the answer is complete and the connection stays.
* ANSWERED_CLOSE: the answer is complete and is the last one (`Connection: close`, HTTP/1.0, a
  refused head or body, a server that drains, the last request of a peer that sent FIN).
* PEER_EOF: the peer sent FIN, and what was read before it is parsed. It may still read, so what is
  owed is sent before the close; in HALF_CLOSED it is reported again once nothing is owed any more
  (the bytes left are no whole request).
* FLUSHED: the write buffer is empty; reported while draining only, at once when it was so already.
* IDLE_TIMEOUT: no request began in time, or a draining peer did not read in time.
* READ_TIMEOUT: a head or body did not arrive in time; the answer 408 is in the write buffer.
* SHUTDOWN: the server drains and no request is under way here.
* ERROR, RESET: ours (a broken stream, an exception), the peer's (RST, EPIPE). Nothing more is sent.
"""

from __future__ import annotations

from typing import Final

from tpc_server.fsm import ANY, Edge, Machine

OPEN_IDLE: Final = 0
READING: Final = 1
WAITING: Final = 2
STREAMING: Final = 3
DRAINING: Final = 4
HALF_CLOSED: Final = 5
CLOSED: Final = 6

STATES: Final = (
    "OPEN_IDLE",
    "READING",
    "WAITING",
    "STREAMING",
    "DRAINING",
    "HALF_CLOSED",
    "CLOSED",
)
TERMINAL: Final = (CLOSED,)

BYTES: Final = 0
REQUEST: Final = 1
HEAD_SENT: Final = 2
ANSWERED: Final = 3
ANSWERED_CLOSE: Final = 4
PEER_EOF: Final = 5
FLUSHED: Final = 6
IDLE_TIMEOUT: Final = 7
READ_TIMEOUT: Final = 8
SHUTDOWN: Final = 9
ERROR: Final = 10
RESET: Final = 11

EVENTS: Final = (
    "BYTES",
    "REQUEST",
    "HEAD_SENT",
    "ANSWERED",
    "ANSWERED_CLOSE",
    "PEER_EOF",
    "FLUSHED",
    "IDLE_TIMEOUT",
    "READ_TIMEOUT",
    "SHUTDOWN",
    "ERROR",
    "RESET",
)
N_EVENTS: Final = 12

EDGES: Final[tuple[Edge, ...]] = (
    (OPEN_IDLE, BYTES, READING),
    # Not CLOSED: the end of the last answer may still be in the write buffer.
    (OPEN_IDLE, PEER_EOF, DRAINING),
    (OPEN_IDLE, IDLE_TIMEOUT, DRAINING),
    (OPEN_IDLE, SHUTDOWN, DRAINING),
    (READING, BYTES, READING),
    (READING, REQUEST, WAITING),
    (READING, ANSWERED_CLOSE, DRAINING),  # refused before it was whole: 400, 413, 431
    (READING, READ_TIMEOUT, DRAINING),
    (READING, PEER_EOF, DRAINING),
    (WAITING, BYTES, WAITING),
    (WAITING, HEAD_SENT, STREAMING),
    (WAITING, ANSWERED, OPEN_IDLE),
    (WAITING, ANSWERED_CLOSE, DRAINING),
    (WAITING, PEER_EOF, HALF_CLOSED),
    (STREAMING, BYTES, STREAMING),
    (STREAMING, ANSWERED, OPEN_IDLE),
    (STREAMING, ANSWERED_CLOSE, DRAINING),
    (STREAMING, PEER_EOF, HALF_CLOSED),
    # After FIN the requests already buffered are still owed an answer, in turn.
    (HALF_CLOSED, REQUEST, HALF_CLOSED),
    (HALF_CLOSED, HEAD_SENT, HALF_CLOSED),
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
