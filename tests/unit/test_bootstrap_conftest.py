"""The rules of a run (tests/conftest.py), each seen to fail a run that breaks it. Owner: pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import read_allowed_skips, skip_is_allowed

TESTS = Path(__file__).resolve().parents[1]
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

SKIPPING = """
import pytest
def test_passes(): pass
@pytest.mark.skip(reason="needs a GPU")
def test_gpu(): pass
@pytest.mark.skipif(True, reason="too old")
def test_old(): pass
def test_late(): pytest.skip("found out late")
@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False
"""


class Run:
    """One run of pytest over one file, under a copy of the rules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(TESTS / "conftest.py", folder)
        shutil.copy(TESTS.parent / "pyproject.toml", folder)
        self.allow()

    def allow(self, *lines: str) -> None:
        (self.folder / "allowed_skips.txt").write_text("# why\n\n" + "\n".join(lines) + "\n")

    def run(self, code: str, *words: str, **env: str) -> tuple[int, str]:
        (self.folder / "test_it.py").write_text(code)
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        done = subprocess.run(
            [*argv, *words, "test_it.py"],
            cwd=self.folder,
            # The other plugins take two thirds of the time that such a run needs to start.
            env={**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **env},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_committed_list_names_tests_that_are_there() -> None:
    for test, reason in read_allowed_skips(TESTS / "allowed_skips.txt"):
        path, _, name = test.partition("::")
        assert reason and f"def {name.rstrip('*')}" in (TESTS.parent / path).read_text(), test


def test_a_line_without_a_reason_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("tests/unit/test_x.py::test_y\n")
    with pytest.raises(pytest.UsageError, match="no reason"):
        read_allowed_skips(tmp_path / "list")


def test_both_the_test_and_the_reason_must_match() -> None:
    allowed = [("tests/a.py::test_x*", "needs *"), ("tests/b.py::*", "too old")]
    assert skip_is_allowed(allowed, "tests/a.py::test_x[1]", "needs a GPU")
    assert skip_is_allowed(allowed, "tests/b.py::test_y", "too old")
    assert not skip_is_allowed(allowed, "tests/a.py::test_x[1]", "too old")
    assert not skip_is_allowed(allowed, "tests/c.py::test_x", "too old")


def test_skips_that_are_not_listed_fail_the_run(run: Run) -> None:
    run.allow("test_it.py::test_gpu | needs a GPU", "test_it.py::test_old | another reason")
    status, text = run.run(SKIPPING)
    assert status == 1
    # One was found out in the test's setup, which pytest counts as an error, one in the test.
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in text.splitlines()[-1]
    assert "test_it.py::test_old was skipped (too old)" in text
    assert "test_it.py::test_late was skipped (found out late)" in text

    run.allow("test_it.py::* | needs a GPU", "*::test_old | too*", "*::test_late | found out late")
    status, text = run.run(SKIPPING)
    assert status == 0
    assert "1 passed, 3 skipped, 1 xfailed" in text.splitlines()[-1]


def test_a_module_that_skips_itself_answers_to_the_list(run: Run) -> None:
    code = "import pytest\npytest.importorskip('no_such_module_here')\ndef test_x(): pass\n"
    status, text = run.run(code)
    assert status != 0 and "1 error" in text.splitlines()[-1]
    run.allow("test_it.py | could not import 'no_such_module_here'*")
    status, text = run.run(code + "\n")
    assert "1 skipped" in text.splitlines()[-1], text


def test_heavy_and_network_tests_are_deselected_not_skipped(run: Run) -> None:
    code = (
        "import pytest\ndef test_plain(): pass\n"
        "@pytest.mark.soak\ndef test_soak(): pass\n"
        "@pytest.mark.full\ndef test_full(): pass\n"
        "@pytest.mark.network\ndef test_network(): pass\n"
    )
    assert "2 passed, 2 deselected" in run.run(code)[1].splitlines()[-1]
    assert "3 passed, 1 deselected" in run.run(code, "--full", "--offline")[1].splitlines()[-1]


def test_the_gil_warning_is_an_error(run: Run) -> None:
    code = (
        "import warnings\ndef test_x():\n    warnings.warn('The global interpreter lock (GIL) has "
        "been enabled to load module x', RuntimeWarning)\n"
    )
    status, text = run.run(code)
    assert status == 1 and "1 failed" in text.splitlines()[-1]


def test_a_gil_that_came_back_on_fails_the_run(run: Run) -> None:
    """The switch is faked: no package of ours throws it, and there is no way back from it."""
    code = "import sys\ndef test_x():\n    sys._is_gil_enabled = lambda: True\n"
    status, text = run.run(code)
    if FREE_THREADED:
        assert status == 1 and "1 passed, 1 error" in text.splitlines()[-1]
        assert "switched the GIL back on" in text
    else:
        assert status == 0


def test_a_test_that_hangs_is_ended(run: Run) -> None:
    code = "import threading\ndef test_x():\n    threading.Event().wait()\ndef test_y(): pass\n"
    status, text = run.run(code, "-o", "timeout=1")
    assert status == 1 and "1 failed, 1 passed" in text.splitlines()[-1]
    assert "Timeout" in text


def test_a_run_that_hangs_is_ended_with_all_stacks(run: Run) -> None:
    code = "import threading\ndef test_hang_here():\n    threading.Event().wait()\n"
    status, text = run.run(code, "-o", "timeout=0", "-s", TPC_TEST_LIMIT_S="2")
    assert status == 70
    assert "still going after 2 s" in text and "test_hang_here" in text


def test_failed_legs_stand_before_the_summary_line(run: Run) -> None:
    status, text = run.run("def test_x(): pass\n", TPC_FAILED_LEGS="mypy")
    lines = text.splitlines()
    assert status == 0
    end = [line.strip("= ") for line in lines if line.strip()][-3:]
    assert end[:2] == ["legs that failed before pytest", "mypy"], lines
    assert end[2].startswith("1 passed")
