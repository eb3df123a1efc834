"""`./tpc doctor`: what was found here and why. Owner: one process; changes and builds nothing.

Exit status 0: serving would start at once. 1: something has to be made or mended first; the last
line says what.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import build, sglang, venv
from .cache import cache_root
from .fetch import MODEL_PACKAGE, MODEL_VERSION
from .interpreter import Tried, failed_lately, look, ordinary, wants_pgo
from .locks import builds, pins
from .probe import Interpreter, probe
from .progress import BootstrapError, Step
from .toolchain import cores, missing_packages, rust_fault
from .venv import ready

CHILD_LIMIT_S = 120
# Modules without which nothing is served; and packages that an environment of its own may lack.
_NEEDED = ("tokenizers", "numpy", "httptools", "msgpack")
_OPTIONAL = ("backports-zstd", "granian")
# Run by the environment's Python: imports every package, tells versions and who switched the GIL.
_PACKAGES = """
import importlib, importlib.metadata as metadata, json, sys, warnings
warnings.simplefilter("ignore")
gil = getattr(sys, "_is_gil_enabled", lambda: True)
for name in json.loads(sys.argv[1]):
    row = {"name": name}
    try:
        dist = metadata.distribution(name)
        row["version"] = dist.version
        parts = {f.parts[0] for f in dist.files or () if f.suffix in (".py", ".so")}
        modules = sorted(p.split(".")[0] for p in parts if not p.startswith("_") and "-" not in p)
        before = gil()
        for module in modules:
            importlib.import_module(module)
        row["gil"] = gil() and not before
    except Exception as error:
        row["fault"] = f"{type(error).__name__}: {error}"
    print(json.dumps(row), flush=True)
