"""The request machine: states, events, edges. Owner: the core that accepted the request.

A request is one generation with one rid: a call with a batch or `n` makes several. It is received
on the core of its connection and ends there, exactly once, in one of three terminal states; on
entering one the core frees the rid.

* ACCEPT: validated and handed to the tokenize stage (ids given in the call take the same way).
* ENCODED: its frame is in the scheduler's ring.
* CHUNK: a step brought tokens and did not end it.
* FINISH: a step brought its finish reason.
* ABORT: by its client (disconnect, `/abort_request`), by a bound (a reader too slow), by a drain.
* FAIL: by us or the scheduler (tokenizer error, full ring, malformed frame, a core that died).
"""

from __future__ import annotations

from typing import Final

from tpc_server.fsm import ANY, Edge, Machine

RECEIVED: Final = 0
TOKENIZING: Final = 1
QUEUED: Final = 2
DECODING: Final = 3
FINISHED: Final = 4
ABORTED: Final = 5
FAILED: Final = 6

STATES: Final = (
    "RECEIVED",
    "TOKENIZING",
    "QUEUED",
    "DECODING",
    "FINISHED",
    "ABORTED",
    "FAILED",
)
TERMINAL: Final = (FINISHED, ABORTED, FAILED)

ACCEPT: Final = 0
ENCODED: Final = 1
CHUNK: Final = 2
FINISH: Final = 3
ABORT: Final = 4
FAIL: Final = 5

EVENTS: Final = ("ACCEPT", "ENCODED", "CHUNK", "FINISH", "ABORT", "FAIL")
N_EVENTS: Final = 6

EDGES: Final[tuple[Edge, ...]] = (
    (RECEIVED, ACCEPT, TOKENIZING),
    (TOKENIZING, ENCODED, QUEUED),
    (QUEUED, CHUNK, DECODING),
    (DECODING, CHUNK, DECODING),
    (QUEUED, FINISH, FINISHED),
    (DECODING, FINISH, FINISHED),
    (ANY, ABORT, ABORTED),
    (ANY, FAIL, FAILED),
)

MACHINE: Final = Machine("request", STATES, EVENTS, EDGES, RECEIVED, TERMINAL)
