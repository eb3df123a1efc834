"""`./tpc doctor` on machines with nothing, with half of it, with all of it. Owner: pytest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.bootstrap_fakes import fake_python, script
from tpc_server.affinity import topology
from tpc_server.affinity.plan import PlanSettings, plan
from tpc_server.bootstrap import cli, doctor
from tpc_server.bootstrap.probe import Interpreter, probe
from tpc_server.engines import registry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a shell, and the path of its programs."""
    tools = tmp_path / "bin"
    for name in ("cat", "sh"):
        script(tools / name, f'exec /bin/{name} "$@"')
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    for name in ("TPC_PYTHON", "TPC_PGO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bootstrap-python"))
    monkeypatch.setattr(doctor, "missing_packages", lambda: ([], []))
    return tools


def told(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.run_command(["doctor"])
    out, err = capsys.readouterr()
    assert err == ""
    return status, out


def test_a_fresh_machine_is_told_what_setup_would_do(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(doctor, "rust_fault", lambda: "")
    fake_python(machine / "python3.12", free_threaded=False, version=[3, 12, 1])
    kept = tmp_path / "cache/tpc_server/build/cpython-3.13.5t/state.json"
    kept.parent.mkdir(parents=True)
    kept.touch()
    status, out = told(capsys)
    assert status == 1
    assert "would have one built from source: about" in out
    assert "going on where an interrupted build was (cpython-3.13.5t)" in out
    assert "with a GIL" not in out  # which is not what would happen
    assert out.endswith("makes one (exit status 1)\n")
    assert "not ready: no interpreter yet; `./tpc setup`" in out.splitlines()[-1]


@pytest.mark.parametrize("fault", ["rust", "compiler"])
def test_where_none_can_be_built_it_says_why_and_what_then(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    if fault == "compiler":
        monkeypatch.setattr(doctor, "rust_fault", lambda: "")
        monkeypatch.setattr(doctor, "missing_packages", lambda: (["build-essential"], []))
    fake_python(machine / "python3.12", free_threaded=False, version=[3, 12, 1])
    status, out = told(capsys)
    why = "rustc is not there" if fault == "rust" else "build-essential would have to be installed"
    assert status == 1 and f"cannot build here: {why}" in out
    assert "so it would go on with CPython 3.12.1 with a GIL" in out
    assert "none can be built" in out.splitlines()[-1]


def test_without_packages_and_with_a_bad_name(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    fake_python(machine / "python3.13t")
    status, out = told(capsys)
    assert status == 1 and "used: CPython 3.13.5 free-threaded" in out
    assert "not made yet; ./tpc setup makes it: about" in out
    assert "no packages yet" in out.splitlines()[-1]
    monkeypatch.setenv("TPC_PYTHON", "no-such-python")
    status, out = told(capsys)
    assert status == 1 and "TPC_PYTHON=no-such-python: no such program" in out.splitlines()[-1]


def test_all_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    me = probe(sys.executable)
    assert isinstance(me, Interpreter)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TPC_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(doctor, "ready", lambda found: Path(sys.executable))
    monkeypatch.setattr(doctor, "pins", lambda build: {"pytest": "0", "numpy": "0"})
    assert doctor.report(dict(os.environ)) == 0
    out = capsys.readouterr().out
    assert "core plan" in out and out.endswith("ready to serve (exit status 0)\n")
    if me.free_threaded:
        assert "GIL stays off" in out
    monkeypatch.setattr(doctor, "pins", lambda build: {"no-such-package": "0"})
    assert doctor.report(dict(os.environ)) == 1
    assert "not ready: no-such-package: PackageNotFoundError" in capsys.readouterr().out


def test_in_an_environment_of_its_own_it_reports_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `python -m tpc_server doctor`: not what `./tpc` would start, which may be another."""
    me = probe(sys.executable)
    assert isinstance(me, Interpreter)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TPC_PYTHON", "no-such-python")
    pins = {"numpy": "0", "backports-zstd": "0", "granian": "0", "no-such-package": "0"}
    monkeypatch.setattr(doctor, "pins", lambda build: pins)
    monkeypatch.setattr(doctor, "_OPTIONAL", ("no-such-package",))
    status = cli.run_command(["doctor"])
    out = capsys.readouterr().out
    assert status == (0 if me.free_threaded else 1)
    if me.free_threaded:
        assert f"this one             used: {me} at {sys.executable}" in out
        assert "no-such-package      not there (not needed)" in out
        # The plan is the one that serving without flags takes.
        facts = topology.read()
        settings = PlanSettings(engine_cpus=registry.engine_cpus("llama", facts))
        assert plan(facts, settings).describe().splitlines()[-1].strip() in out
    monkeypatch.setattr(doctor, "_NEEDED", ("no_such_module",))
    assert cli.run_command(["doctor"]) == 1
    assert "TPC_PYTHON=no-such-python: no such program" in capsys.readouterr().out
