"""The cache folder: nothing half made, whoever is killed or comes second. Owner: pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tpc_server.bootstrap import cache

ROOT = Path(__file__).resolve().parents[2]

# Makes `thing` and says when it is inside; with HANG it never comes out.
MAKER = """
import os, sys, time
from pathlib import Path
from tpc_server.bootstrap import cache, progress
progress.PLAIN_AFTER_S = 0.0
def make(target):
    (target / "part").write_text("x")
    with open(os.environ["COUNT"], "a") as file:
        file.write("made\\n")
    print("inside", flush=True)
    sys.stdin.readline()
    (target / "rest").write_text("y")
print(cache.build_once(cache.sub("things"), "thing", "making the thing", make), flush=True)
"""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "cache" / "tpc_server"


def start_maker() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_cache_root_follows_xdg_but_not_a_relative_path(
    monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path
) -> None:
    assert cache.cache_root() == home
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.cache_root() == tmp_path / ".cache" / "tpc_server"


def test_build_once_makes_once() -> None:
    calls: list[Path] = []

    def make(target: Path) -> None:
        calls.append(target)
        (target / "file").write_text("x")

    first = cache.build_once(cache.sub("things"), "thing", "making", make)
    assert cache.build_once(cache.sub("things"), "thing", "making", make) == first == calls[0]
    assert (cache.sub("things") / "thing" / "file").read_text() == "x"
    assert len(calls) == 1


def test_a_failing_make_leaves_nothing() -> None:
    def make(target: Path) -> None:
        (target / "file").write_text("x")
        raise KeyboardInterrupt

    folder = cache.sub("things")
    with pytest.raises(KeyboardInterrupt):
        cache.build_once(folder, "thing", "making", make)
    assert list(folder.iterdir()) == []


def test_the_next_run_sweeps_what_a_killed_one_left(home: Path) -> None:
    maker = start_maker()
    assert maker.stdout is not None and maker.stdout.readline() == "inside\n"
    os.kill(maker.pid, signal.SIGKILL)
    maker.communicate(timeout=30)
    left = list((home / "things").iterdir())
    assert len(left) == 1 and not left[0].is_symlink()

    folder = cache.sub("things")
    other = folder / "thing.2.0badcafe"
    other.mkdir()
    made = cache.build_once(folder, "thing", "making", lambda target: None)
    assert not left[0].exists()
    # Not ours to sweep: the folder of another thing whose name begins alike.
    assert other.exists()
    assert sorted(folder.iterdir()) == sorted([other, made, folder / "thing"])


def test_a_second_process_waits_says_so_and_takes_what_the_first_made(tmp_path: Path) -> None:
    first = start_maker()
    assert first.stdout is not None and first.stdout.readline() == "inside\n"
    second = start_maker()
    assert second.stderr is not None
    waiting = second.stderr.readline()
    assert "waiting for another run (making the thing, pid" in waiting
    assert str(first.pid) in waiting
    made, _ = first.communicate("\n", timeout=30)
    taken, _ = second.communicate("\n", timeout=30)
    assert made == taken != ""
    assert (tmp_path / "count").read_text() == "made\n"
    assert (Path(made.strip()) / "rest").exists()


def test_publish_replaces_in_one_step() -> None:
    folder = cache.sub("things")
    for name in ("thing.00000001", "thing.00000002"):
        (folder / name).mkdir()
        cache.publish(folder / name, folder / "thing")
        assert cache.whole(folder / "thing") == folder / name
    (folder / "thing.00000002").rmdir()
    assert cache.whole(folder / "thing") is None


def test_write_atomically_leaves_only_the_file(tmp_path: Path) -> None:
    place = tmp_path / "note"
    cache.write_atomically(place, b"one")
    cache.write_atomically(place, b"two")
    assert [p.name for p in tmp_path.iterdir()] == ["note"]
    assert place.read_bytes() == b"two"
