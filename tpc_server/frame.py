"""Messages between stages on different cores. Owner: stateless, any core.

A message is a tuple of scalars, bytes and lists of those, its first item one of the kinds
below. On one core it is handed over as it is; between cores it crosses as marshal bytes
(standard library, one C call, same interpreter on both ends, and no object is shared).
"""

from __future__ import annotations

import marshal
from typing import Any, Final

Message = tuple[Any, ...]

# to tokenize
T_JOB: Final = 1  # (kind, detok core, jobs): see `stages.tokenize`
T_ABORT: Final = 2  # (kind, wire rid)
T_CONTROL: Final = 3  # (kind, wire rid, header bytes)
T_TEXTS: Final = 4  # (kind, detok core, wire rid, whether to encode, items, is a list, special)
T_FORGET: Final = 5  # (kind, wire rid): a call of the tokenizer that nobody waits for
T_PARSE: Final = 6  # (kind, detok core, wire rid, calls or reasoning, text, parser, what else)
T_COUNT: Final = 8  # (kind, detok core, wire rid, conversation): how many tokens it has
T_SHARE: Final = 7  # (kind, list of user rids | None for all): an abort, for the other processes
# to detok
D_OPEN: Final = 10  # (kind, …): see `DetokStage._open`
D_ENCODED: Final = 11  # (kind, wire rid, number of prompt ids, ids|None, last ids, own core)
D_FAIL: Final = 12  # (kind, wire rid, status, message)
D_ABORT: Final = 13  # (kind, list of user rids | None for all)
D_GONE: Final = 14  # (kind, connection key)
D_FLOW: Final = 15  # (kind, connection key, blocked)
D_PROBE: Final = 16  # (kind, connection key): find out whether a half-closed peer is there
D_CHECK: Final = 17  # (kind, connection key): I_ALIVE if its request is still here
D_RESULT: Final = 18  # (kind, wire rid, status, JSON): the answer to a call of the tokenizer
# to egress
E_ATTACH: Final = 20  # (kind, connection key, fd)
E_WRITE: Final = 21  # (kind, connection key, data, END_* flags)
E_CLOSE: Final = 22  # (kind, connection key)           after what is queued
E_DROP: Final = 23  # (kind, connection key)            at once
# to ingress
I_ANSWERED: Final = 30  # (kind, connection key, close)
I_BROKEN: Final = 31  # (kind, connection key)
I_DETACHED: Final = 32  # (kind, connection key)
I_HANDOVER: Final = 33  # (kind, fd)
I_ALIVE: Final = 34  # (kind, connection key)
# to every stage of every other core
C_RESET: Final = 40  # (kind, core that lost its state)

END_NONE: Final = 0
END_KEEP: Final = 1  # answer complete, connection stays
END_CLOSE: Final = 2  # answer complete, close after it

STAGE_OF_KIND: Final = {
    **dict.fromkeys(
        (T_JOB, T_ABORT, T_CONTROL, T_TEXTS, T_FORGET, T_PARSE, T_SHARE, T_COUNT), "tokenize"
    ),
    **dict.fromkeys(
        (D_OPEN, D_ENCODED, D_FAIL, D_ABORT, D_GONE, D_FLOW, D_PROBE, D_CHECK, D_RESULT), "detok"
    ),
    **dict.fromkeys((E_ATTACH, E_WRITE, E_CLOSE, E_DROP), "egress"),
    **dict.fromkeys((I_ANSWERED, I_BROKEN, I_DETACHED, I_HANDOVER, I_ALIVE), "ingress"),
}


def encode(message: Message) -> bytes:
    """The message as bytes for a ring; ValueError when it holds anything but plain data."""
    return marshal.dumps(message, 2)


def decode(payload: bytes) -> Message:
    """The message out of a ring record's payload."""
    message: Message = marshal.loads(payload)
    return message
