"""A whole run in two processes: the tests without a server beside those with one. Owner: pytest.

Most tests keep one CPU busy, most others wait for sockets. A second pytest with the same arguments
runs what is outside `e2e/` and `stress/`, and some of that, and writes its reports into a file; the
first one shows them as its own, so that counts, failures and the last line are those of the whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

#: In the second process: the descriptor that its reports go to.
REPORTS_FD = "TPC_TEST_REPORTS_FD"
OWN = ("e2e", "stress")  # of the first process
#: Of those, what the second one takes, so that both end at about the same time.
BESIDE = (
    "test_modes.py", "test_parity.py", "test_sidecar.py", "test_sidecar_ends.py", "test_attach.py",
)  # fmt: skip
LEAST = int(os.environ.get("TPC_TEST_PART_LEAST", "200"))  # fewer are not worth a second process


def register(config: pytest.Config) -> None:
    """Takes part in this run, on whichever side."""
    fd = os.environ.get(REPORTS_FD)
    option = config.option
    if fd is not None:
        config.pluginmanager.register(Second(config, int(fd)))
    elif not (
        option.one_process
        or option.collectonly
        or option.maxfail
        or option.usepdb
        or option.capture == "no"
        or len(os.sched_getaffinity(0)) < 2
    ):
        config.pluginmanager.register(First(config))


def is_own(item: pytest.Item) -> bool:
    """Whether the first process runs it."""
    return any(part in OWN for part in item.path.parts) and item.path.name not in BESIDE


class Second:
    """The process beside: its part of the items, its reports into the file."""

    def __init__(self, config: pytest.Config, fd: int) -> None:
        os.set_inheritable(fd, False)
        del os.environ[REPORTS_FD]  # not for what the tests start
        self._config = config
        self._file = os.fdopen(fd, "w", encoding="utf-8")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not is_own(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")
        self._file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._file.write(json.dumps({"ended": int(exitstatus)}) + "\n")
        self._file.close()


class First:
    """The process that shows everything."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._others = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the run)
        # A file and not a pipe: a long test here must not hold up the tests there.
        self._reports = tempfile.TemporaryFile()  # noqa: SIM115
        self._read = 0
        self._showing = False
        self._ended: int | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        own = [item for item in items if is_own(item)]
        others = len(items) - len(own)
        if others >= LEAST and len(own) >= LEAST:
            items[:] = own
            self._others = others

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        if not self._others or session.testsfailed:  # failed: a module that cannot be imported
            return (yield)
        session.testscollected += self._others  # of which the shown percentage is
        self._start()
        try:
            result = yield
            assert self._child is not None
            while self._child.poll() is None:
                self._take()
                time.sleep(0.05)
            self._take()
            self._check()
            return result
        finally:
            self._stop()

    def pytest_runtest_logfinish(self) -> None:
        if self._child is not None and not self._showing:
            self._take()

    def _start(self) -> None:
        fd = self._reports.fileno()
        argv = [sys.executable, "-m", "pytest", *map(str, self._config.invocation_params.args)]
        self._child = subprocess.Popen(
            argv, cwd=Path(self._config.invocation_params.dir), stdin=subprocess.DEVNULL,
            stdout=self._output, stderr=subprocess.STDOUT, pass_fds=(fd,),
            env={**os.environ, REPORTS_FD: str(fd)},
        )  # fmt: skip

    def _take(self) -> None:
        """Shows the reports that have come."""
        fd, last = self._reports.fileno(), self._read
        data = os.pread(fd, os.fstat(fd).st_size - last, last)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        self._showing = True
        for line in whole.splitlines():
            self._show(json.loads(line))
        self._showing = False

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

    def _check(self) -> None:
        assert self._child is not None
        status = self._child.wait()
        # 0 and 1: all of its tests are told of. Anything else, or no word of its end, is a crash.
        if self._ended not in (0, 1):
            self._output.seek(0)
            tail = self._output.read().decode("utf-8", "replace")[-8000:]
            raise RuntimeError(f"the second process of this run ended with {status}:\n{tail}")

    def _stop(self) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._output.close()
        self._reports.close()
