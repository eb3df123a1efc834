"""plan(), route() and the --cores syntax. Owner: pytest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.topology_trees import recorded
from tpc_server.affinity.plan import (
    STAGES,
    CorePlan,
    CoreSpec,
    PlanSettings,
    parse_cores,
    plan,
    route,
)
from tpc_server.affinity.topology import Topology

ALL = ("ingress", "tokenize", "detok", "egress")
IO = ("ingress", "detok", "egress")


def cpus_of(made: CorePlan, stage: str) -> list[tuple[int, ...]]:
    return [made.cores[index].cpus for index in made.stage_cores(stage)]


def machine(count: int) -> Topology:
    return Topology(tuple(range(count)))


# ------------------------------------------------------------------ defaults on recorded machines


@pytest.mark.parametrize("engine", [None, 0, 1])
def test_two_cpus_give_one_core_and_leave_one(engine: int | None) -> None:
    made = plan(recorded("container_2"), PlanSettings(engine_cpus=engine))
    assert made.cores == (CoreSpec(0, (0,), ALL),)
    assert made.scheduler_cpus == (1,)
    assert made.warnings == ()
    assert made.engine_threads == (engine or 0)


def test_two_cpus_and_a_hungry_engine_share() -> None:
    made = plan(recorded("container_2"), PlanSettings(engine_cpus=8))
    assert made.cores == (CoreSpec(0, (0,), ALL),)
    assert made.scheduler_cpus == (0, 1)
    assert made.engine_threads == 2


def test_laptop_uses_one_thread_of_each_physical_core() -> None:
    topology = recorded("laptop_8_smt")
    made = plan(topology)
    assert cpus_of(made, "ingress") == [(0,), (2,), (4,), (6,)]
    assert cpus_of(made, "tokenize") == [(12,), (14,)]
    # two whole physical cores and the second threads of ours
    assert made.scheduler_cpus == (1, 3, 5, 7, 8, 9, 10, 11, 13, 15)


def test_laptop_with_an_engine() -> None:
    topology = recorded("laptop_8_smt")
    made = plan(topology, PlanSettings(engine_cpus=4))
    assert cpus_of(made, "egress") == [(0,), (2,)]
    assert cpus_of(made, "tokenize") == [(12,)]
    assert made.scheduler_cpus == (4, 6, 8, 10)
    assert made.engine_threads == 4


def test_server_stays_in_one_node_and_small() -> None:
    topology = recorded("server_2x32_smt")
    made = plan(topology)
    assert len(made.stage_cores("ingress")) == 4
    assert len(made.stage_cores("tokenize")) == 2
    assert set(made.stage_cores("tokenize")).isdisjoint(made.stage_cores("ingress"))
    used = {cpu for core in made.cores for cpu in core.cpus}
    assert used < set(topology.nodes[0])
    # a cache of this machine has 4 physical cores: all four I/O cores are behind one
    assert {cpu for (cpu,) in cpus_of(made, "ingress")} == {0, 1, 2, 3}
    assert len(made.scheduler_cpus) == 122


def test_cores_stay_behind_one_cache_where_they_fit() -> None:
    topology = replace(recorded("server_2x32_smt"), allowed=(3, *range(8, 16), 40, 41))
    made = plan(topology, PlanSettings(engine_cpus=1))  # 2 + 1 + 1 threads
    used = {cpu for core in made.cores for cpu in core.cpus} | set(made.scheduler_cpus)
    assert used == {8, 9, 10, 11}


def test_the_node_that_fits_is_taken_not_the_first() -> None:
    topology = replace(recorded("server_2x32_smt"), allowed=(0, 1, *range(40, 56)))
    made = plan(topology)
    assert {cpu for core in made.cores for cpu in core.cpus} <= set(range(40, 56))


def test_quota_of_a_pod_counts_and_nothing_is_pinned() -> None:
    topology = recorded("pod_quota")
    made = plan(topology, PlanSettings(engine_cpus=4))
    assert made.cores == (CoreSpec(0, (), ALL),)
    assert made.scheduler_cpus == ()
    assert made.engine_threads == 2
    assert not made.pinned
    assert "1.5" in made.reason
    assert "64" in made.reason


def test_pod_pins_when_cpus_are_named() -> None:
    topology = recorded("pod_quota")
    made = plan(topology, PlanSettings(cores=parse_cores("3,7,9"), engine_cpus=1))
    assert cpus_of(made, "ingress") == [(3,), (7,)]
    assert cpus_of(made, "tokenize") == [(9,)]
    assert made.warnings == ("3 cores under a cgroup quota of 1.5 CPUs",)
    assert set(made.scheduler_cpus).isdisjoint({3, 7, 9})


def test_gaps_in_the_mask() -> None:
    topology = recorded("mask_gaps")
    made = plan(topology)
    # 5 physical cores: 3 + 1 for us, one of each pair, and CPUs 8 and 9 are one core, left whole
    assert cpus_of(made, "ingress") == [(2,), (5,), (8,)]
    assert cpus_of(made, "tokenize") == [(14,)]
    assert made.scheduler_cpus == (3, 9, 11)


# ------------------------------------------------------------------------------- defaults, by size


@pytest.mark.parametrize(
    ("count", "io", "tokenize"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 1), (4, 2, 1), (5, 3, 1), (6, 4, 1), (8, 4, 2), (64, 4, 2)],
)
def test_default_sizes(count: int, io: int, tokenize: int) -> None:
    made = plan(machine(count))
    assert len(made.stage_cores("ingress")) == io
    assert made.stage_cores("detok") == made.stage_cores("egress") == made.stage_cores("ingress")
    own = set(made.stage_cores("tokenize")) - set(made.stage_cores("ingress"))
    assert len(own) == tokenize
    assert len(made.cores) == io + tokenize


@pytest.mark.parametrize(
    ("count", "engine", "cores", "threads"),
    [
        (1, 4, 1, 1),
        (2, 1, 1, 1),
        (2, 4, 1, 2),
        (3, 1, 2, 1),
        (3, 4, 1, 2),
        (4, 2, 2, 2),
        (4, 64, 2, 2),
        (8, 4, 3, 4),
        (8, 64, 2, 6),
        (64, 8, 3, 8),
        (64, 64, 3, 61),
    ],
)
def test_default_sizes_with_an_engine(count: int, engine: int, cores: int, threads: int) -> None:
    made = plan(machine(count), PlanSettings(engine_cpus=engine))
    assert len(made.cores) == cores
    assert made.engine_threads == threads
    assert len(made.scheduler_cpus) >= threads


def test_two_physical_cores_with_four_threads() -> None:
    topology = Topology((0, 1, 2, 3), siblings=((0, 1), (2, 3)))
    made = plan(topology)
    # ours share a physical core, the scheduler has the other whole
    assert made.cores == (CoreSpec(0, (0,), IO), CoreSpec(1, (1,), ("tokenize",)))
    assert made.scheduler_cpus == (2, 3)
    beside_engine = plan(topology, PlanSettings(engine_cpus=2))
    # compute threads on different physical cores
    assert beside_engine.scheduler_cpus == (1, 2)


def test_limits_are_settings() -> None:
    made = plan(machine(64), PlanSettings(max_io=8, max_tokenize=3))
    assert len(made.stage_cores("ingress")) == 8
    assert len(made.stage_cores("tokenize")) == 3


def test_unpinned() -> None:
    made = plan(machine(8), PlanSettings(unpinned=True, engine_cpus=2))
    assert all(core.cpus == () for core in made.cores)
    assert made.scheduler_cpus == ()
    assert made.engine_threads == 2
    assert plan(Topology((0, 1, 2), pinnable=False)).scheduler_cpus == ()


def test_unpinned_keeps_a_given_map() -> None:
    spec = parse_cores("ingress=0 tokenize=1 detok=2 egress=3")
    made = plan(machine(2), PlanSettings(cores=spec, unpinned=True))
    assert [core.stages for core in made.cores] == [
        ("ingress",),
        ("tokenize",),
        ("detok",),
        ("egress",),
    ]
    assert not made.pinned


# ------------------------------------------------------------------------------------------ --cores


def test_count() -> None:
    made = plan(machine(8), PlanSettings(cores=parse_cores(["2"])))
    assert [core.stages for core in made.cores] == [ALL, ALL]
    made = plan(machine(8), PlanSettings(cores=parse_cores(["3"])))
    assert [core.stages for core in made.cores] == [IO, IO, ("tokenize",)]
    assert "--cores 3" in made.reason


def test_count_larger_than_the_machine_goes_round() -> None:
    made = plan(machine(2), PlanSettings(cores=parse_cores(["5"])))
    assert sorted(core.cpus[0] for core in made.cores) == [0, 0, 0, 1, 1]
    assert "5 cores share 2 CPUs" in made.warnings


def test_count_spares_physical_cores() -> None:
    siblings = ((0, 1), (2, 3), (4, 5), (6, 7))
    made = plan(Topology(tuple(range(8)), siblings=siblings), PlanSettings(cores=parse_cores("4")))
    assert cpus_of(made, "ingress") == [(0,), (2,), (4,)]


def test_list_in_the_order_given() -> None:
    made = plan(machine(8), PlanSettings(cores=parse_cores("5,1-2")))
    assert [core.cpus for core in made.cores] == [(5,), (1,), (2,)]
    assert made.cores[2].stages == ("tokenize",)
    assert made.scheduler_cpus == (0, 3, 4, 6, 7)


def test_map_in_full_on_two_cpus() -> None:
    spec = parse_cores(["ingress=0,1", "tokenize=2,3", "detok=0,1", "egress=0,1"])
    made = plan(machine(2), PlanSettings(cores=spec))
    assert [core.cpus for core in made.cores] == [(0,), (1,), (0,), (1,)]
    assert [core.stages for core in made.cores] == [IO, IO, ("tokenize",), ("tokenize",)]
    assert any("2 on CPU 0, 3 on CPU 1" in text for text in made.warnings)
    assert made.scheduler_cpus == (0, 1)
    assert "no CPU is left to the scheduler" in made.warnings


def test_all_four_stages_on_four_cores() -> None:
    spec = parse_cores("ingress=0 tokenize=1 detok=2 egress=3")
    made = plan(machine(2), PlanSettings(cores=spec))
    assert [route(made, stage, 0) for stage in STAGES] == [0, 1, 2, 3]


def test_numbers_outside_the_mask_take_free_cpus_first() -> None:
    topology = Topology((4, 5, 6))
    made = plan(topology, PlanSettings(cores=parse_cores("4,0,1,2")))
    assert [core.cpus for core in made.cores] == [(4,), (5,), (6,), (4,)]


def test_stages_left_out() -> None:
    def stages(text: str, count: int = 4) -> dict[str, list[tuple[int, ...]]]:
        made = plan(machine(count), PlanSettings(cores=parse_cores(text)))
        return {stage: cpus_of(made, stage) for stage in STAGES}

    one, two, three = [(1,)], [(2,)], [(3,)]
    assert stages("ingress=1") == dict.fromkeys(STAGES, one)
    assert stages("ingress=1 tokenize=2") == {
        "ingress": one,
        "tokenize": two,
        "detok": one,
        "egress": one,
    }
    assert stages("ingress=1 egress=2")["detok"] == two
    assert stages("egress=3") == dict.fromkeys(STAGES, three)
    assert stages("detok=3") == dict.fromkeys(STAGES, three)
    assert stages("tokenize=0,1")["ingress"] == two
    assert stages("tokenize=0,1", count=2)["ingress"] == [(0,), (1,)]


def test_pairing_follows_the_order_given() -> None:
    spec = parse_cores("ingress=0,1,2 tokenize=3 detok=2,0 egress=0,1,2")
    made = plan(machine(4), PlanSettings(cores=spec))
    assert [route(made, "detok", core) for core in (0, 1, 2)] == [2, 0, 2]
    assert [route(made, "egress", core) for core in (0, 1, 2)] == [0, 1, 2]
    assert [route(made, "tokenize", core) for core in (0, 1, 2)] == [3, 3, 3]
    with pytest.raises(ValueError):
        route(made, "detok", 3)  # no ingress there


def test_a_plan_made_by_hand_needs_no_order() -> None:
    made = CorePlan((CoreSpec(0, (), IO), CoreSpec(1, (), ("tokenize",))))
    assert made.stage_cores("detok") == (0,)
    assert route(made, "tokenize", 0) == 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "no value"),
        ("0", "from 1 to 256"),
        ("257", "from 1 to 256"),
        ("two", "'two'"),
        ("-1", "'-1'"),
        ("1 2", "more than one value"),
        ("0,,1", "''"),
        (",", "''"),
        ("0,0", "twice"),
        ("3-1", "no range"),
        ("0-9999", "0 to 8191"),
        ("0-999", "more than 256"),
        ("1e2", "'1e2'"),
        ("+1", "'+1'"),
        ("٣", "'٣'"),
        ("render=1", "no stage 'render'"),
        ("ingress=0 ingress=1", "twice"),
        ("ingress=", "''"),
        ("ingress=0 1", "'1'"),
        ("detok=a", "'a'"),
        ("ingress=0-200 tokenize=201-300", "more than 256"),
    ],
)
def test_bad_values_say_what_is_wrong(value: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_cores(value)
    assert str(caught.value).startswith("--cores")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["4", "3,", "0,2,1", "ingress=0,1 tokenize=2 detok=0,1 egress=1"])
def test_a_value_reads_as_it_was_written(text: str) -> None:
    assert str(parse_cores(text)) == text
    assert parse_cores(text.split()) == parse_cores(text)


def test_one_core_by_number() -> None:
    made = plan(machine(4), PlanSettings(cores=parse_cores("3,")))
    assert made.cores == (CoreSpec(0, (3,), ALL),)
    assert parse_cores("2-2") == parse_cores("2,")


# ----------------------------------------------------------------------------------------- showing


def test_describe_and_json() -> None:
    made = plan(machine(2), PlanSettings(engine_cpus=2))
    assert made.describe() == (
        "cores: chosen for 2 CPUs\n"
        "  core 0  CPU 0       ingress tokenize detok egress\n"
        "  engine  CPU 0-1, 2 threads"
    )
    assert json.loads(json.dumps(made.to_json())) == {
        "cores": [{"index": 0, "cpus": [0], "stages": list(ALL)}],
        "scheduler_cpus": [0, 1],
        "engine_threads": 2,
        "pinned": True,
        "reason": "chosen for 2 CPUs",
        "warnings": [],
    }
    shared = plan(machine(1), PlanSettings(cores=parse_cores("2"))).describe()
    assert "warning: 2 cores share 1 CPU" in shared.splitlines()[-1]
