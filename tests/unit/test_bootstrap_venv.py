"""Environments and the lock files that they are made of. Owner: pytest."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap_fakes import fake_python, script, wheel
from tpc_server.bootstrap import locks, venv
from tpc_server.bootstrap.clients import CLIENTS, SGLANG, client_interpreter, sglang_interpreter
from tpc_server.bootstrap.locks import builds, lock_file, pins
from tpc_server.bootstrap.probe import Interpreter, probe
from tpc_server.bootstrap.progress import BootstrapError, StepFailed

ROOT = Path(__file__).resolve().parents[2]
HASHED = ("cp313t", "cp314t", "gil", "test", "lint", "pip", SGLANG, *CLIENTS)
FREE = Interpreter("/opt/x/bin/python3.13", "CPython", (3, 13, 5), True, False, ())


def test_the_builds() -> None:
    assert builds() == ("cp313t", "cp314t", "gil")
    with pytest.raises(FileNotFoundError, match="cp399t"):
        lock_file("cp399t")


@pytest.mark.parametrize("name", HASHED)
def test_every_pin_has_its_hashes(name: str) -> None:
    text = lock_file(name).read_text()
    entries = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins(name)) >= 1
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", entry), (
            entry
        )


@pytest.mark.parametrize("name", [*CLIENTS, SGLANG])
def test_a_clients_environment_builds_nothing(name: str) -> None:
    assert "--only-binary :all:" in lock_file(name).read_text().splitlines()


def test_the_clients_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("TPC_GIL_PYTHON", raising=False)
    for version in ([3, 13, 1], [3, 12, 1], [3, 11, 1]):
        name = f"python3.{version[1]}"
        fake_python(tmp_path / name, free_threaded=False, version=version)
    found = client_interpreter()
    assert found is not None and found.version == (3, 12, 1)
    assert sglang_interpreter() == found
    named = fake_python(tmp_path / "mine", free_threaded=False, version=[3, 14, 0])
    monkeypatch.setenv("TPC_GIL_PYTHON", str(named))
    found = client_interpreter()
    assert found is not None and found.version == (3, 14, 0)
    fake_python(tmp_path / "mine", version=[3, 13, 5])  # without a GIL: passed over
    found = client_interpreter()
    assert found is not None and found.version == (3, 12, 1)


@pytest.fixture
def setup_py() -> dict[str, Any]:
    """The tables of setup.py, read: it imports setuptools, which no environment of ours has."""
    tables = {}
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            tables[node.targets[0].id] = ast.literal_eval(node.value)
    return tables


@pytest.mark.parametrize("build", ["cp313t", "cp314t", "gil"])
def test_a_build_locks_every_dependency_of_the_package(
    build: str, setup_py: dict[str, Any]
) -> None:
    wanted = {**setup_py["RANGES"], **setup_py["EXTRAS"]["granian"]}
    assert {name.replace("_", "-") for name in wanted} <= set(pins(build))
    # Part of Python from 3.14 on, and an extra elsewhere.
    assert set(pins(build)) - {"backports-zstd"} == set(pins("cp313t")) - {"backports-zstd"}


def test_the_tests_have_what_their_extra_names(setup_py: dict[str, Any]) -> None:
    assert set(setup_py["EXTRAS"]["test"]) <= set(pins("test"))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_the_locked_versions_lie_in_the_ranges(setup_py: dict[str, Any]) -> None:
    locked = {**pins("test"), **pins("lint"), **pins("cp313t")}
    ranges = {**setup_py["RANGES"], **setup_py["EXTRAS"]["granian"], **setup_py["EXTRAS"]["test"]}
    for name, low in ranges.items():
        assert numbers(locked[name.replace("_", "-")]) >= numbers(low), name
    for name, high in setup_py["BOUNDS_313T"].items():
        assert numbers(locked[name]) < numbers(high), name


def test_pre_commit_uses_the_locked_ruff() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"ruff==([\d.]+)", text)) == {pins("lint")["ruff"]}


def test_the_key_names_interpreter_and_lock_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = venv._key(FREE, "cp313t")
    assert key.startswith("cp313t-3.13.5t-")
    others = {
        venv._key(FREE._replace(version=(3, 13, 6)), "cp313t"),
        venv._key(FREE._replace(executable="/opt/y/bin/python3.13"), "cp313t"),
        venv._key(FREE, "cp314t"),
    }
    for name in ("cp313t", "build", "pip"):
        (tmp_path / f"{name}.txt").write_text(lock_file(name).read_text())
    monkeypatch.setattr(locks, "_PLACES", (tmp_path,))
    assert venv._key(FREE, "cp313t") == key
    for name in ("cp313t", "build", "pip"):
        with (tmp_path / f"{name}.txt").open("a") as file:
            file.write("# changed\n")
        others.add(venv._key(FREE, "cp313t"))
    assert len(others) == 6 and key not in others


def test_without_rust_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BootstrapError, match=r"tokenizers package has .* Install Rust"):
        venv.environment(FREE)
    script(tmp_path / "cargo", "")
    script(tmp_path / "rustc", "echo rustc 1.83.0 '(90b35a623 2024-11-26)'")
    from tpc_server.bootstrap.toolchain import rust_fault

    assert rust_fault() == ""


@pytest.fixture
def tiny_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Lock files of one small package each, in a folder that pip is told to look in."""
    folder = tmp_path / "locks"
    folder.mkdir()
    for name in ("gil", "cp313t", "cp314t", "test", "pip"):
        package = f"tiny-{name}"
        made = wheel(folder, package, "1.0", {f"tiny_{name}.py": b"value = 1\n"})
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        (folder / f"{name}.txt").write_text(f"{package}==1.0 \\\n    --hash=sha256:{digest}\n")
    (folder / "build.txt").write_text("")
    monkeypatch.setattr(locks, "_PLACES", (folder,))
    monkeypatch.setattr(venv, "require_rust", lambda why: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    # What a user may have set must not bend it.
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    return folder


@pytest.mark.timeout(180)
def test_an_environment_for_real(tiny_locks: Path, tmp_path: Path) -> None:
    me = probe(sys.executable)
    assert isinstance(me, Interpreter)
    assert venv.ready(me) is None
    python = venv.environment(me)
    assert venv.ready(me) == python == venv.environment(me)
    code = f"import tiny_{me.build}, sys; print(sys.prefix)"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(python.parent.parent)
    # Scripts name the interpreter by a path that holds after the environment is published.
    shebang = (python.parent / "pip").read_text().splitlines()[0]
    assert Path(shebang[2:]).exists()
    venv.add(python, "test")
    venv.add(python, "test")
    subprocess.run([python, "-I", "-c", "import tiny_test"], check=True)
    assert not (tmp_path / "elsewhere").exists()

    # A file other than the locked one is refused.
    wheel(tiny_locks, "tiny-lint", "1.0", {"tiny_lint.py": b"value = 1\n"})
    (tiny_locks / "lint.txt").write_text(f"tiny-lint==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(BootstrapError, match="differs from the one in the lock file"):
        venv.add(python, "lint")
    assert not list(python.parent.parent.glob("added-lint*"))


@pytest.mark.parametrize("cache_off", [False, True])
def test_what_was_compiled_outlasts_an_interruption(
    tiny_locks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_off: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    python = tmp_path / "venv" / "cp313t-3.13.5t-abc.12345678" / "bin" / "python"
    ran: list[tuple[list[str], str]] = []
    script(python, f"exit {int(cache_off)}")
    kept = tmp_path / "cache/tpc_server/build/packages-cp313t-3.13.5t-abc"
    outcome: list[BaseException] = [KeyboardInterrupt(), StepFailed("x", "network", "", None)]

    def fake_run(argv, what, *, detail, env, log):  # type: ignore[no-untyped-def]
        ran.append((argv, env["CARGO_TARGET_DIR"]))
        assert kept.exists()
        ran.append((detail("Compiling serde v1.0"), ""))
        if outcome:
            raise outcome.pop(0)

    monkeypatch.delenv("CARGO_TARGET_DIR", raising=False)
    monkeypatch.setattr(venv, "run", fake_run)
    with pytest.raises(KeyboardInterrupt):
        venv._install(python, "cp313t")
    assert kept.exists()
    assert ran[0][1] == str(kept / "cargo")
    assert (str(kept / "pip") in ran[0][0]) == cache_off
    assert ran[1][0] == "compiled 1 of 121 crates, serde v1.0"
    # A failure of the run that went on from there is the last of it.
    with pytest.raises(BootstrapError, match="network"):
        venv._install(python, "cp313t")
    assert ran[3][0] == "compiled 1 crates, serde v1.0"  # of how many more is not known
    assert not kept.exists()
    venv._install(python, "cp313t")
    assert not kept.exists()
    said = capsys.readouterr().err
    assert said.count("going on with the packages") == 1 and "about " in said
