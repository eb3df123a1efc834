"""A whole run in several processes, which share its modules out among them. Owner: pytest.

Most tests keep one CPU busy, most others wait for sockets. Further pytests with the same arguments
run beside the first one: each takes the next module that nobody has taken yet, those that last
longest first, and the others write their reports into files; the first one shows them as its own,
so that counts, failures and the last line are those of the whole.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

#: In a process beside: the descriptor that its reports go to, and where modules are taken.
REPORTS_FD: Final = "TPC_TEST_REPORTS_FD"
TAKEN: Final = "TPC_TEST_TAKEN"
BESIDE: Final = 2
#: Folders whose tests share what is dear to start: one process runs all of them.
WHOLE: Final = ("sglang",)
#: What lasts longest comes first, so that all end at about the same time.
LONGEST: Final = (
    "stress/test_server_stress.py", "e2e/test_modes.py", "e2e/test_sidecar.py",
    "e2e/test_program.py", "stress/test_sidecar_stress.py", "e2e/test_completions.py",
    "e2e/test_http.py", "e2e/test_chat.py", "e2e/test_known_bugs_life.py",
    "e2e/test_anthropic.py", "e2e/test_sidecar_ends.py", "e2e/test_control_routes.py",
    "fuzz/test_answers.py", "e2e/test_small_routes.py", "e2e/test_access.py",
    "e2e/test_structure.py",
)  # fmt: skip
LEAST = int(os.environ.get("TPC_TEST_PART_LEAST", "200"))  # fewer are not worth more processes


def register(config: pytest.Config) -> None:
    """Takes part in this run, on whichever side."""
    fd = os.environ.get(REPORTS_FD)
    option = config.option
    if fd is not None:
        config.pluginmanager.register(Beside(config, int(fd), Path(os.environ.pop(TAKEN))))
    elif not (
        option.one_process
        or option.collectonly
        or option.maxfail
        or option.usepdb
        or option.capture == "no"
        or len(os.sched_getaffinity(0)) < 2
    ):
        config.pluginmanager.register(First(config))


def units(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Tests by what is taken as one, in the order of taking."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        module = item.nodeid.partition("::")[0]
        whole = [part for part in Path(module).parts if part in WHOLE]
        found.setdefault(whole[0] if whole else module, []).append(item)
    order = {name: place for place, name in enumerate((*WHOLE, *LONGEST))}

    def place(unit: tuple[str, list[pytest.Item]]) -> int:
        return order.get("/".join(Path(unit[0]).parts[-2:]), len(order))

    return dict(sorted(found.items(), key=place))


def taken(items: list[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """Tests of one unit after the other, as far as no other process has taken them."""
    for name, unit in units(items).items():
        try:
            os.close(os.open(folder / quote(name, ""), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        yield from unit


def run(session: pytest.Session, folder: Path, goes_on: Callable[[], bool]) -> None:
    """As pytest runs all tests of a session, those that this process takes."""
    tests = taken(session.items, folder)
    item = next(tests, None)
    while item is not None:
        if not goes_on():
            raise session.Interrupted("the first process of this run is gone")
        following = next(tests, None)  # known before the end of this one: fixtures stay for it
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following


class Beside:
    """A process beside: what it takes, its reports into the file."""

    def __init__(self, config: pytest.Config, fd: int, folder: Path) -> None:
        os.set_inheritable(fd, False)
        del os.environ[REPORTS_FD]  # not for what the tests start
        self._config = config
        self._file = os.fdopen(fd, "w", encoding="utf-8")
        self._folder = folder
        self._first = os.getppid()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:  # the first one could import all of it
            raise session.Interrupted("a module cannot be imported here")
        run(session, self._folder, lambda: os.getppid() == self._first)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")
        self._file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._file.write(json.dumps({"ended": int(exitstatus)}) + "\n")
        self._file.close()


class Other:
    """A process beside, as the first one sees it."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the run)
        # A file and not a pipe: a long test here must not hold up the tests there.
        self._reports = tempfile.TemporaryFile()  # noqa: SIM115
        self._read = 0
        self._ended: int | None = None
        fd = self._reports.fileno()
        argv = [sys.executable, "-m", "pytest", *map(str, config.invocation_params.args)]
        self._child = subprocess.Popen(
            argv, cwd=Path(config.invocation_params.dir), stdin=subprocess.DEVNULL,
            stdout=self._output, stderr=subprocess.STDOUT, pass_fds=(fd,),
            env={**os.environ, REPORTS_FD: str(fd), TAKEN: str(folder)},
        )  # fmt: skip

    def running(self) -> bool:
        return self._child.poll() is None

    def show(self) -> None:
        """Shows the reports that have come."""
        fd, last = self._reports.fileno(), self._read
        data = os.pread(fd, os.fstat(fd).st_size - last, last)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._show(json.loads(line))

    def _show(self, data: dict[str, Any]) -> None:
        if "ended" in data:
            self._ended = data["ended"]
            return
        hook = self._config.hook
        report = hook.pytest_report_from_serializable(config=self._config, data=data)
        if isinstance(report.longrepr, list):  # a skip's (path, line, reason)
            report.longrepr = tuple(report.longrepr)
        if report.when == "setup":
            hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        hook.pytest_runtest_logreport(report=report)

    def complaint(self) -> str:
        """Once it has ended: what is wrong when it did not end as a run of tests does."""
        status = self._child.wait()
        # 0 and 1: all of its tests are told of. Anything else, or an end after that, is a crash.
        if status == self._ended and status in (0, 1):
            return ""
        self._output.seek(0)
        tail = self._output.read().decode("utf-8", "replace")[-8000:]
        return f"a process beside this run ended with {status}:\n{tail}"

    def stop(self) -> None:
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._output.close()
        self._reports.close()


class First:
    """The process that shows everything."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._others: list[Other] = []
        self._told: Counter[str] = Counter()
        self._showing = False
        self._complaints: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        """None: too little to share, or a module cannot be imported; pytest goes on by itself."""
        if session.testsfailed or len(session.items) < LEAST or len(units(session.items)) < 2:
            return None
        folder = Path(tempfile.mkdtemp(prefix="tpc-tests-"))
        try:
            for _ in range(BESIDE):
                self._others.append(Other(self._config, folder))
            run(session, folder, lambda: True)
            while any([other.running() for other in self._others]):
                self._show()
                time.sleep(0.05)
            self._show()
            self._complain(session)
            return True
        finally:
            for other in self._others:
                other.stop()
            self._others = []
            shutil.rmtree(folder)

    def _complain(self, session: pytest.Session) -> None:
        """What makes a run fail whose tests did not. The failures of tests are still shown."""
        found = [other.complaint() for other in self._others]
        wanted = Counter(item.nodeid for item in session.items)
        for what, tests in (("not run", wanted - self._told), ("run twice", self._told - wanted)):
            if tests:
                found.append(f"{len(tests)} tests were {what}: {sorted(tests)[:9]}")
        self._complaints = [text for text in found if text]
        if self._complaints:
            session.shouldfail = self._complaints[0].partition("\n")[0]
            raise session.Failed(session.shouldfail)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for text in self._complaints:
            terminalreporter.section("a run that did not go as it should", red=True)
            terminalreporter.write_line(text)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._told[report.nodeid] += 1

    def pytest_runtest_logfinish(self) -> None:
        self._show()

    def _show(self) -> None:
        if not self._showing:  # a report that is shown here ends a test, too
            self._showing = True
            for other in self._others:
                other.show()
            self._showing = False
