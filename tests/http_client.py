"""A blocking HTTP client that shows the bytes. Owner: tests."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests import stream_rules


class Answer:
    """One response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        """The body as JSON; NaN and infinity are errors."""
        return json.loads(self.body, parse_constant=_refuse)

    def events(self, cumulative: bool | None = None) -> list[Any]:
        """The body's SSE data: JSON values, and the string [DONE].

        The client has held them to `stream_rules`; `cumulative` demands more of native text.
        """
        watch = stream_rules.Watch(cumulative, halves=True)
        found = watch.feed(self.body)
        watch.end()
        return found


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


class Client:
    """One connection. Every stream it reads is held to `stream_rules`, also one read in part.

    `halves`: half characters are part of the texts; the test compares them with the right ones.
    `ruled` False: of other people's servers, whose streams are what they are.
    """

    def __init__(
        self, address: Any, timeout: float = 30.0, rcvbuf: int | None = None, halves: bool = False,
        ruled: bool = True,
    ) -> None:  # fmt: skip
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX)
        else:
            self.sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        if rcvbuf is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        self.sock.connect(address)
        self.buffer = b""
        self._halves = halves
        self._ruled = ruled
        self._watch: stream_rules.Watch | None = None  # of the stream that is being read

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """FIN."""
        self.sock.close()

    def reset(self) -> None:
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Raw bytes."""
        self.sock.sendall(data)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        """Send one request; `body` is JSON or bytes."""
        raw = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        lines = [f"{method} {path} HTTP/1.1", "Host: test"]
        if raw or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(raw)}")
        lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    def fill(self) -> bool:
        """Read some more; False at the end."""
        data = self.sock.recv(1 << 16)
        self.buffer += data
        return bool(data)

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        while len(self.buffer) < count:
            if not self.fill():
                raise EOFError(f"{len(self.buffer)} of {count} bytes")
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def until(self, mark: bytes) -> bytes:
        """Up to and with `mark`."""
        while mark not in self.buffer:
            if not self.fill():
                raise EOFError(f"ended before {mark!r}: {self.buffer[-200:]!r}")
        at = self.buffer.index(mark) + len(mark)
        data, self.buffer = self.buffer[:at], self.buffer[at:]
        return data

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response; informational ones are skipped."""
        while True:
            lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            assert lines[0].startswith("HTTP/1.1 "), f"no status line: {lines!r}"
            status = int(lines[0].split()[1])
            if status >= 200:
                break
        pairs = (line.split(":", 1) for line in lines[1:] if line)
        headers = {k.lower(): v.strip() for k, v in pairs}
        stream = headers.get("content-type", "").startswith("text/event-stream")
        ruled = stream and self._ruled
        self._watch = stream_rules.Watch(halves=self._halves) if ruled else None
        return status, headers

    def chunk(self) -> bytes:
        """One chunk's data; b"" is the last."""
        size = int(self.until(b"\r\n"), 16)
        data = self.take(size)
        assert self.take(2) == b"\r\n"
        self._seen(data, not data)
        return data

    def _seen(self, data: bytes, last: bool) -> None:
        if self._watch is not None:
            self._watch.feed(data)
            if last:
                self._watch.end()

    def answer(self, method: str = "GET") -> Answer:
        """The next response, whole."""
        status, headers = self.head()
        if method == "HEAD":
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while piece := self.chunk():
                body += piece
        elif "content-length" in headers:
            body = self.take(int(headers["content-length"]))
            self._seen(body, True)
        else:
            while self.fill():
                pass
            body, self.buffer = self.buffer, b""
            self._seen(body, True)
        return Answer(status, headers, body)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send and read one."""
        self.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        return self.answer(method)


def call(address: Any, method: str, path: str, body: Any = None, halves: bool = False) -> Answer:
    """One request on a connection of its own."""
    with Client(address, halves=halves) as client:
        return client.call(method, path, body)
