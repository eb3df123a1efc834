"""Large request bodies as the pieces they came in. Owner: one core, then one helper thread.

Joining megabytes takes as long as reading them: whoever decodes them beside the core joins them
there, too.
"""

from __future__ import annotations

from typing import Any, Final

#: Bodies beyond this stay in pieces; all of these are decoded beside the core.
LARGE_BYTES: Final = 256 << 10


class Pieces:
    """A body that is not joined yet."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: list[bytes], size: int) -> None:
        self.pieces = pieces
        self.size = size

    def __len__(self) -> int:
        return self.size


def gathered(pieces: list[bytes], size: int) -> Any:
    """A body of these pieces: joined where that takes no time."""
    if len(pieces) == 1:
        return pieces[0]
    return b"".join(pieces) if size <= LARGE_BYTES else Pieces(pieces, size)


def whole(body: Any) -> bytes:
    """The body in one."""
    return body if type(body) is bytes else b"".join(body.pieces)
