"""Fake programs and packages for the tests of the bootstrap. Owner: the test that calls."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

ANSWER = {
    "implementation": "CPython",
    "version": [3, 13, 5],
    "free_threaded": True,
    "optimized": False,
    "broken": [],
}


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_python(path: Path, **changes: object) -> Path:
    """A program that answers the probe as an interpreter of the given kind would."""
    answer = {**ANSWER, "executable": str(path), **changes}
    return script(path, f"cat <<'END'\n{json.dumps(answer)}\nEND")


def fake_source(folder: Path, makefile: str) -> Path:
    """A tarball that unpacks like CPython's; `configure` keeps its prefix for the makefile."""
    place = folder / "Python-3.13.5.tar.xz"
    configure = '#!/bin/sh\necho "$@" > arguments\nfor a; do case $a in --prefix=*) ' + (
        'echo "${a#--prefix=}" > prefix ;; esac; done\n'
    )
    with tarfile.open(place, "w:xz") as archive:
        for name, text, mode in (("configure", configure, 0o755), ("Makefile", makefile, 0o644)):
            member = tarfile.TarInfo(f"Python-3.13.5/{name}")
            member.size, member.mode = len(text.encode()), mode
            archive.addfile(member, io.BytesIO(text.encode()))
    return place


INSTALLING_MAKEFILE = f"""\
all:
\techo cc -c Objects/a.c
\techo cc -c Objects/b.c
install:
\tmkdir -p $$(cat prefix)/bin
\tprintf '#!/bin/sh\\necho '"'"'%s'"'" \
'{json.dumps({**ANSWER, "executable": "EXE"})}' > $$(cat prefix)/bin/python3.13
\tchmod 755 $$(cat prefix)/bin/python3.13
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A pure wheel with these files."""
    place = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(place, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        rows = [f"{path},," for path in [*files, f"{info}/METADATA", f"{info}/WHEEL"]]
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return place


def sdist(folder: Path, name: str, version: str, backend: str) -> Path:
    """A source distribution of the given build backend, which must never be asked to build."""
    place = folder / f"{name.replace('-', '_')}-{version}.tar.gz"
    top = f"{name.replace('-', '_')}-{version}"
    texts = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nTräumerei\n",
        "pyproject.toml": f'[build-system]\nrequires = ["no-such-thing-{os.getpid()}"]\n'
        f'build-backend = "{backend}"\n',
    }
    with tarfile.open(place, "w:gz") as archive:
        for path, text in texts.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return place
