"""./tpc and its commands, from the shell on. Owner: pytest."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap_fakes import INSTALLING_MAKEFILE, fake_python, fake_source, script
from tpc_server.bootstrap import cli, fetch, legs, pyenv
from tpc_server.bootstrap.clients import CLIENTS
from tpc_server.bootstrap.probe import Interpreter
from tpc_server.bootstrap.progress import BootstrapError

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "tpc_server" / "bootstrap"
SOURCES = sorted(BOOTSTRAP.glob("*.py"))
FREE = Interpreter("/opt/x/bin/python3.13", "CPython", (3, 13, 5), True, False, ())


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("TPC_PYTHON", "TPC_PGO"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def tpc(*words: str, program: Path = ROOT / "tpc", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *words],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **env},
        check=False,
    )


# What the bootstrap shows of the rest before there is anything to run the rest with.
SHOWN = [
    ROOT / "tpc_server" / name
    for name in (
        "cli.py",
        "version.py",
        "environment.py",
        "foreign_flags.py",
        "parsers/formats.py",
        "link/control.py",
        "link/listening.py",
        "listen.py",
        "tell.py",
    )
] + [ROOT / "perf" / "harness" / "bench_flags.py"]


@pytest.mark.parametrize("path", [*SOURCES, *SHOWN], ids=lambda path: path.name)
def test_the_bootstrap_is_python_39_and_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            if path in SHOWN:
                start = path.parents[node.level - 1]
                found = start.joinpath(*(node.module or "").split(".")).with_suffix(".py")
                assert found in SHOWN, f"{path.name} imports {node.module}"
            else:
                assert node.level == 1, f"{path.name} imports from outside the bootstrap"
            continue
        else:
            continue
        for name in names:
            ours = path.name == "__main__.py" and name == "tpc_server.bootstrap"
            assert ours or name.split(".")[0] in sys.stdlib_module_names, name


def test_help_and_unknown_commands() -> None:
    done = tpc("help")
    assert done.returncode == 0 and done.stderr == ""
    for name in ("serve", "test", "bench", "doctor", "setup", "python"):
        assert f"./tpc {name}" in done.stdout
    assert tpc().stdout == done.stdout
    wrong = tpc("sevre")
    assert wrong.returncode == 2 and wrong.stdout == ""
    assert "no command 'sevre'" in wrong.stderr
    for words in (["setup", "--nosuch"], ["doctor", "now"]):
        wrong = tpc(*words)
        assert wrong.returncode == 2 and wrong.stdout == ""
        assert f"{words[0]}: unknown argument {words[1]}" in wrong.stderr
    none = tpc("status", "--port", "1")
    assert none.returncode == 1 and "no server answers for port 1" in none.stderr


def oldest_python() -> str:
    """The oldest CPython from 3.9 on that is here: what a stranger's machine may have."""
    for minor in range(9, 13):
        command = f"python3.{minor}"
        found = pyenv.which(command) or next(iter(pyenv.installed(command)), None)
        if found:
            return found
    return sys.executable


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["serve", "--help"], 0, "--drain-timeout S"),
        (["serve", "-h"], 0, "(default: 30000)"),
        (["serve", "--version"], 0, "tpc_server 0."),
        (["--version"], 0, "tpc_server 0."),
        (["--help"], 0, "./tpc serve"),
        (["--help"], 0, "./tpc status"),
        (["setup", "--help"], 0, "setup: make everything ready"),
        (["doctor", "-h"], 0, "doctor: print what was found"),
        (["reload", "--help"], 0, "Replace a running server's frontend"),
        (["serve", "--help"], 0, "--attach SOCKET"),
        (["test", "-h"], 0, "--pytest-only"),
        (["doctor", "--help"], 0, "./tpc doctor"),
        (["bench", "--help"], 0, "usage: ./tpc bench [FLAGS]\n\nMeasure what a frontend costs"),
        (["serve", "--prot=80"], 2, "./tpc serve: error: unknown flag --prot (did you mean"),
        (["serve", "--port", "x"], 2, "argument --port: invalid port value: 'x'"),
        (["serve", "model.gguf"], 2, "unknown argument model.gguf"),
        (["serve", "--kv-tokens", "0"], 2, "--kv-tokens must be at least 1"),
    ],
)
def test_questions_and_bad_flags_build_nothing(
    home: Path, words: list[str], status: int, told: str
) -> None:
    env = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(home / "cache"), "HOME": str(home)}
    argv = [oldest_python(), "-I", "-S", str(BOOTSTRAP), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, env=env, check=False)
    assert done.returncode == status, done.stderr
    said, silent = (done.stderr, done.stdout) if status else (done.stdout, done.stderr)
    assert told in said and silent == ""
    assert not (home / "cache").exists()
    if status:  # what is wrong first, and help in one line
        assert len(said.splitlines()) == 2 and told in said.splitlines()[0]


