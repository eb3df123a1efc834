"""CPython's source: the python.org tarball, else Debian's copy of it. Owner: one process."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from pathlib import Path

from . import debian
from .cache import sub
from .fetch import pip_detail
from .progress import BootstrapError, Step, StepFailed, run

# The version that this project is tested with; Debian's trixie carries the same file.
VERSION = "3.13.5"
SHA256 = "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"
URL = "https://www.python.org/ftp/python/{version}/Python-{version}.tar.xz"
SILENCE_LIMIT_S = 10


def get_tarball() -> Path:
    """The source tarball, named `Python-VERSION.tar.xz`, in the cache. Raises BootstrapError.

    Only for the holder of the lock on building.
    """
    folder = sub("source")
    kept = sorted(folder.glob("Python-3.13.*.tar.xz"))
    if kept:
        return kept[0]
    faults = []
    try:
        return _from_python_org(folder)
    except StepFailed as error:
        faults.append(f"python.org: {(error.tail.strip() or error.why).splitlines()[-1]}")
    work = folder / "debian"
    for suite in debian.SUITES:
        try:
            found = debian.fetch_source(suite, work)
        except BootstrapError as error:
            faults.append(str(error).splitlines()[0])
            continue
        version = re.search(r"_(3\.13\.\d+)\.orig", found.name)
        if version is None or found.suffix != ".xz":
            faults.append(f"Debian {suite}: unexpected file {found.name}")
            continue
        place = folder / f"Python-{version[1]}.tar.xz"
        os.replace(found, place)
        shutil.rmtree(work, ignore_errors=True)
        return place
    shutil.rmtree(work, ignore_errors=True)
    raise BootstrapError(f"no source of CPython 3.13 to be had ({'; '.join(faults)})")


def _from_python_org(folder: Path) -> Path:
    place = folder / f"Python-{VERSION}.tar.xz"
    child = str(Path(__file__).with_name("download.py"))
    url = URL.format(version=VERSION)
    # Not -I: proxy settings come from the environment, and that stays.
    argv = [sys.executable, "-S", child, url, str(place), SHA256]
    run(argv, "source from python.org", detail=pip_detail, quiet_limit_s=SILENCE_LIMIT_S)
    return place


def version_of(tarball: Path) -> str:
    """`3.13.5` of `Python-3.13.5.tar.xz`."""
    return tarball.name[len("Python-") : -len(".tar.xz")]


def unpack(tarball: Path, folder: Path) -> Path:
    """Unpacks below `folder`; returns the top folder of the source. Raises BootstrapError."""
    what = f"unpacking {tarball.name}"
    try:
        import lzma  # noqa: F401  (some builds of Python come without)
    except ImportError:
        run(["tar", "-xJf", str(tarball), "-C", str(folder)], what)
    else:
        with Step(what) as step, tarfile.open(tarball, "r:xz") as archive:
            for member in archive:
                step.tick(member.name)
                _extract(archive, member, folder)
    tops = [path for path in folder.iterdir() if (path / "configure").is_file()]
    if len(tops) != 1:
        raise BootstrapError(f"{tarball} does not look like CPython's source")
    return tops[0]


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, folder, filter="data")
    else:
        archive.extract(member, folder)
