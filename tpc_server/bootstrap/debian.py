"""CPython's source from Debian, without touching the machine's package lists. Owner: one process.

A private apt configuration with lists and cache of its own; only mirror, keyring and connection
settings (proxy and the like) are the machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .progress import BootstrapError, StepFailed, run

SUITES = ("trixie", "forky")
PACKAGE = "python3.13"
APT_DIR = Path("/etc/apt")
LIMIT_S = 300
# Suites whose mirror also carries the main archive of other Debian releases.
_DEBIAN_SUITE = re.compile(
    r"(buster|bullseye|bookworm|trixie|forky|duke|sid|unstable|oldstable|stable|testing)"
    r"(-updates|-backports)?"
)


class Mirror(NamedTuple):
    """One archive of the machine: address, and keyring as apt's Signed-By says it ("": default)."""

    uri: str
    signed_by: str


def mirrors(apt_dir: Path = APT_DIR) -> list[Mirror]:
    """The Debian mirrors in the machine's own apt sources, both formats, in order, once each."""
    found: list[Mirror] = []
    for uri, suite, components, signed_by in _entries(apt_dir):
        if _DEBIAN_SUITE.fullmatch(suite) and "main" in components:
            mirror = Mirror(uri.rstrip("/"), signed_by)
            if mirror not in found:
                found.append(mirror)
    return found


def _entries(apt_dir: Path) -> Iterator[tuple[str, str, list[str], str]]:
    """(uri, suite, components, signed-by) of every active entry."""
    parts = sorted((apt_dir / "sources.list.d").glob("*"))
    for path in [apt_dir / "sources.list", *parts]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if path.suffix == ".list":
            yield from _one_line_entries(text)
        elif path.suffix == ".sources":
            yield from _deb822_entries(text)


def _one_line_entries(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    """`deb [signed-by=PATH arch=…] URI SUITE COMPONENT…`"""
    for line in text.splitlines():
        entry = re.match(r"\s*deb(?:-src)?\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)", line)
        if entry:
            options = dict(o.split("=", 1) for o in (entry[1] or "").split() if "=" in o)
            yield entry[2], entry[3], entry[4].split(), options.get("signed-by", "")


def _deb822_entries(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    """Stanzas of `Field: value`, continued by lines that begin with a blank."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = _fields(stanza.splitlines())
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "disable"):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                components = fields.get("components", "").split()
                yield uri, suite, components, fields.get("signed-by", "")


def _fields(lines: Iterable[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in lines:
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t") and name:
            # A line of one dot stands for an empty one (inside an armoured key).
            text = line.strip()
            fields[name] += "\n" + ("" if text == "." else text)
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def write_configuration(work: Path, mirror: Mirror, suite: str, settings: str) -> Path:
    """Lays a private apt configuration below `work` and returns its file, for APT_CONFIG.

    `settings` is what `apt-config dump` printed; only the Acquire part of it is taken, so that no
    hook of the machine runs.
    """
    for folder in ("lists/partial", "cache/archives/partial", "etc"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    signed_by = mirror.signed_by
    if "BEGIN PGP" in signed_by:
        key = work / "etc" / "key.asc"
        key.write_text(signed_by.strip() + "\n", encoding="utf-8")
        signed_by = str(key)
    option = f" [signed-by={signed_by}]" if signed_by else ""
    sources = work / "etc" / "sources.list"
    sources.write_text(f"deb-src{option} {mirror.uri} {suite} main\n", encoding="utf-8")
    kept = [line for line in settings.splitlines() if line.startswith("Acquire::")]
    own = {
        "Dir::Etc::SourceList": str(sources),
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Parts": "/dev/null",
        "Dir::Etc::Main": "/dev/null",
        "Dir::State::Lists": str(work / "lists"),
        "Dir::Cache": str(work / "cache"),
        "Acquire::http::Timeout": "10",
        "Acquire::https::Timeout": "10",
        "Acquire::Retries": "1",
        "Acquire::Languages": "none",
        # The user _apt may not enter a private cache folder.
        "APT::Sandbox::User": "root",
    }
    config = work / "etc" / "apt.conf"
    lines = kept + [f'{name} "{value}";' for name, value in own.items()]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def fetch_source(suite: str, work: Path) -> Path:
    """The upstream tarball of Debian's `python3.13` in `suite`, checked by apt, below `work`.

    Raises BootstrapError.
    """
    if shutil.which("apt-get") is None or shutil.which("apt-config") is None:
        raise BootstrapError("no apt-get here")
    found = mirrors()
    if not found:
        raise BootstrapError("no Debian mirror in this machine's apt sources")
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False)
    faults = []
    for mirror in found:
        shutil.rmtree(work, ignore_errors=True)
        config = write_configuration(work, mirror, suite, dump.stdout)
        env = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}
        try:
            what = f"Debian {suite}: list of sources"
            # An update that could not reach its only source still ends with 0 unless told so.
            update = ["apt-get", "update", "--error-on=any"]
            run(update, what, env=env, limit_s=LIMIT_S)
            what = f"Debian {suite}: source of {PACKAGE}"
            source = ["apt-get", "source", "--download-only", "--only-source", PACKAGE]
            run(source, what, env=env, cwd=work, limit_s=LIMIT_S)
        except StepFailed as error:
            faults.append(f"{error.why}: {_reason(error)}")
            continue
        tarballs = sorted(work.glob(f"{PACKAGE}_*.orig.tar.*z"))
        if tarballs:
            return tarballs[0]
        faults.append(f"no upstream tarball among {sorted(p.name for p in work.iterdir())}")
    raise BootstrapError(f"Debian {suite}: {'; '.join(faults)}")


def _reason(error: StepFailed) -> str:
    lines = [line for line in error.tail.splitlines() if line.startswith(("E:", "Err:"))]
    return (lines or error.tail.splitlines() or ["no output"])[-1].strip()
