"""Whether two ends of a link are of one mind. Owner: stateless; standard library only.

A frontend says in its first words which protocol it speaks, before it is told anything or hands
over memory. A package that was upgraded under a running scheduler, or an attached frontend of
another release, is refused by that, in one line on both sides.
"""

from __future__ import annotations

import zlib
from dataclasses import fields
from types import ModuleType
from typing import Any, Final

from .. import mesh
from ..boundary import server_args, wire
from ..config import Options
from ..counters import Counters
from ..mailbox import DOORBELL_BYTES
from ..shm import LINE_BYTES
from ..version import __version__
from .messages import one_line

# Of what the facts below do not show: words of the socket, the layout of records and messages.
_REVISION: Final = 1
_RECORDS: Final = ("ServerArgs", "ModelConfig", "DefaultSamplingParams", "MetricsConfig")


def facts() -> list[str]:
    """What both ends take for granted of each other, as far as it is declared."""
    found = [f"wire.{fact}" for fact in _constants(wire)]
    found += [f"mesh.{fact}" for fact in _constants(mesh)]
    found += [f"counter {name}" for name in Counters.__slots__]
    found += [f"option {one.name}" for one in fields(Options)]
    for record in _RECORDS:
        found += [f"{record}.{name}" for name, _, _ in getattr(server_args, record).FIELDS]
    return [*found, f"bell {DOORBELL_BYTES}", f"line {LINE_BYTES}"]


def _constants(module: ModuleType) -> list[str]:
    named = sorted(vars(module).items())
    return [f"{k}={v}" for k, v in named if k.isupper() and isinstance(v, (int, str))]


def hello() -> list[str]:
    """What a frontend says first: the protocol, and for people the release."""
    digest = zlib.crc32("\n".join(facts()).encode())
    return [f"{_REVISION}.{digest:08x}", __version__]


def refusal(theirs: Any) -> str:
    """Why a frontend with that hello cannot be served; "" when it can."""
    ours = hello()
    given = theirs if isinstance(theirs, list) else []
    if [type(one) for one in given] != [str, str]:
        return "it does not say which protocol it speaks"
    if theirs[0] == ours[0]:
        return ""
    said, release = [one_line(one, 40) for one in theirs]
    return (
        f"it speaks protocol {said} (tpc_server {release}), the scheduler's process {ours[0]}"
        f" (tpc_server {ours[1]}): both must be of one version; restart what is older"
    )
