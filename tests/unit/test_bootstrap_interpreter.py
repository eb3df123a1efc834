"""The search order, each place tried in turn with fake programs. Owner: pytest."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap_fakes import INSTALLING_MAKEFILE, fake_python, fake_source, script
from tpc_server.bootstrap import build, cache, interpreter, tree, uv
from tpc_server.bootstrap.interpreter import Tried, find, look
from tpc_server.bootstrap.progress import BootstrapError


class Machine:
    """A machine with nothing on it but what a test puts there."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp = tmp_path
        self.bin = tmp_path / "bin"
        self.bin.mkdir()
        self.patch = monkeypatch
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
        # The last candidate is whatever runs the bootstrap.
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bootstrap-python"))
        for name in ("TPC_PYTHON", "TPC_PGO"):
            monkeypatch.delenv(name, raising=False)
        self.built = 0
        self.source_fault = "no compiler"
        monkeypatch.setattr(build, "from_source", self.from_source)
        # The fake interpreters are shell scripts without the tools of a shell on PATH.
        for tool in ("cat", "sh"):
            script(self.bin / tool, f'exec /bin/{tool} "$@"')

    def from_source(self, pgo: bool) -> str:
        self.built += 1
        if self.source_fault:
            raise BootstrapError(self.source_fault)
        name = "cpython-3.13.5t" + ("-pgo" if pgo else "")
        return str(self.cached(name, optimized=pgo))

    def cached(self, name: str, **changes: Any) -> Path:
        home = self.tmp / "cache" / "tpc_server" / "python" / f"{name}.00000000"
        version = name.split("-")[1].rstrip("t").rpartition(".")[0]
        path = fake_python(home / "bin" / f"python{version}", **changes)
        link = home.with_name(name)
        if not link.exists():
            link.symlink_to(home.name)
        return path

    def find(self, **options: bool) -> tuple[str, list[Tried]]:
        tried: list[Tried] = []
        found = find(tried, **options)
        return found.executable, tried


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_each_place_counts_only_when_those_before_it_have_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the last place to the first: each new one wins over all that were there before."""
    gil = fake_python(machine.bin / "python3.12", free_threaded=False, version=[3, 12, 1])
    assert machine.find()[0] == str(gil)

    machine.source_fault = ""
    made, tried = machine.find(retry=True)
    assert made.endswith("cpython-3.13.5t.00000000/bin/python3.13")
    assert [t.where for t in tried] == ["python3.13t on PATH", "cache", "uv", "build from source"]
    for place in (machine.tmp / "cache/tpc_server/python").iterdir():
        place.rename(place.with_name(f"away-{place.name}"))

    of_uv = fake_python(machine.tmp / "uv" / "python3.13", optimized=True)
    script(machine.bin / "uv", f'[ "$2" = find ] && echo {of_uv}')
    assert machine.find()[0] == str(of_uv)
    assert [t.where for t in machine.find()[1]] == ["python3.13t on PATH", "cache"]
    assert machine.built == 2

    built = machine.cached("cpython-3.13.5t")
    assert machine.find()[0] == str(built)

    on_path = fake_python(machine.bin / "python3.13t")
    assert machine.find()[0] == str(on_path)

    named = fake_python(machine.tmp / "mine" / "python3.14t", version=[3, 14, 2])
    monkeypatch.setenv("TPC_PYTHON", str(named))
    assert machine.find()[0] == str(named)
    assert machine.built == 2


def test_tpc_python_is_never_silently_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_python(machine.bin / "python3.13t")
    monkeypatch.setenv("TPC_PYTHON", "no-such-python")
    with pytest.raises(BootstrapError, match="TPC_PYTHON=no-such-python: no such program"):
        machine.find()
    old = fake_python(machine.tmp / "old", version=[3, 9, 1], free_threaded=False)
    monkeypatch.setenv("TPC_PYTHON", str(old))
    with pytest.raises(BootstrapError, match=r"older than 3\.11"):
        machine.find()
    gil = fake_python(machine.tmp / "gil", version=[3, 12, 1], free_threaded=False)
    monkeypatch.setenv("TPC_PYTHON", str(gil))
    assert machine.find()[0] == str(gil)
    assert capsys.readouterr().err == (
        "tpc: TPC_PYTHON is CPython 3.12.1 with a GIL: cores will share one GIL\n"
    )


def test_a_python313t_that_will_not_do_is_passed_over_with_its_reason(machine: Machine) -> None:
    fake_python(machine.bin / "python3.13t", broken=["ssl"])
    built = machine.cached("cpython-3.13.5t")
    found, tried = machine.find()
    assert found == str(built)
    assert "cannot import ssl" in tried[0].verdict
    fake_python(machine.bin / "python3.13t", free_threaded=False)
    assert "not what its name says" in machine.find()[1][0].verdict


def test_a_failed_try_is_not_repeated_by_every_run(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gil = fake_python(machine.bin / "python3.13", free_threaded=False)
    for _ in range(3):
        assert machine.find()[0] == str(gil)
    assert machine.built == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and len(set(said)) == 1
    assert "going on with CPython 3.13.5 with a GIL" in said[0]
    assert "not tried again yet" in str(machine.find()[1])
    assert "no compiler" in str(machine.find()[1])

    machine.find(retry=True)
    assert machine.built == 2
    later = time.time() + interpreter.RETRY_AFTER_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    machine.find()
    assert machine.built == 3
    # A wish for PGO is another wish.
    monkeypatch.setenv("TPC_PGO", "1")
    machine.find()
    assert machine.built == 4


def test_looking_only_builds_remembers_and_says_nothing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    gil = fake_python(machine.bin / "python3.13", free_threaded=False)
    tried: list[Tried] = []
    assert look(tried) is None  # the next run would build one
    assert [t.where for t in tried] == ["python3.13t on PATH", "cache"]
    assert machine.built == 0
    assert not (machine.tmp / "cache/tpc_server/failed.json").exists()
    machine.find()
    capsys.readouterr()
    found = look(tried)  # that has failed: the next run goes on with a GIL
    assert found is not None and found.executable == str(gil)
    assert machine.built == 1
    assert capsys.readouterr().err == ""


def test_without_any_interpreter_the_message_tells_every_place(machine: Machine) -> None:
    with pytest.raises(BootstrapError) as caught:
        machine.find()
    text = str(caught.value)
    for part in ("python3.13t on PATH: not there", "uv is not there", "no compiler", "python3.11"):
        assert part in text


def test_pgo_takes_only_optimized_interpreters(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = machine.cached("cpython-3.13.5t")
    assert machine.find()[0] == str(plain)
    fake_python(machine.bin / "python3.13t")
    monkeypatch.setenv("TPC_PGO", "1")
    machine.source_fault = ""
    found, tried = machine.find()
    assert found.endswith("cpython-3.13.5t-pgo.00000000/bin/python3.13")
    assert "not profile-guided" in tried[0].verdict
    assert machine.find()[0] == found
    assert machine.built == 1
    fake_python(machine.bin / "python3.13t", optimized=True)
    assert machine.find()[0] == str(machine.bin / "python3.13t")
    monkeypatch.setenv("TPC_PGO", "0")
    (machine.bin / "python3.13t").unlink()
    assert machine.find()[0] == str(plain)


def test_cached_builds_newest_first_and_a_broken_one_left_out(machine: Machine) -> None:
    machine.cached("cpython-3.13.5t")
    newer = machine.cached("cpython-3.13.15t")
    (machine.tmp / "cache/tpc_server/python/cpython-3.13.99t").symlink_to("gone")
    assert build.cached(False)[0] == str(newer.resolve())
    assert machine.find()[0] == str(newer)


def test_uv_that_refuses_costs_one_line(machine: Machine) -> None:
    script(machine.bin / "uv", '[ "$2" = install ] && echo "  cause: dns error" >&2; exit 2')
    fake_python(machine.bin / "python3.13", free_threaded=False)
    tried = machine.find()[1]
    assert Tried("uv", "uv python install 3.13t: dns error") in tried


def test_uv_gets_short_time_outs_and_installs_nothing_elsewhere(machine: Machine) -> None:
    note = machine.tmp / "env"
    script(
        machine.bin / "uv",
        f'if [ "$2" = install ]; then echo "$UV_HTTP_TIMEOUT $UV_HTTP_RETRIES '
        f'$UV_PYTHON_INSTALL_BIN" > {note}; fi; exit 2',
    )
    assert "none" in str(uv.install()) or "ended" in str(uv.install())
    assert note.read_text().split() == ["8", "0", "0"]


def test_from_source_builds_once_and_leaves_no_build_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CFLAGS", "-march=elsewhere")
    tarball = fake_source(tmp_path, INSTALLING_MAKEFILE)
    monkeypatch.setattr(build, "get_tarball", lambda: tarball)
    monkeypatch.setattr(build, "prepare_c", lambda: None)
    monkeypatch.setattr(build, "require_rust", lambda why: None)
    made = build.from_source(False)
    assert made == build.from_source(False) == build.cached(False)[0]
    assert capsys.readouterr().err.count("building a free-threaded CPython") == 1
    python = tmp_path / "cache/tpc_server/python"
    assert sorted(p.name for p in python.iterdir())[0] == "cpython-3.13.5t"
    assert len(list(python.iterdir())) == 2
    assert not (tmp_path / "cache/tpc_server/build").exists()
    log = (tmp_path / "cache/tpc_server/logs/make.log").read_text()
    assert "elsewhere" not in log


def test_a_build_with_pgo_is_trained_with_our_own_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = tmp_path / "a path with $signs and blanks" / "task.py"
    task.parent.mkdir()
    task.write_text("the task")
    trained = INSTALLING_MAKEFILE.replace("all:\n", "all:\n\tcat $(PROFILE_TASK)\n", 1)
    tarball = fake_source(tmp_path, trained)
    monkeypatch.setattr(build, "PGO_TASK", task)
    monkeypatch.setattr(build, "get_tarball", lambda: tarball)
    monkeypatch.setattr(build, "prepare_c", lambda: None)
    monkeypatch.setattr(build, "require_rust", lambda why: None)
    kept: list[str] = []
    real = build._build

    def noting(tree, options, pgo):  # type: ignore[no-untyped-def]
        real(tree, options, pgo)
        kept.append((tree.source / "arguments").read_text())

    monkeypatch.setattr(build, "_build", noting)
    made = Path(build.from_source(True))
    assert "cpython-3.13.5t-pgo" in str(made) and made.exists()
    assert build.cached(True) == [str(made.parent.resolve() / made.name)]
    assert "--enable-optimizations" in kept[0] and "--disable-gil" in kept[0]
    assert "the task" in (tmp_path / "cache/tpc_server/logs/make.log").read_text()
    assert "with PGO, twice, once" in capsys.readouterr().err
    # Better than nothing where a plain one is asked for, but that one is built all the same.
    plain = build.from_source(False)
    assert "-pgo" not in plain and build.cached(False)[0] == plain
    assert build.cached(True) == [str(made)]
    # Not part of the wheel.
    task.unlink()
    with pytest.raises(BootstrapError, match="needs a checkout"):
        build.from_source(True)


def test_the_profile_task_runs_on_a_bare_interpreter() -> None:
    argv = [sys.executable, "-I", "-S", str(build.PGO_TASK), "20"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.startswith("1600 rows in")


def test_a_build_that_fails_leaves_nothing_and_shows_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tarball = fake_source(tmp_path, "all:\n\techo error: no such register\n\tfalse\n")
    monkeypatch.setattr(build, "get_tarball", lambda: tarball)
    monkeypatch.setattr(build, "prepare_c", lambda: None)
    monkeypatch.setattr(build, "require_rust", lambda why: None)
    with pytest.raises(BootstrapError, match="no such register"):
        build.from_source(False)
    assert list((tmp_path / "cache/tpc_server/python").iterdir()) == []
    assert not (tmp_path / "cache/tpc_server/build").exists()


def kept_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, makefile: str
) -> tuple[Path, Path, list[str]]:
    """(tarball, tree, options) as an interrupted run leaves them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("prepare_c", "require_rust"):
        monkeypatch.setattr(build, name, lambda *a: None)
    tarball = fake_source(tmp_path, makefile)
    monkeypatch.setattr(build, "get_tarball", lambda: tarball)
    options = list(build.CONFIGURE)
    with tree.build_tree("cpython-3.13.5t", tarball, options, cache.sub("python")) as made:
        assert not made.resumed
        (made.source / "prefix").write_text(f"{made.home}\n")
        made.note_configured()
        return tarball, made.folder, options


