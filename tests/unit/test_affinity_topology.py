"""topology.read on recorded and hand-made trees. Owner: pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.topology_trees import FOLDER, NAMES, expand, record, recorded, unpack
from tpc_server.affinity.cpulist import format_cpus, parse_cpus
from tpc_server.affinity.topology import Topology, read

# allowed, budget, physical cores, last-level caches, nodes, quota
EXPECTED = {
    "container_2": ("0-1", 2, 2, 1, 1, None),
    "laptop_8_smt": ("0-15", 16, 8, 1, 1, None),
    "mask_gaps": ("2-3,5,8-9,11,14", 7, 5, 1, 1, None),
    "pod_quota": ("0-63", 2, 32, 2, 2, 1.5),
    "server_2x32_smt": ("0-127", 128, 64, 16, 2, None),
}


def test_every_recorded_tree_is_expected() -> None:
    assert set(NAMES) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_trees(name: str) -> None:
    topology = recorded(name)
    allowed, budget, physical, caches, nodes, quota = EXPECTED[name]
    assert format_cpus(topology.allowed) == allowed
    assert topology.budget == budget
    assert topology.physical == physical
    assert len(topology.caches) == caches
    assert len(topology.nodes) == nodes
    assert topology.quota == quota
    assert topology.notes == ()
    assert topology.pinnable
    assert allowed in topology.describe()


def test_groups_of_the_server() -> None:
    topology = recorded("server_2x32_smt")
    assert topology.siblings[5] == (5, 69)
    assert topology.caches[0] == (0, 1, 2, 3, 64, 65, 66, 67)
    assert topology.nodes[1] == tuple(range(32, 64)) + tuple(range(96, 128))


def test_an_empty_root_never_raises(tmp_path: Path) -> None:
    topology = read(tmp_path)
    assert topology.allowed == tuple(range(os.cpu_count() or 1))
    assert topology.quota is None
    assert topology.siblings == topology.nodes == topology.caches == ()
    assert len(topology.notes) == 4


def test_folders_where_files_belong_and_noise_in_files(tmp_path: Path) -> None:
    unpack("laptop_8_smt", tmp_path)
    cpus = tmp_path / "sys/devices/system/cpu"
    (cpus / "online").unlink()
    (cpus / "online").mkdir()
    (cpus / "cpu0/topology/thread_siblings_list").write_bytes(b"\xff\xfe garbage")
    (cpus / "cpu2/cache/index3/level").write_text("three")
    (tmp_path / "sys/devices/system/node/node0/cpulist").write_text("0-99999999999")
    topology = read(tmp_path)
    assert topology.allowed == tuple(range(16))
    assert topology.nodes == ()
    # CPU 1 still names both, so the group of 0 is found from there.
    assert (0, 1) in topology.siblings
    # CPU 2's third level is noise, its second is what is left; the others know the third.
    assert topology.caches == (tuple(range(16)),)


def test_affinity_is_injectable(tmp_path: Path) -> None:
    topology = read(unpack("laptop_8_smt", tmp_path), affinity=[9, 3, 3])
    assert topology.allowed == (3, 9)
    assert topology.physical == 2


def test_other_pid_is_read_from_its_own_files(tmp_path: Path) -> None:
    unpack("laptop_8_smt", tmp_path)
    other = tmp_path / "proc/77"
    other.mkdir()
    (other / "status").write_text("Name:\tx\nCpus_allowed_list:\t4-5\n")
    (other / "cgroup").write_text("0::/system.slice\n")
    limit = tmp_path / "sys/fs/cgroup/system.slice/cpu.max"
    limit.parent.mkdir()
    limit.write_text("50000 100000\n")
    topology = read(tmp_path, 77)
    assert topology.allowed == (4, 5)
    assert topology.quota == 0.5
    assert topology.budget == 1
    assert read(tmp_path).quota is None


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        # v2 inside a cgroup namespace: own group is the mount itself
        ("0::/", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/", {"cpu.max": "max 100000"}, None),
        # v2 without a namespace: the host's path, the tightest level wins, wherever it is
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "300000 100000"}, 3.0),
        ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, 1.0),
        # the host's path leads nowhere below the container's mount
        ("0::/docker/123", {"cpu.max": "250000 100000"}, 2.5),
        ("0::/../../x", {"cpu.max": "250000 100000"}, 2.5),
        # v1, under each of the usual mount names
        (
            "4:cpu,cpuacct:/k/p",
            {
                "cpu,cpuacct/k/p/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/k/p/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/k/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/k/cpu.cfs_period_us": "100000",
            },
            1.5,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "75000", "cpu/cpu.cfs_period_us": "50000"}, 1.5),
        # a v1 controller without cpu, and names that only contain the word, say nothing
        (
            "4:cpuset:/k",
            {"cpuset/k/cpu.cfs_quota_us": "1", "cpuset/k/cpu.cfs_period_us": "9"},
            None,
        ),
        # hybrid: v2 beside v1
        ("1:cpu:/\n0::/u", {"unified/u/cpu.max": "120000 100000"}, 1.2),
        # noise
        ("0::/", {"cpu.max": "lots"}, None),
        ("0::/", {"cpu.max": "100000 0"}, None),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "75000"}, None),
        # /proc hidden: the mount's own files count
        (None, {"cpu.max": "200000 100000"}, 2.0),
    ],
)
def test_quota(
    membership: str | None, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    if membership is not None:
        target = tmp_path / "proc/self/cgroup"
        target.parent.mkdir(parents=True)
        target.write_text(membership + "\n")
    for path, text in files.items():
        target = tmp_path / "sys/fs/cgroup" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
    assert read(tmp_path, affinity=[0]).quota == quota


def test_the_real_machine_agrees_with_the_kernel() -> None:
    topology = read()
    assert topology.allowed
    if sys.platform == "linux":
        assert topology.allowed == tuple(sorted(os.sched_getaffinity(0)))
    for groups in (topology.siblings, topology.nodes, topology.caches):
        members = [cpu for group in groups for cpu in group]
        assert len(members) == len(set(members)), "a CPU is in two groups"


def test_reads_a_mask_that_the_parent_narrowed() -> None:
    cpu = max(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{cpu}]); import subprocess, sys;"
        "subprocess.run([sys.executable, '-c', 'from tpc_server.affinity.topology import read;"
        "print(read().allowed)'], check=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str((cpu,))


def test_budget_rounds_a_quota_up_and_is_at_least_one() -> None:
    assert Topology((0, 1, 2, 3), quota=1.5).budget == 2
    assert Topology((0, 1, 2, 3), quota=2.0).budget == 2
    assert Topology((0, 1, 2, 3), quota=0.1).budget == 1
    assert Topology((0, 1), quota=64.0).budget == 2


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        (" 2 \n", (2,)),
        ("", ()),
        ("3,1", (1, 3)),
        ("0-", ()),
        ("-1", ()),
        ("a", ()),
        ("0-8192", ()),
        ("5-2", ()),
    ],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_recording_a_tree_gives_what_it_was_unpacked_from(tmp_path: Path) -> None:
    root = unpack("pod_quota", tmp_path / "a")
    again = tmp_path / "b"
    for pattern, text in record(root).items():
        for path in expand(pattern):
            target = again / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    assert read(again) == read(root)
    assert FOLDER.is_dir()
