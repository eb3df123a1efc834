"""Steps: shown only when they last, ended with all their children. Owner: pytest."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpc_server.bootstrap import progress, toolchain
from tpc_server.bootstrap.progress import Share, Step, StepFailed, duration, run

ROOT = Path(__file__).resolve().parents[2]
PYTHON = [sys.executable, "-c"]


def test_a_short_step_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Step("quick") as step:
        step.tick("detail")
    assert capsys.readouterr().err == ""


def test_a_long_step_shows_what_it_does_and_how_long_it_took(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Step("slow") as step:
        for _ in range(200):  # 20 seconds
            now[0] += 0.1
            step.tick("part 7")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tpc: slow · 2 s · part 7"
    assert lines[-1] == "tpc: slow · done after 20.0 s"
    assert 3 <= len(lines) <= 5, lines


def test_a_failed_step_says_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_AFTER_S", 0.0)
    with pytest.raises(ValueError, match="x"), Step("slow") as step:
        step.tick()
        raise ValueError("x")
    assert "slow · failed after" in capsys.readouterr().err


def test_on_a_terminal_one_line_is_rewritten() -> None:
    master, slave = pty.openpty()
    code = (
        "import time\nfrom tpc_server.bootstrap import progress\nprogress.TTY_AFTER_S = 0\n"
        "with progress.Step('work') as step:\n"
        "    for part in range(3):\n        step._next = 0\n        step.tick(f'part {part}')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60", "PYTHONIOENCODING": "utf-8"}
    child = subprocess.Popen([*PYTHON, code], stderr=slave, env=env)
    assert child.wait(timeout=30) == 0
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert shown.count("\r\x1b[K") == 4
    assert shown.count("\n") == 1
    assert "part 2" in shown and shown.rstrip().endswith(" s")


def test_run_returns_the_output_of_both_streams(tmp_path: Path) -> None:
    code = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr)"
    log = tmp_path / "log"
    assert run([*PYTHON, code], "both", log=log) == "out\nerr\n"
    assert log.read_text() == "out\nerr\n"


def test_a_failing_command_raises_with_its_last_lines(tmp_path: Path) -> None:
    code = "print('\\n'.join(map(str, range(100)))); raise SystemExit(3)"
    with pytest.raises(StepFailed) as caught:
        run([*PYTHON, code], "counting", log=tmp_path / "log")
    text = str(caught.value)
    assert text.startswith("counting: ended with status 3\n75\n")
    assert "\n99\n" in text and "\n74\n" not in text
    assert str(tmp_path / "log") in text


def test_a_missing_program_is_a_step_failed() -> None:
    with pytest.raises(StepFailed, match="no-such-program"):
        run(["no-such-program"], "nothing")


FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
print("family", child.pid, flush=True)
time.sleep(99)
"""


@pytest.mark.parametrize("end", ["limit", "interrupt", "exit"])
def test_whatever_ends_a_step_ends_the_children_of_its_command(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def detail(line: str) -> str:
        pids.append(int(line.split()[1]))
        if end == "interrupt":
            raise KeyboardInterrupt
        if end == "exit":
            raise SystemExit(143)
        monkeypatch.setattr(Step, "elapsed_s", lambda self: 1e9)
        return line

    kinds = {"limit": StepFailed, "interrupt": KeyboardInterrupt, "exit": SystemExit}
    with pytest.raises(kinds[end]):
        run([*PYTHON, FAMILY], "hanging", detail=detail, limit_s=1e6)
    assert_gone(pids[0])


def test_silence_is_given_up() -> None:
    with pytest.raises(StepFailed, match=r"given up after 0.3 s of silence"):
        run(["sleep", "99"], "hanging", quiet_limit_s=0.3)


def assert_gone(pid: int) -> None:
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} is still there")


def test_a_share_tells_what_is_left_once_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    share = Share("files", 300, 100)
    now = 104.0
    assert share.text(180) == "180 of 300 files"  # too early to say
    now = 160.0
    assert share.text(105) == "105 of 300 files"  # too few to say
    assert share.text(120) == "120 of 300 files, about 9 minutes left"
    assert share.text(200) == "200 of 300 files, about 60 s left"
    assert share.text(301) == "301 of 301 files"
    assert Share("files", 0).text(7) == "7 files"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "about 10 s"), (44, "about 40 s"), (100, "about 2 minutes"), (269, "about 4 minutes")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_is_expected_goes_by_the_load_and_by_what_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toolchain, "cores", lambda: 2)
    monkeypatch.setattr(toolchain, "_PACE", [])
    load = [0.1, 0.0, 0.0]
    monkeypatch.setattr(os, "getloadavg", lambda: load)
    quiet = toolchain.quiet_s(45, 280)
    assert quiet == 185 and toolchain.expected(quiet) == "about 3 minutes on 2 CPUs"
    load[0] = 2.0
    assert toolchain.expected(quiet) == "about 6 minutes on 2 CPUs, which are busy"
    load[0] = 300.0  # of a machine around this container
    assert toolchain.expected(quiet) == "about 9 minutes on 2 CPUs, which are busy"
    toolchain.note_pace(180, 720)
    assert toolchain.expected(quiet) == "about 12 minutes on 2 CPUs, going by the pace so far"
    toolchain.note_pace(180, 90)
    assert toolchain.expected(quiet) == "about 3 minutes on 2 CPUs"
