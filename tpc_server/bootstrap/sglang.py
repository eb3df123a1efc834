"""Whether an SGLang that is installed beside us will be served by us. Owner: any thread.

SGLang runs a plugin only when `SGLANG_PLUGINS`, where it is set, names it; one that is left out
learns nothing of it. So it is told here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

TESTED = "0.5.23"
PLUGIN = "tpc"
THEIRS = ("", "0", "python", "rust")


def installed() -> str:
    """The version of the SGLang in this environment, "" without one."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return ""


def rows(environ: Mapping[str, str], version: str) -> list[tuple[str, str]]:
    """What an operator should know; nothing when there is no SGLang here and none is meant."""
    chosen = environ.get("SGLANG_FRONTEND", "")
    plugins = environ.get("SGLANG_PLUGINS", "")
    if not (version or chosen or plugins):
        return []
    tested = "" if version == TESTED else f" (tested with {TESTED})"
    found = [("SGLang", f"{version}{tested}" if version else "not in this environment")]
    ours = chosen.strip().lower() == PLUGIN
    found.append(("SGLANG_FRONTEND", chosen or f"not set: SGLang serves itself ({PLUGIN}: we do)"))
    if plugins:
        named = {name.strip() for name in plugins.split(",")}
        found.append(("SGLANG_PLUGINS", plugins if PLUGIN in named else f"{plugins}{_LEFT_OUT}"))
    if ours and version and not _entry():
        found.append(("plugin", _NO_ENTRY))
    return found


def fault(environ: Mapping[str, str]) -> str:
    """Why SGLang would not be served by us although it is asked for, or would not start, or ""."""
    chosen = environ.get("SGLANG_FRONTEND", "")
    name = chosen.strip().lower()
    if name in THEIRS:
        return ""
    if name != PLUGIN:
        return (
            f"SGLANG_FRONTEND={chosen} is no frontend: SGLang would not start; {PLUGIN} is this one"
        )
    plugins = environ.get("SGLANG_PLUGINS", "")
    if plugins and PLUGIN not in {part.strip() for part in plugins.split(",")}:
        return f"SGLANG_PLUGINS={plugins} leaves us out: SGLang would serve itself; add {PLUGIN}"
    if installed() and not _entry():
        return f"SGLang would serve itself: {_NO_ENTRY}"
    return ""


_NO_ENTRY = "we are not among its plugins; install this package into its environment"
_LEFT_OUT = f": leaves us out, SGLang would serve itself; add {PLUGIN}"


def _entry() -> bool:
    return any(p.name == PLUGIN for p in _points("sglang.srt.plugins"))


def _points(group: str) -> list[metadata.EntryPoint]:
    """Entry points of one group, on every Python from 3.9 on."""
    found = metadata.entry_points()
    select = getattr(found, "select", None)
    return list(select(group=group)) if select is not None else list(dict(found).get(group, ()))