def test_a_damaged_tree_of_an_interrupted_run_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder, _ = kept_tree(tmp_path, monkeypatch, INSTALLING_MAKEFILE)
    (folder / "work/Python-3.13.5/Makefile").write_text("all:\n\techo truncated\n\tfalse\n")
    made = build.from_source(False)
    assert Path(made).exists()
    assert "an interrupted run left is of no use (compiling CPython" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("change", ["tarball", "options", "cache", "state"])
def test_a_tree_of_something_else_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    tarball, folder, options = kept_tree(tmp_path, monkeypatch, INSTALLING_MAKEFILE)
    python = cache.sub("python")
    with tree.build_tree(folder.name, tarball, options, python) as same:
        assert same.resumed and same.configured
    if change == "tarball":
        tarball = fake_source(tmp_path, "all:\n\techo this one is longer\n" * 99)
    elif change == "options":
        options = [*options, "--with-lto"]
    elif change == "cache":
        python = tmp_path
    else:
        (folder / "state.json").write_text("{}")
    with tree.build_tree(folder.name, tarball, options, python) as other:
        assert not other.resumed and not other.configured


def test_nobody_works_in_a_tree_where_a_killed_runs_compiler_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tarball, folder, options = kept_tree(tmp_path, monkeypatch, INSTALLING_MAKEFILE)
    python = cache.sub("python")
    lock = os.open(folder / "lock", os.O_RDWR)
    orphan = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(lock)
    monkeypatch.setattr(tree, "ORPHANS_LIMIT_S", 0.1)
    with tree.build_tree(folder.name, tarball, options, python) as other:
        assert not other.resumed  # another folder of the same name
    orphan.kill()
    orphan.wait()
    with tree.build_tree(folder.name, tarball, options, python) as other:
        assert other.resumed


