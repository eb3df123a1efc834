"""Keys and origins: who may call a route, which web pages may read an answer. Owner: stateless
functions; one `Guard` and one `Cors` a core, read only.

Keys come from flags, files or the environment, and are known to the cores by their digests alone.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .routes.table import ADMIN, ADMIN_OPTIONAL, OPEN

KEY_NAMES: Final = ("TPC_API_KEY", "SGLANG_API_KEY")
ADMIN_KEY_NAMES: Final = ("TPC_ADMIN_API_KEY", "SGLANG_ADMIN_API_KEY")
_ORIGIN: Final = re.compile(r"[A-Za-z][\w+.-]*://[^/?#@\s]+")
METHODS: Final = b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH"


class AccessProblem(Exception):
    """A key or origin that cannot be used; the text names its source, never a key."""


def gather(
    flag: str, keys: Sequence[str], files: Sequence[str], names: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> tuple[str, ...]:  # fmt: skip
    """The keys of `--flag` and `--flag-file`; where there are none, of the environment."""
    found = [checked(key, f"--{flag}") for key in keys]
    for name in files:
        where = f"--{flag}-file {name}"
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise AccessProblem(f"{where}: {reason}") from None
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if not lines:
            raise AccessProblem(f"{where}: no key in it (one a line; lines with # are comments)")
        found += [checked(line, where) for line in lines]
    if not found:
        found = [checked(environ[name], name) for name in names if environ.get(name)][:1]
    return tuple(dict.fromkeys(found))


def checked(key: str, where: str) -> str:
    """The key itself. Raises AccessProblem on one that no client could send."""
    if not key:
        raise AccessProblem(f"{where}: a key is empty")
    if not key.isascii() or not key.isprintable() or key != key.strip():
        raise AccessProblem(
            f"{where}: a key must be of printable ASCII characters, without spaces at its ends"
        )
    return key


def origins(given: Sequence[str] | None) -> tuple[str, ...]:
    """What `--cors-allow-origin` says; nothing said is `*`, `none` turns CORS off."""
    if not given:
        return ("*",)
    if list(given) == ["none"]:
        return ()
    for origin in given:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise AccessProblem(
                f"--cors-allow-origin {origin}: not an origin like https://example.com:8443, * or"
                " (alone) none"
            )
    return tuple(given)


def digest(key: bytes) -> bytes:
    """What is kept of a key: digests are all of one length, so comparing tells no length."""
    return hashlib.sha256(key).digest()


class Guard:
    """The keys of one server; True and False where a key opens a route or does not."""

    def __init__(self, keys: Sequence[bytes], admin_keys: Sequence[bytes]) -> None:
        """Digests of the keys."""
        self._keys = tuple(keys)
        self._admin = tuple(admin_keys)

    def refuses(
        self, access: int, authorization: bytes | None, bare_key: bytes | None = None
    ) -> int:
        """0 where a header opens a route of that access class, else the status: SGLang's.

        `bare_key` is an `x-api-key` header, for a route that takes one.
        """
        if access == OPEN:
            return 0
        if access == ADMIN and not self._admin:
            return 403
        keys = self._admin if access in (ADMIN, ADMIN_OPTIONAL) and self._admin else self._keys
        if not keys:
            return 0
        if authorization is not None and _opens(keys, _bearer(authorization)):
            return 0
        return 0 if bare_key is not None and _opens(keys, bare_key.strip()) else 401


def _bearer(authorization: bytes) -> bytes:
    """The token of an Authorization header; empty where it has none."""
    scheme, _, token = authorization.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _opens(keys: tuple[bytes, ...], token: bytes) -> bool:
    if not token:
        return False
    offered = digest(token)
    found = False
    for key in keys:  # all of them: how long it takes tells nothing
        found |= hmac.compare_digest(offered, key)
    return found


class Cors:
    """Web pages of these origins may call; `*`: of any."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.lower().encode() for origin in origins)

    def lines(self, origin: bytes) -> bytes:
        """Header lines of an answer to a page of `origin`; none where it is not let in."""
        if self._any:
            return b"Access-Control-Allow-Origin: *\r\n"
        if origin.strip().lower() in self._origins:
            return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin.strip()
        return b"Vary: Origin\r\n"

    def preflight(self, headers: Mapping[bytes, bytes]) -> tuple[int, bytes, bytes]:
        """Status, body and further header lines of the answer to a browser's question."""
        origin = headers[b"origin"].strip().lower()
        if not self._any and origin not in self._origins:
            return 400, b"Disallowed CORS origin", b""
        lines = b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Max-Age: 600\r\n" % METHODS
        wanted = headers.get(b"access-control-request-headers")
        if wanted:
            lines += b"Access-Control-Allow-Headers: %b\r\n" % wanted.strip()
        return 200, b"OK", lines
