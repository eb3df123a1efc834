"""Rules of every test run: markers, allowed skips, the GIL stays off, a hard end. Owner: pytest."""

from __future__ import annotations

import faulthandler
import fnmatch
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # environments of other people's programs have pytest alone
    pass
else:
    # A busy machine is no failure: examples have no deadline, the test's own time-out ends a hang.
    settings.register_profile("tpc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tpc")

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# A whole ordinary run takes minutes; this ends one that hangs where no per-test limit reaches.
SGLANG_LIMIT_S = 1500
SESSION_LIMIT_S = float(os.environ.get("TPC_TEST_LIMIT_S", "1500"))


def read_allowed_skips(path: Path) -> list[tuple[str, str]]:
    """Pairs (test id pattern, reason pattern), shell-style wildcards, one `id | reason` a line."""
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        test, bar, reason = line.partition(" | ")
        if not bar or not reason.strip():
            raise pytest.UsageError(f"{path.name}: no reason given in line {line!r}")
        pairs.append((test.strip(), reason.strip()))
    return pairs


def skip_is_allowed(allowed: Sequence[tuple[str, str]], test: str, reason: str) -> bool:
    """True when one line of the list matches both the test and its reason."""
    for test_pattern, reason_pattern in allowed:
        if fnmatch.fnmatchcase(test, test_pattern) and fnmatch.fnmatchcase(reason, reason_pattern):
            return True
    return False


def skip_reason(longrepr: object) -> str:
    """The reason inside a skip report's longrepr, which is (path, line, 'Skipped: reason')."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return str(text).removeprefix("Skipped: ").strip()


def refuse_unlisted_skip(report: Any, allowed: Sequence[tuple[str, str]]) -> None:
    """Turns a skip that the committed list does not name into a failure, in place."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = skip_reason(report.longrepr)
        if not skip_is_allowed(allowed, report.nodeid, reason):
            report.outcome = "failed"
            report.longrepr = (
                f"{report.nodeid} was skipped ({reason}), and {ALLOWED_SKIPS.name} has no such line"
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tpc")
    group.addoption("--full", action="store_true", help="also the tests marked soak or full")
    group.addoption("--offline", action="store_true", help="leave out the tests marked network")
    group.addoption("--sglang", action="store_true", help="also the tests with the real SGLang")
    group.addoption("--one-process", action="store_true", help="no processes beside")
    group.addoption(
        "--stress-seconds", type=float, default=None, metavar="N",
        help="length of the whole-server stress, all variants together (default: 60)",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # `&` in a script; programs inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if Path(__file__).with_name("parts.py").exists():
        from tests import parts

        parts.register(config)
    config.stash[_ALLOWED] = read_allowed_skips(ALLOWED_SKIPS)
    if SESSION_LIMIT_S > 0 and not config.getoption("--full"):
        longer = config.getoption("--stress-seconds") or 0
        longer += SGLANG_LIMIT_S if config.getoption("--sglang") else 0
        timer = threading.Timer(SESSION_LIMIT_S + longer, end_hanging_run)
        timer.daemon = True
        timer.start()


def end_hanging_run() -> None:
    """Last resort: every thread's stack to the real stderr, then exit status 70."""
    os.write(2, f"\nthe test run is still going after {SESSION_LIMIT_S:g} s: ended\n".encode())
    faulthandler.dump_traceback(file=2, all_threads=True)
    os._exit(70)


def pytest_report_header(config: pytest.Config) -> str:
    build = "free-threaded" if FREE_THREADED else "with a GIL"
    return f"tpc: {build} build, GIL {'on' if gil_is_on() else 'off'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Heavy and network tests are deselected, never skipped: the summary line counts them."""
    left_out: set[str] = set()
    if not config.getoption("--full"):
        left_out |= {"soak", "full"}
    if not config.getoption("--sglang"):
        left_out.add("sglang")
    if config.getoption("--offline"):
        left_out.add("network")
    deselected = [i for i in items if any(m.name in left_out for m in i.iter_markers())]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [i for i in items if i not in set(deselected)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names the legs of `./tpc test` that failed before pytest: its line stays the last one."""
    failed = os.environ.get("TPC_FAILED_LEGS")
    if failed:
        terminalreporter.section("legs that failed before pytest", red=True)
        terminalreporter.write_line(failed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_unlisted_skip(report, item.config.stash[_ALLOWED])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself as a whole answers to the same list."""
    report = yield
    refuse_unlisted_skip(report, collector.config.stash[_ALLOWED])
    return report


@pytest.fixture(scope="session", autouse=True)
def gil_stays_off() -> Generator[None, None, None]:
    """On a free-threaded build no import of any test may have switched the GIL on."""
    yield
    if FREE_THREADED:
        assert not gil_is_on(), "something imported in this run switched the GIL back on"


def gil_is_on() -> bool:
    check = getattr(sys, "_is_gil_enabled", None)
    return True if check is None else bool(check())


_ALLOWED = pytest.StashKey[Sequence[tuple[str, str]]]()


@pytest.fixture
def hangups() -> Generator[None]:
    """Programs started here take SIGHUP as from a terminal, also where the run itself ignores it
    (`nohup`): a handler is not inherited, what is ignored is."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)
    yield
    signal.signal(signal.SIGHUP, before)