def test_missing_rust_is_said_before_minutes_of_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "get_tarball", lambda: pytest.fail("asked for the source"))
    with pytest.raises(BootstrapError, match=r"rustc is not there \(Rust >= 1.83"):
        build.from_source(False)
    script(tmp_path / "cargo", "echo cargo 1.60.0")
    script(tmp_path / "rustc", "echo rustc 1.82.9 xyz")
    with pytest.raises(BootstrapError, match=r"Rust 1\.82 is too old"):
        build.from_source(False)


def test_a_version_managers_shim_is_no_answer(machine: Machine) -> None:
    """What it stands for is asked instead, selected or not; it never gets to complain."""
    shims = machine.tmp / "pyenv" / "shims"
    for command in ("python3.13t", "python3.13", "python3.12"):
        script(shims / command, f"echo 'pyenv: {command}: command not found' >&2; exit 127")
    machine.patch.setenv("PATH", f"{shims}:{machine.bin}")
    versions = machine.tmp / "pyenv" / "versions"
    for name in ("3.12.9", "3.12.10"):
        gil = fake_python(
            versions / name / "bin" / "python3.12", free_threaded=False, version=[3, 12, 1]
        )
    found, tried = machine.find()
    assert found == str(gil) and "3.12.10" in found
    assert Tried("python3.13t on PATH", "not there") in tried
    assert Tried("python3.13", "not there") in tried
    assert "command not found" not in str(tried)
    free = fake_python(versions / "3.13.5t" / "bin" / "python3.13t")
    assert machine.find()[0] == str(free)


def test_the_python_that_runs_the_bootstrap_is_the_last_way(machine: Machine) -> None:
    last = fake_python(machine.tmp / "bootstrap-python", free_threaded=False, version=[3, 11, 4])
    assert machine.find()[0] == str(last)


def test_a_failure_note_that_is_broken_is_no_harm(machine: Machine) -> None:
    fake_python(machine.bin / "python3.13", free_threaded=False)
    folder = machine.tmp / "cache" / "tpc_server"
    folder.mkdir(parents=True, exist_ok=True)
    for text in ("", "[]", json.dumps({"pgo": False, "at": "soon", "why": "x"})):
        (folder / "failed.json").write_text(text)
        machine.find()
    assert machine.built == 3
