"""Our wheel, really installed into a copy of SGLang's environment. Owner: pytest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gil_env import clean_env
from tests.http_client import call
from tests.sglang.prepare import Prepared
from tests.sglang.serving import SGLang
from tests.sglang.test_life import HELLO, IDS
from tests.wheel_source import copy_source
from tpc_server.bootstrap.cache import sub
from tpc_server.version import __version__

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(600)]
ASK = """
import json, sys
from importlib.metadata import distributions, entry_points
(plugin,) = entry_points(group="sglang.srt.plugins", name="tpc")
packages = {d.metadata["Name"]: d.version for d in distributions()}
print(json.dumps([sys.prefix, plugin.value, plugin.load().__module__, packages]))
"""


def run(python, *argv):
    """What a program of that Python says."""
    env = {k: v for k, v in clean_env().items() if not k.startswith(("SGLANG_", "TPC_"))}
    done = subprocess.run(
        [str(python), "-I", *argv], env=env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def link(source, target):
    """The same file where that can be, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def packages(python):
    rows = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    return {row["name"].lower(): row["version"] for row in rows}


def files(folder):
    """Every file of its packages: what it is and when it was written."""
    return {
        str(path): (found.st_ino, found.st_size, found.st_mtime_ns)
        for base, _, names in os.walk(folder)
        if not base.endswith("__pycache__")
        for path in (Path(base, name) for name in names)
        for found in (path.lstat(),)
    }


@pytest.fixture(scope="module")
def copied(prepared):
    """Python of a copy of SGLang's environment: the files are the same ones, none is written to."""
    folder = Path(run(prepared.python, "-c", "import sys; print(sys.prefix)").strip())
    copy = sub("sglang") / f"copy-{os.getpid()}"
    shutil.copytree(folder, copy, symlinks=True, copy_function=link)
    yield copy / prepared.python.relative_to(folder)
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def installed(copied, tmp_path_factory):
    """What was there before, what is there after `pip install` of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_source(folder / "source")
    run(copied, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("tpc_server-*.whl")
    place = copied.parents[1] / "lib"
    before = packages(copied), files(place)
    run(copied, "-m", "pip", "install", "--quiet", "--no-input", str(wheel))
    return before, (packages(copied), files(place))


def test_it_changes_no_package(copied, installed):
    (had, held), (has, holds) = installed
    new = {"tpc-server": __version__}
    assert {name: has.get(name) for name in had} == had
    assert {name: has[name] for name in has if name not in had} == {
        **new,
        "msgpack": has["msgpack"],
    }
    changed = [path for path, what in held.items() if holds.get(path) != what]
    assert changed == []
    added = {Path(path).relative_to(copied.parents[1]).parts[3] for path in holds.keys() - held}
    assert {name.partition("-")[0] for name in added} == {"tpc_server", "msgpack"}


def test_sglang_finds_the_plugin_there(copied, installed):
    prefix, value, module, found = json.loads(run(copied, "-c", ASK))
    assert (value, module) == ("tpc_server.integrations.sglang:activate", value.partition(":")[0])
    assert Path(prefix) == copied.parents[1] and found["sglang"] == "0.5.23"
    program = copied.with_name("tpc-server")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert __version__ in said.stdout


@pytest.mark.full
def test_sglang_is_served_from_there(prepared, copied, installed, tmp_path):
    """Nothing of the checkout is on its path."""
    beside = tmp_path / "beside"
    shutil.copytree(prepared.beside / "sgl_kernel", beside / "sgl_kernel")
    there = Prepared(copied, prepared.model, beside)
    with SGLang(there, tmp_path / "log", "tpc", env={"PYTHONPATH": str(beside)}) as sglang:
        sglang.wait()
        assert call(sglang.address, "GET", "/server_info").json()["frontend"] == "tpc"
        answer = call(sglang.address, "POST", "/generate", HELLO)
        assert (answer.status, answer.json()["output_ids"]) == (200, IDS)
        (frontend,) = sglang.frontends()
        assert str(copied.parents[1]) in " ".join(frontend.cmdline())