def test_a_workload_that_is_none_builds_nothing(home: Path) -> None:
    for words in (["--workloads", "stream2"], ["--peers", "nginx"], ["--nosuch"]):
        done = tpc("bench", *words)
        assert done.returncode == 2 and words[-1] in done.stderr and done.stdout == ""
    assert not (home / "cache" / "tpc_server" / "venv").exists()


def test_tpc_runs_through_links_and_remembers_its_python(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to(ROOT / "tpc")
    (tmp_path / "link").symlink_to("a/link")
    assert tpc("help", program=tmp_path / "link").returncode == 0
    note = tmp_path / "cache" / "tpc_server" / "bootstrap-python"
    python = note.read_text().strip()
    assert os.access(python, os.X_OK)
    # It is what the next run starts with, whatever PATH says.
    note.write_text(f"{script(tmp_path / 'other', 'echo other $1 $2')}\n")
    assert tpc("help").stdout == "other -I -S\n"
    # And when it is gone, the search begins anew.
    note.write_text(f"{tmp_path}/gone\n")
    assert tpc("help").returncode == 0
    assert note.read_text().strip() == python


def test_tpc_passes_over_pythons_that_are_too_old(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    script(tools / "python3", "exit 0")  # as one < 3.9 answers: with nothing
    script(tools / "python3.12", f'exec {sys.executable} "$@"')
    path = f"{tools}:/usr/bin:/bin" if not Path("/usr/bin/python3.12").exists() else str(tools)
    assert "./tpc serve" in tpc("help", PATH=path).stdout


def test_tpc_without_any_python(tmp_path: Path) -> None:
    for tool in ("readlink", "dirname", "sh", "mkdir", "mv"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "")
    done = tpc("help", PATH=str(tmp_path / "bin"))
    assert done.returncode == 1
    assert done.stderr == "tpc: needs some Python >= 3.9 to start with, and found none on PATH\n"


def test_run_by_path_the_package_itself_is_not_imported(tmp_path: Path) -> None:
    package = tmp_path / "tpc_server"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    shutil.copytree(BOOTSTRAP, package / "bootstrap", symlinks=True)
    argv = [sys.executable, "-I", "-S", str(package / "bootstrap"), "help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_installed_package_offers_the_same(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tpc_server.bootstrap", "help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout == cli.HELP


def test_commands_become_the_program_with_the_package_importable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(cli, "_ready", lambda: (FREE, Path("/env/bin/python")))
    monkeypatch.setattr(os, "execve", lambda *words: became.append(words))
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setenv("PYTHONHOME", "/bad")
    cli.serve(["--port", "1"])
    cli.python(["-c", "pass"])
    cli.bench(["--quick"])
    python = "/env/bin/python"
    assert [words[1] for words in became] == [
        [python, "-m", "tpc_server", "--port", "1"],
        [python, "-c", "pass"],
        [python, str(ROOT / "perf" / "stream.py"), "--quick"],
    ]
    env = became[0][2]
    assert env["PYTHONPATH"] == f"{ROOT}{os.pathsep}/theirs"
    assert "PYTHONHOME" not in env


def test_an_installed_package_is_linked_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside it lie packages of another Python, which must not be found."""
    site = tmp_path / "site-packages"
    for name in ("tpc_server", "numpy"):
        (site / name).mkdir(parents=True)
    monkeypatch.setattr(cli, "PACKAGE", site / "tpc_server")
    folder = cli.package_home()
    assert [p.name for p in folder.iterdir()] == ["tpc_server"]
    assert (folder / "tpc_server").resolve() == site / "tpc_server"
    assert cli.package_home() == folder
    assert cli.run_command(["test"]) == 1
    assert "needs a checkout" in capsys.readouterr().err


def fake_legs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statuses: dict[str, int]
) -> tuple[Path, Path]:
    """A checkout whose legs are scripts; each notes its name, pytest also what failed before."""
    note = tmp_path / "note"
    (tmp_path / "root" / "tests").mkdir(parents=True)
    (tmp_path / "root" / "tests" / "conftest.py").touch()
    python = script(
        tmp_path / "python",
        f'echo "pytest $3 [$TPC_FAILED_LEGS]" >> {note}; echo 3 passed; '
        f"exit {statuses.get('pytest', 0)}",
    )
    monkeypatch.setattr(legs, "environment", lambda *a: python)
    monkeypatch.setattr(legs, "add", lambda *a: None)
    monkeypatch.setattr(
        legs, "prepare_clients", lambda: ["environment x"] * statuses.get("clients", 0)
    )
    commands = {
        name: [str(script(tmp_path / name, f"echo {name} >> {note}; exit {statuses.get(name, 0)}"))]
        for name in ("ruff", "mypy")
    }
    monkeypatch.setattr(legs, "checks", lambda *a: commands)
    return tmp_path / "root", note


@pytest.mark.parametrize(
    ("statuses", "status", "failed"),
    [
        ({}, 0, ""),
        ({"ruff": 1}, 1, "ruff"),
        ({"ruff": 1, "mypy": 2}, 1, "ruff, mypy"),
        ({"pytest": 5}, 5, ""),
        ({"mypy": 2, "pytest": 1}, 1, "mypy"),
        ({"ruff": 1, "clients": 1}, 1, "ruff, environment x"),
    ],
)
def test_a_failed_leg_fails_the_whole_and_all_legs_run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    statuses: dict[str, int],
    status: int,
    failed: str,
) -> None:
    root, note = fake_legs(monkeypatch, tmp_path, statuses)
    assert legs.run_legs(root, FREE, dict(os.environ), ["-q"]) == status
    assert note.read_text().splitlines() == ["ruff", "mypy", f"pytest -q [{failed}]"]
    out, err = capfd.readouterr()
    assert out == "3 passed\n"
    assert err.splitlines()[-1].startswith("tpc: leg pytest on CPython 3.13.5")


@pytest.mark.parametrize(
    ("argv", "runs"),
    [
        ([], True),
        (["-q", "--full", "--stress-seconds=9"], True),
        (["--offline"], False),
        (["tests/unit"], False),
        (["-k", "ring"], False),
        (["-kring"], False),
        (["--collect-only"], False),
    ],
)
def test_clients_are_made_for_whole_runs_only(argv: list[str], runs: bool) -> None:
    assert legs._runs_all(argv) is runs


def test_a_client_that_cannot_be_made_is_named_and_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gil = FREE._replace(free_threaded=False)
    made: list[str] = []

    def make(name: str, interpreter: Interpreter) -> Path:
        made.append(name)
        if name == CLIENTS[0]:
            raise BootstrapError("no such wheel")
        return Path("/env")

    monkeypatch.setattr(legs, "client_interpreter", lambda: gil)
    monkeypatch.setattr(legs, "client_environment", make)
    assert legs.prepare_clients() == [f"environment {CLIENTS[0]}"]
    assert made == list(CLIENTS)
    assert "no such wheel" in capsys.readouterr().err
    monkeypatch.setattr(legs, "client_interpreter", lambda: None)
    assert legs.prepare_clients() == []


def test_sglang_is_made_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    monkeypatch.delenv("TPC_SGLANG_PYTHON", raising=False)
    monkeypatch.setattr(legs, "sglang_interpreter", lambda: None)
    monkeypatch.setattr(legs, "client_environment", lambda name, _: made.append(name))
    assert legs.prepare_sglang() == ["environment sglang-cpu"] and not made
    assert "python3.12" in capsys.readouterr().err
    monkeypatch.setattr(legs, "sglang_interpreter", lambda: FREE)
    assert legs.prepare_sglang() == [] and made == ["sglang-cpu"]
    monkeypatch.setenv("TPC_SGLANG_PYTHON", "/x/python")
    assert legs.prepare_sglang() == [] and made == ["sglang-cpu"]


def test_pytest_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, note = fake_legs(monkeypatch, tmp_path, {"ruff": 1})
    assert legs.run_legs(root, FREE, dict(os.environ), ["--pytest-only", "-x"]) == 0
    assert note.read_text() == "pytest -x []\n"


BUILDER = """
import sys
from pathlib import Path
from tpc_server.bootstrap import build, cli, interpreter, progress
progress.PLAIN_AFTER_S = 0.0
progress.PLAIN_EVERY_S = 0.0
build.get_tarball = lambda: Path(sys.argv[1])
build.prepare_c = lambda: None
build.require_rust = lambda why: None
interpreter.uv.install = lambda: "no uv"
cli.environment = lambda interpreter: Path("/bin/true")
raise SystemExit(cli.run_command(["python"]))
"""


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits only for whoever reaps orphans here."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("sig", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_an_interrupted_build_leaves_nothing_running_and_goes_on_from_there(
    tmp_path: Path, sig: signal.Signals, status: int, hangups: None
) -> None:
    pid_file, log, go = (tmp_path / name for name in ("pid", "log", "go"))
    makefile = (
        f"all: b.o\na.o:\n\t@echo cc -c a.c; echo a >> {log}; touch -d 1/1/2020 a.o\n"
        f"b.o: a.o\n\t@echo cc -c b.c; echo b >> {log}; touch b.o; test -e {go} || "
        f"{{ echo $$$$ > {pid_file}; echo cc -c c.c; exec sleep 99; }}\n"
    )
    install = INSTALLING_MAKEFILE[INSTALLING_MAKEFILE.index("install:") :]
    tarball = fake_source(tmp_path, makefile + install)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "sh", "sleep", "touch", "mkdir", "chmod", "cat"):
        (tools / name).symlink_to(shutil.which(name) or "")

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(tarball)],
            env={
                **os.environ, "PATH": str(tools), "PYTHONPATH": str(ROOT),
                "PYENV_ROOT": str(tmp_path),
            },
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    child = start()
    assert child.stderr is not None
    seen = ""
    while "files, c.c" not in seen:
        line = child.stderr.readline()
        assert line, seen
        seen += line
    assert "3 of 285 files" in seen and "unpacking" in seen
    child.send_signal(sig)
    rest = child.communicate(timeout=30)[1]
    assert child.returncode == status, seen + rest
    assert "stopped after" in rest
    assert ended(int(pid_file.read_text()))
    cache = tmp_path / "cache" / "tpc_server"
    assert list((cache / "python").iterdir()) == []
    assert not (cache / "failed.json").exists()
    configured = (cache / "logs" / "configure.log").stat().st_mtime_ns

    go.touch()
    child = start()
    said = child.communicate(timeout=40)[1]
    assert child.returncode == 0, said
    assert "going on where an interrupted run was: 1 files are compiled" in said
    assert "unpacking" not in said
    assert (cache / "logs" / "configure.log").stat().st_mtime_ns == configured
    # What was written last may be half a file: that alone is made again.
    assert log.read_text().split() == ["a", "b", "b"]
    assert not (cache / "build").exists()
    assert (cache / "python" / "cpython-3.13.5t" / "bin" / "python3.13").exists()


def test_the_fakes_answer_like_interpreters(tmp_path: Path) -> None:
    from tpc_server.bootstrap.probe import probe

    assert probe(str(fake_python(tmp_path / "python"))) == FREE._replace(
        executable=str(tmp_path / "python")
    )


@pytest.mark.parametrize("beside", [True, False])
def test_setup_beside_sglang_says_how_to_start_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], beside: bool
) -> None:
    """And fetches no model: SGLang has its own."""
    fetched: list[int] = []
    monkeypatch.setattr(cli, "_ready", lambda retry: ("CPython", Path("/p/python")))
    monkeypatch.setattr(cli, "root_of", lambda package: None)
    monkeypatch.setattr(cli, "package_home", lambda: Path("/home"))
    monkeypatch.setattr(cli, "beside_sglang", lambda: beside)
    monkeypatch.setattr(fetch, "model_path", lambda: fetched.append(1))
    assert cli.setup([]) == 0
    told = capsys.readouterr().err
    assert ("SGLANG_FRONTEND=tpc sglang serve" in told) == beside == (not fetched)
    assert ("-m tpc_server" in told) != beside


def test_whether_sglang_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(name: str) -> str:
        assert name == "sglang"
        return "0.5.23"

    assert not cli.beside_sglang()
    monkeypatch.setattr(metadata, "version", version)
    assert cli.beside_sglang()
