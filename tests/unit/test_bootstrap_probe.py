"""What an interpreter says of itself, and what is remembered of it. Owner: pytest."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap_fakes import fake_python, script
from tpc_server.bootstrap import probe as module
from tpc_server.bootstrap.probe import Interpreter, probe

BUILDS = ("cp313t", "gil")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_running_interpreter_is_what_it_is() -> None:
    found = probe(sys.executable)
    assert isinstance(found, Interpreter)
    assert found.version == sys.version_info[:3]
    assert found.free_threaded == bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert found.broken == ()
    assert found.build.endswith("t") == found.free_threaded


def test_an_answer_is_remembered_until_the_program_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    real = module._ask

    def ask(path: str) -> dict[str, Any] | str:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(module, "_ask", ask)
    monkeypatch.setattr(module, "_is_script", lambda path: False)
    python = fake_python(tmp_path / "python")
    first = probe(str(python))
    assert probe(str(python)) == first
    assert len(asked) == 1
    fake_python(python, version=[3, 13, 77], optimized=True)
    second = probe(str(python))
    assert isinstance(second, Interpreter) and second.version == (3, 13, 77)
    assert len(asked) == 2


def test_a_script_is_asked_each_time(tmp_path: Path) -> None:
    shim = fake_python(tmp_path / "shim")
    assert isinstance(probe(str(shim)), Interpreter)
    stat = shim.stat()
    # Same size and time: as a version manager's shim that now starts another interpreter.
    shim.write_text(shim.read_text().replace("3, 13, 5", "3, 12, 5"))
    os.utime(shim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = probe(str(shim))
    assert isinstance(found, Interpreter) and found.version == (3, 12, 5)


def test_a_broken_memo_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "cache" / "tpc_server").mkdir(parents=True)
    for text in ("", "[1]", "{"):
        (tmp_path / "cache" / "tpc_server" / "probes.json").write_text(text)
        assert isinstance(probe(sys.executable), Interpreter)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo hello", "does not answer like a Python"),
        ("echo 'pyenv: python3.13t: command not found' >&2; exit 127", "command not found"),
        ("exit 3", "status 3"),
        ("echo '[]'", "status 0"),
    ],
)
def test_programs_that_are_no_interpreters(tmp_path: Path, text: str, why: str) -> None:
    answer = probe(str(script(tmp_path / "python", text)))
    assert isinstance(answer, str) and why in answer, answer


def test_a_program_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_LIMIT_S", 0.2)
    answer = probe(str(script(tmp_path / "python", "exec sleep 99")))
    assert isinstance(answer, str) and "no answer within" in answer


def test_nothing_there(tmp_path: Path) -> None:
    answer = probe(str(tmp_path / "python"))
    assert isinstance(answer, str) and "No such file" in answer


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"free_threaded": False, "version": [3, 11, 0]}, ""),
        ({"free_threaded": False, "version": [3, 10, 9]}, "older than 3.11"),
        ({"version": [3, 15, 0]}, "no lock file for cp315t"),
        ({"implementation": "PyPy", "free_threaded": False}, "only CPython"),
        ({"broken": ["ssl", "ctypes"]}, "cannot import ssl, ctypes"),
    ],
)
def test_faults(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    found = probe(str(fake_python(tmp_path / "python", **changes)))
    assert isinstance(found, Interpreter)
    fault = found.fault(BUILDS)
    assert (why in fault) if why else fault == ""
