"""The wheel that `pip install .` makes: its files and its metadata. Owner: pytest."""

from __future__ import annotations

import email
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.wheel_source import copy_source

ROOT = Path(__file__).resolve().parents[2]
# The build for which the newest packages no longer come (setup.py).
OLD = sys.version_info[:2] == (3, 13) and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, from a copy of the committed and the new files: a build writes into its source."""
    source = copy_source(tmp_path_factory.mktemp("source"))
    argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "-w",
        str(source / "out"),
        str(source),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next((source / "out").glob("tpc_server-*.whl")))


@pytest.fixture(scope="module")
def metadata(built: zipfile.ZipFile) -> Message:
    name = next(n for n in built.namelist() if n.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(built.read(name))


pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]


def test_every_module_and_data_file_is_in_and_nothing_else(built: zipfile.ZipFile) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tpc_server").rglob("*")
        if path.is_file() and not {"lockfiles", "__pycache__"} & set(path.parts)
    }
    names = {n for n in built.namelist() if ".dist-info/" not in n}
    locks = {
        f"tpc_server/bootstrap/lockfiles/{path.name}"
        for path in (ROOT / "requirements").glob("*.txt")
    }
    assert names == files | locks


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Name"] == "tpc-server"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Summary"] and metadata["Description-Content-Type"] == "text/markdown"
    assert {"granian", "test", "dev"} <= set(metadata.get_all("Provides-Extra") or ())


def test_no_requirement_is_a_pin(metadata: Message) -> None:
    """Installing beside other software must move none of its packages."""
    wanted = metadata.get_all("Requires-Dist") or []
    assert len(wanted) >= 12
    for line in wanted:
        assert "==" not in line.split(";")[0] and "~=" not in line.split(";")[0]
    bounded = [line for line in wanted if "<" in line.split(";")[0]]
    assert any(line.startswith("tokenizers") for line in bounded) == OLD, bounded
    assert OLD or not bounded, bounded


def test_a_wheel_with_upper_bounds_is_offered_to_no_other_build(built: zipfile.ZipFile) -> None:
    name = Path(built.filename or "").name
    assert ("-cp313-cp313t-" in name) == OLD
    assert name.endswith("-py3-none-any.whl") != OLD


def test_the_console_script(built: zipfile.ZipFile) -> None:
    name = next(n for n in built.namelist() if n.endswith("entry_points.txt"))
    assert "tpc-server = tpc_server.__main__:main" in built.read(name).decode()


def test_sglang_finds_the_plugin(built: zipfile.ZipFile) -> None:
    name = next(n for n in built.namelist() if n.endswith("entry_points.txt"))
    group = built.read(name).decode().partition("[sglang.srt.plugins]\n")[2]
    assert group.splitlines()[0] == "tpc = tpc_server.integrations.sglang:activate"
