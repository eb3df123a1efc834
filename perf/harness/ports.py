"""Ports for programs that are told one and bind it later. Owner: any thread.

Not of those that the kernel gives to clients: between choosing one and binding it nobody else
takes it by chance. The standard library only: SGLang's interpreter imports it too.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
_RANDOM: Final = random.SystemRandom()  # tests seed the other
#: As far behind a port as `beside` may be; SGLang's for gRPC is.
REACH: Final = 10_000


def clients_from() -> int:
    """The first of the ports that connections and port 0 are given, as Linux has it."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except OSError:
        return 32768


def free_port(*beside: int) -> int:
    """A port of 127.0.0.1 that nobody has, nor any of those so far behind it."""
    end = clients_from() - REACH
    ports = range(_LOWEST, end if end - _LOWEST >= 1_000 else (1 << 16) - REACH)
    while True:
        port = _RANDOM.choice(ports)
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in (0, *beside)]
            with suppress(OSError):  # it is taken
                for sock, offset in zip(sockets, (0, *beside), strict=True):
                    sock.bind(("127.0.0.1", port + offset))
                return port