print(json.dumps({"gil_after_all": gil()}))
"""
_PLAN = """
from tpc_server.affinity import plan, topology
from tpc_server.engines import registry
found = topology.read()
print(found.describe())
cpus = registry.engine_cpus("llama", found)  # the engine of a `serve` without flags
print(plan.plan(found, plan.PlanSettings(engine_cpus=cpus)).describe())
"""


def report(env: Mapping[str, str]) -> int:
    """Prints the whole report to stdout; 0 when serving could start, else 1."""
    tried: list[Tried] = []
    verdict = ""
    interpreter = me = _running()
    if me is not None:
        tried.append(Tried("this one", f"used: {me} at {me.executable}"))
    else:
        try:
            interpreter = look(tried)
        except BootstrapError as error:
            verdict = str(error).splitlines()[0]
    _machine()
    _title("interpreter")
    for place in tried:
        _row(place.where, place.verdict.splitlines()[0])
    if interpreter is None and not verdict:
        verdict = _what_setup_would_do()
    _row("lock files", ", ".join(builds()))
    if interpreter is not None:
        python = Path(me.executable) if me is not None else ready(interpreter)
        verdict = _environment(interpreter, python, env)
        if not interpreter.free_threaded and failed_lately():
            _row("note", "`./tpc setup` tries again to make a free-threaded one")
    _title("tools")
    _row("Rust", rust_fault() or "fine (builds tokenizers)")
    needed, wished = missing_packages()
    lacking = " ".join([*needed, *wished])
    _row("C", f"missing: {lacking}" if lacking else "fine (builds CPython)")
    _row("uv", shutil.which("uv") or "not there (not needed)")
    shown = sglang.rows(os.environ, sglang.installed())
    if shown:
        _title("SGLang")
        for name, text in shown:
            _row(name, text)
        verdict = verdict or sglang.fault(os.environ)
    _cache()
    status = 1 if verdict else 0
    print(f"\n{f'not ready: {verdict}' if verdict else 'ready to serve'} (exit status {status})")
    return status


def _running() -> Interpreter | None:
    """This process's own interpreter where it serves as it is: free-threaded, with our packages.
    (`./tpc` is run without any.)"""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        return None
    me = probe(sys.executable)
    if isinstance(me, str) or not me.free_threaded or me.fault(builds()):
        return None
    return me


def _what_setup_would_do() -> str:
    """Rows on how an interpreter would come about; the verdict."""
    ways = "from uv, else built" if shutil.which("uv") else "built"
    kept = build.kept()
    going_on = f", going on where an interrupted build was ({kept})" if kept else ""
    _row("./tpc setup", f"would have one {ways} from source: {build.expected(wants_pgo())}")
    _row("", f"then the packages: {venv.expected()}{going_on}")
    fault = rust_fault()
    needed, _ = missing_packages()
    if not fault and needed and (os.geteuid() or not shutil.which("apt-get")):
        fault = f"{' '.join(needed)} would have to be installed"
    if fault:
        _row("", f"but it cannot build here: {fault}")
        last = ordinary()
        _row("", f"so it would go on with {last}, cores sharing one GIL" if last else "")
        return f"no free-threaded interpreter, and none can be built: {fault}"
    return "no interpreter yet; `./tpc setup`, or the first `./tpc serve`, makes one"


def _machine() -> None:
    _title("machine")
    _row("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    _row("CPUs", str(cores()))
    _row("bootstrap", f"Python {platform.python_version()} at {sys.executable}")


def _environment(interpreter: Interpreter, python: Path | None, env: Mapping[str, str]) -> str:
    """Packages and core plan, asked of the environment; "" when all is well, else what is not."""
    _title(f"packages ({interpreter.build})")
    if python is None:
        wait = f": {venv.expected()}" if interpreter.build in venv.NEEDS_RUST else ""
        _row("environment", f"not made yet; ./tpc setup makes it{wait}")
        return "no packages yet; `./tpc setup`, or the first `./tpc serve`, installs them"
    verdict = ""
    rows = _packages(python, env, list(pins(interpreter.build)))
    for row in rows:
        if row.get("name") in _OPTIONAL and "version" not in row:
            _row(row["name"], "not there (not needed)")
        elif "name" in row:
            state = row.get("fault") or (
                "SWITCHES THE GIL ON"
                if row["gil"]
                else "GIL stays off"
                if interpreter.free_threaded
                else "ok"
            )
            if "fault" in row or row["gil"]:
                verdict = verdict or f"{row['name']}: {state}"
            _row(row["name"], f"{row.get('version', '-'):<14} {state}")
        elif "gil_after_all" in row:
            on = row["gil_after_all"]
            _row("GIL", "on after all imports" if on else "off after all imports")
            if on == interpreter.free_threaded:
                verdict = verdict or f"the GIL is {'on' if on else 'off'}"
        else:
            _row("fault", row["broken"])
            verdict = verdict or str(row["broken"])
    _title("core plan")
    status, text = _ask([str(python), "-c", _PLAN], env, "reading the CPU topology")
    print(_indent(text if status == 0 else f"not to be had: {text.splitlines()[-1:]}"))
    return verdict or ("" if status == 0 else "the core plan is not to be had")


def _packages(python: Path, env: Mapping[str, str], names: Sequence[str]) -> list[dict[str, Any]]:
    argv = [str(python), "-c", _PACKAGES, json.dumps(list(names))]
    _, text = _ask(argv, env, "importing every package")
    rows: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            rows.append({"broken": line})
    return rows


def _ask(argv: Sequence[str], env: Mapping[str, str], what: str) -> tuple[int, str]:
    """Runs a child; (status, its output, or its errors if it failed)."""
    with Step(what) as step:
        child = subprocess.Popen(
            list(argv), env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while True:
            try:
                out, err = child.communicate(timeout=0.2)
                return child.returncode, out if child.returncode == 0 else out + err
            except subprocess.TimeoutExpired:
                step.tick()
                if step.elapsed_s() > CHILD_LIMIT_S:
                    child.kill()


def _cache() -> None:
    _title("cache")
    root = cache_root()
    _row("folder", str(root))
    model = root / "models" / f"{MODEL_PACKAGE}-{MODEL_VERSION}"
    _row("model", str(model) if model.exists() else "not fetched yet (the first serve does)")
    for kind in ("python", "venv", "pypi"):
        folder = root / kind
        links = (
            sorted(p.name for p in folder.iterdir() if p.is_symlink()) if folder.is_dir() else []
        )
        _row(kind, ", ".join(links) or "nothing yet")


def _title(text: str) -> None:
    print(f"\n{text}")


def _row(name: str, text: str) -> None:
    print(f"  {name:<20} {text}")


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines())
