"""Hosts and targets of requests, by the grammar of RFC 9110 and 9112. Owner: stateless.

Nothing here depends on who is asked, so a wrong host would do no harm here; a proxy in front may
read it otherwise than we do, and then each sees another request.
"""

from __future__ import annotations

import re
from typing import Final

_AUTHORITY: Final = re.compile(
    rb"(?:\[[0-9A-Za-z:._~%-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::([0-9]{0,5}))?"
)
_LAST_PORT: Final = 65535


def is_authority(text: bytes) -> bool:
    """Whether a Host header may say so: a host, which may be empty, and perhaps a port."""
    found = _AUTHORITY.fullmatch(text.strip(b" \t"))
    return found is not None and int(found[1] or b"0") <= _LAST_PORT


def is_target(target: bytes) -> bool:
    """Whether a target that is no path may stand in a request: its host is looked at where it has
    one, which must not be empty then; users and passwords have no place in it."""
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        return True  # what it is instead matches no route
    host = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    return host[:1] not in (b"", b":") and is_authority(host)


def origin_form(target: bytes) -> bytes:
    """Path of an absolute-form target; anything else as it is (it matches no route)."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.lower() in (b"http", b"https"):
        slash = rest.find(b"/")
        return rest[slash:] if slash >= 0 else b"/"
    return target
