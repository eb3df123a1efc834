"""An HTTP client that can misbehave at any byte. Owner: the load generator's event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from tests import stream_rules

_LINGER_0: Final = struct.pack("ii", 1, 0)  # close() sends a reset

Address = tuple[str, int]


class Gone(Exception):
    """The connection ended before what was asked of it was complete."""


class Wrong(Exception):
    """The server broke the protocol or its own contract; the text says how."""


class Conn:
    """One connection; all times are CLOCK_MONOTONIC in seconds."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.opened = time.monotonic()
        self.buffer = bytearray()
        self.read_bytes = 0
        self.closing = False  # the last answer said so
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, address: Address, rcvbuf: int = 0) -> Conn:
        """Connect; Gone when nobody listens."""
        sock = socket.socket()
        sock.setblocking(False)
        if rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:
            sock.close()
            raise Gone(f"connect: {error}") from None
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    # -- ends ------------------------------------------------------------------------

    def close(self) -> None:
        """FIN, or RST when something was left unread."""
        self.sock.close()

    def reset(self) -> None:
        """RST."""
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
        except OSError:
            pass
        self.sock.close()

    def half_close(self) -> None:
        """FIN, and go on reading."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise Gone(f"shutdown: {error}") from None

    def settle(self) -> None:
        """Close a connection on which nothing is owed; Wrong when something has come."""
        try:
            data = bytes(self.buffer) or self.sock.recv(1 << 16)
        except OSError:
            data = b""
        self.sock.close()
        if data and not data.startswith(b"HTTP/1.1 100 "):
            raise Wrong(f"more than was asked for: {data[:300]!r}")

    # -- bytes -----------------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        """All of it. A server that has closed may have answered before: read on to see."""
        try:
            await self._loop.sock_sendall(self.sock, data)
        except OSError:
            pass

    async def fill(self, size: int = 1 << 16) -> None:
        """Read some more; Gone at the end."""
        try:
            data = await self._loop.sock_recv(self.sock, size)
        except OSError as error:
            raise Gone(f"recv: {error}") from None
        if not data:
            raise Gone("end of stream")
        self.read_bytes += len(data)
        self.buffer += data

    async def at_end(self) -> bool:
        """Whether the server has closed, and sent nothing more before."""
        if self.buffer:
            return False
        try:
            await self.fill()
        except Gone:
            return True
        return False

    async def take(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        while len(self.buffer) < count:
            await self.fill()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    async def until(self, mark: bytes) -> bytes:
        """Up to and with `mark`."""
        start = 0
        while (at := self.buffer.find(mark, start)) < 0:
            start = max(0, len(self.buffer) - len(mark))
            await self.fill()
        return await self.take(at + len(mark))

    # -- HTTP ------------------------------------------------------------------------

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response; informational ones are passed over."""
        while True:
            raw = await self.until(b"\r\n\r\n")
            lines = raw.decode("latin-1").split("\r\n")
            parts = lines[0].split(" ", 2)
            if parts[0] != "HTTP/1.1" or len(parts) < 2 or not parts[1].isdecimal():
                raise Wrong(f"no status line: {raw[:200]!r}")
            if int(parts[1]) >= 200:
                break
        pairs = [line.split(":", 1) for line in lines[1:] if line]
        headers = {k.lower(): v.strip() for k, v in pairs}
        self.closing = headers.get("connection", "").lower() == "close"
        return int(parts[1]), headers

    async def chunk(self) -> bytes:
        """One chunk's data; b"" is the last."""
        line = await self.until(b"\r\n")
        try:
            size = int(line, 16)
        except ValueError:
            rest = bytes(self.buffer[:80])
            raise Wrong(f"no chunk size: {line[:80]!r} {rest!r}") from None
        data = await self.take(size)
        end = await self.take(2)
        if end != b"\r\n":
            raise Wrong(f"a chunk of {size} bytes ends in {end!r}: {data[-80:]!r}")
        return data

    async def body(self, headers: dict[str, str]) -> bytes:
        """The rest of a response that is no event stream."""
        if "content-length" in headers:
            return await self.take(int(headers["content-length"]))
        raise Wrong(f"a body without length: {headers}")

    async def events(self, headers: dict[str, str]) -> AsyncIterator[Any]:
        """Data of an event stream: parsed JSON, and the text [DONE]. Ends with the response.

        Wrong where it breaks a rule of every stream; what it says is judged by the caller.
        """
        watch = stream_rules.Watch(halves=True)
        chunked = headers.get("transfer-encoding") == "chunked"
        while True:
            if chunked:
                data = await self.chunk()
                if not data:
                    break
            else:
                try:
                    if not self.buffer:
                        await self.fill()
                except Gone as gone:
                    if str(gone) != "end of stream":
                        raise
                    break
                data = bytes(self.buffer)
                self.buffer.clear()
            for event in _ruled(watch.feed, data):
                yield event
        if chunked:  # else nobody can tell the end of the stream from that of the connection
            _ruled(watch.end)


def _ruled(look: Any, *given: bytes) -> Any:
    """What a look at a stream finds; Wrong when that breaks a rule."""
    try:
        return look(*given)
    except AssertionError as error:
        raise Wrong(f"a rule of streams: {error}") from None


def parse_json(data: bytes) -> Any:
    """Strict JSON."""
    try:
        return json.loads(data, parse_constant=_refuse)
    except ValueError as error:
        raise Wrong(f"no JSON ({error}): {data[:200]!r}") from None


def _refuse(name: str) -> Any:
    raise ValueError(name)


def request(
    path: str, body: Any = None, method: str = "POST", version: str = "1.1", **headers: str
) -> bytes:
    """Bytes of one request; `body` is JSON, or bytes as they are."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: stress"]
    if raw or method == "POST":
        lines.append(f"Content-Length: {len(raw)}")
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def chunked_request(path: str, body: Any, sizes: list[int]) -> bytes:
    """The same with a chunked body, cut at these sizes (the last one is repeated)."""
    raw = json.dumps(body).encode()
    out = [f"POST {path} HTTP/1.1\r\nHost: stress\r\nTransfer-Encoding: chunked\r\n\r\n".encode()]
    at = turn = 0
    while at < len(raw):
        piece = raw[at : at + sizes[min(turn, len(sizes) - 1)]]
        out.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        at += len(piece)
        turn += 1
    out.append(b"0\r\n\r\n")
    return b"".join(out)
