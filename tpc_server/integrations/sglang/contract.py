"""Whether SGLang is as the one that we were made for. Owner: its processes, at start."""

from __future__ import annotations

import logging
from importlib import metadata
from typing import Final

from . import facts
from .problem import Problem

TESTED: Final = "0.5.23"
_SHOWN: Final = 4

logger = logging.getLogger("tpc_server")


def check() -> None:
    """Raises Problem, naming what differs, when SGLang has moved under us."""
    version = metadata.version("sglang")
    found = facts.differences(facts.gather(), facts.recorded())
    if found:
        more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        raise Problem(
            f"SGLang {version} is not as {TESTED}, which this tpc_server was made for: "
            + "; ".join(found[:_SHOWN])
            + more
        )
    if version != TESTED:
        logger.warning(
            "tpc_server is tested with SGLang %s; nothing it relies on differs in %s",
            TESTED, version,
        )  # fmt: skip
