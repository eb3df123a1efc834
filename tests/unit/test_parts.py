"""A run in several processes counts, fails and ends like one. Owner: pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import parts

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("conftest.py", "parts.py", "__init__.py"):
        (tmp_path / "tests" / "unit").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / "e2e").mkdir(exist_ok=True)
        shutil.copy(TESTS / name, tmp_path / "tests")
    (tmp_path / "tests" / "allowed_skips.txt").write_text("tests/unit/test_u.py::* | fine\n")
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path)
    return tmp_path


def run(root: Path, unit: str, e2e: str, *words: str) -> tuple[int, str]:
    (root / "tests" / "unit" / "test_u.py").write_text(unit)
    (root / "tests" / "e2e" / "test_e.py").write_text(e2e)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    env = {name: value for name, value in os.environ.items() if name != "TPC_TEST_REPORTS_FD"}
    done = subprocess.run(
        [*argv, *words],
        cwd=root,
        env={**env, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
             "TPC_TEST_PART_LEAST": "1"},
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


NOTING = """
import os
def test_a():
    with open("pids", "a") as file: print(os.getpid(), file=file)
"""


#: Passes once the others of these run, too.
MEETING = """
import os, pathlib, threading, pytest
@pytest.fixture(scope="session")
def here(): return os.getpid()
def test_m(here):
    pathlib.Path(f"here-{os.getpid()}").touch()
    pause = threading.Event()
    while len(list(pathlib.Path().glob("here-*"))) < 3: pause.wait(0.01)
def test_n(here): assert pathlib.Path(f"here-{os.getpid()}").exists()
"""


def test_one_run_in_three_processes(root: Path) -> None:
    """Each takes modules as a whole, and none twice."""
    (root / "tests" / "unit" / "test_third.py").write_text(MEETING)
    status, out = run(root, MEETING, MEETING, "-q")
    assert status == 0 and "6 passed" in out.splitlines()[-1], out
    assert "100%" in out
    assert len(list(root.glob("here-*"))) == 3


def test_one_process_where_that_is_wanted(root: Path) -> None:
    status, out = run(root, NOTING, NOTING, "-q", "--one-process")
    assert status == 0 and "2 passed" in out.splitlines()[-1]
    assert len(set((root / "pids").read_text().split())) == 1


def test_what_fails_there_fails_here(root: Path) -> None:
    unit = "import pytest\ndef test_b(): assert 1 == 2\ndef test_s(): pytest.skip('why not')\n"
    unit += "def test_f(): pytest.skip('fine')\n"
    status, out = run(root, unit, NOTING)
    assert status == 1
    assert "FAILED tests/unit/test_u.py::test_b - assert 1 == 2" in out
    assert "has no such line" in out  # the list of allowed skips holds there too
    assert "2 failed, 1 passed, 1 skipped" in out.splitlines()[-1]


#: Runs in the processes beside the first one only, on import or as a test.
BESIDE = "import os\nbeside = os.getppid() == int(os.environ['FIRST'])\n"


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("def test_o(): beside and os._exit(9)", 9),
        ("def test_o(): beside and os.kill(os.getpid(), 11)", -11),
        ("import atexit\nif beside: atexit.register(os.kill, os.getpid(), 11)", -11),
        ("assert not beside", 2),
    ],
    ids=["exits", "crashes", "crashes at its end", "cannot import"],
)
def test_a_process_that_ends_as_it_should_not_fails_the_run(
    root: Path, what: str, status: int
) -> None:
    """And hides no failure of a test."""
    (root / "conftest.py").write_text(
        "import os\nos.environ.setdefault('FIRST', str(os.getpid()))\n"
    )
    meeting = MEETING if "def" in what else NOTING
    module = BESIDE + meeting + "def test_fails(): assert 1 == 2\n" + what + "\n"
    for name in ("third", "fourth"):
        (root / "tests" / "unit" / f"test_{name}.py").write_text(module)
    found, out = run(root, module, module)
    assert found == 1 and f"a process beside this run ended with {status}" in out, out
    assert "did not go as it should" in out
    assert "test_fails - assert 1 == 2" in out and " failed" in out.splitlines()[-1]


def test_nobody_goes_on_without_the_first(root: Path) -> None:
    """Another one would start servers for all that is left."""
    (root / "conftest.py").write_text(
        "import os\nos.environ.setdefault('FIRST', str(os.getpid()))\n"
    )
    ends = BESIDE + MEETING + "def test_o(): beside or os._exit(9)\n"
    waits = (
        "def test_z():\n    pause = threading.Event()\n"
        "    while os.getppid() == int(os.environ['FIRST']): pause.wait(0.01)\n"
        "def test_zz(): open('after', 'w').close()\n"
    )
    for name in ("third", "fourth"):
        (root / "tests" / "unit" / f"test_{name}.py").write_text(ends + waits)
    status, _ = run(root, ends + waits, ends + waits)
    assert status == 9
    assert not (root / "after").exists()


def test_arguments_hold_on_both_sides(root: Path) -> None:
    two = "def test_x(): pass\ndef test_y(): pass\n"
    status, out = run(root, two, two, "-k", "x", "-v")
    assert status == 0 and "2 passed, 2 deselected" in out.splitlines()[-1]
    assert "tests/unit/test_u.py::test_x PASSED" in out
    assert "tests/unit/test_u.py::test_y" not in out
    status, out = run(root, two, two, "tests/unit")
    assert status == 0 and "2 passed" in out.splitlines()[-1]


def test_what_is_dear_to_start_stays_together_and_comes_first() -> None:
    names = ("tests/e2e/test_e.py::a", "tests/sglang/test_x.py::b", "tests/unit/test_u.py::c",
             "tests/sglang/test_y.py::d", "tests/e2e/test_e.py::e",
             f"tests/{parts.LONGEST[0]}::f")  # fmt: skip
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    found = [[item.nodeid[-1] for item in unit] for unit in parts.units(items).values()]
    assert found == [["b", "d"], ["f"], ["a", "e"], ["c"]]


def test_the_longest_exist() -> None:
    assert [name for name in parts.LONGEST if not (TESTS / name).is_file()] == []
