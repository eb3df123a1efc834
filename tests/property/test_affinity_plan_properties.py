"""plan() on any machine and any wishes. Owner: pytest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology_trees import NAMES, recorded
from tpc_server.affinity.cores_arg import CoresSpec, parse_cores
from tpc_server.affinity.cpulist import format_cpus, parse_cpus
from tpc_server.affinity.plan import STAGES, CorePlan, PlanSettings, plan, route
from tpc_server.affinity.topology import Group, Topology


@st.composite
def groups(draw: st.DrawFn, cpus: list[int]) -> tuple[Group, ...]:
    """Some of the CPUs dealt into groups, also none at all (files that cannot be read)."""
    size = draw(st.integers(1, 16))
    known = draw(st.lists(st.sampled_from(cpus), unique=True))
    return tuple(tuple(sorted(known[i : i + size])) for i in range(0, len(known), size))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    if draw(st.booleans()):
        base = recorded(draw(st.sampled_from(NAMES)))
        # One slice costs three draws; a list of 128 CPUs would cost hundreds.
        start, step = draw(st.integers(0, 40)), draw(st.integers(1, 9))
        allowed = list(base.allowed[start:][::step][: draw(st.integers(1, 128))])
        allowed = allowed or list(base.allowed)
        siblings, nodes, caches = base.siblings, base.nodes, base.caches
    else:
        cpus = draw(st.lists(st.integers(0, 300), min_size=1, max_size=16, unique=True))
        allowed = draw(st.lists(st.sampled_from(cpus), min_size=1, unique=True))
        siblings, nodes, caches = draw(groups(cpus)), draw(groups(cpus)), draw(groups(cpus))
    quota = draw(st.none() | st.floats(0.01, 200))
    return Topology(
        tuple(sorted(allowed)), quota, siblings, nodes, caches, pinnable=draw(st.booleans())
    )


numbers = st.lists(st.integers(0, 70), min_size=1, max_size=12, unique=True).map(tuple)
specs = (
    st.none()
    | st.integers(1, 20).map(lambda count: CoresSpec(count=count))
    | numbers.map(lambda cores: CoresSpec(cores=cores))
    | st.dictionaries(st.sampled_from(STAGES), numbers, min_size=1).map(
        lambda stages: CoresSpec(stages=tuple(stages.items()))
    )
)
wishes = st.builds(
    PlanSettings,
    cores=specs,
    engine_cpus=st.none() | st.integers(0, 9) | st.just(140),
    unpinned=st.booleans(),
    max_io=st.none() | st.integers(1, 12),
    max_tokenize=st.none() | st.integers(1, 12),
)


def used_cpus(made: CorePlan) -> set[int]:
    return {cpu for core in made.cores for cpu in core.cpus}


@settings(max_examples=100, deadline=None)
@given(topologies(), wishes)
def test_every_plan_is_sound(topology: Topology, wanted: PlanSettings) -> None:
    made = plan(topology, wanted)
    allowed = set(topology.allowed)

    assert [core.index for core in made.cores] == list(range(len(made.cores)))
    for core in made.cores:
        assert set(core.cpus) <= allowed
        assert core.stages, "a core without work"
        assert [stage for stage in STAGES if stage in core.stages] == list(core.stages)
    for stage in STAGES:
        assert made.stage_cores(stage)
        assert set(made.stage_cores(stage)) == {
            core.index for core in made.cores if stage in core.stages
        }
        for ingress in made.stage_cores("ingress"):
            assert route(made, stage, ingress) in made.stage_cores(stage)
    # all cores are pinned, to one CPU each, or none is
    assert {len(core.cpus) for core in made.cores} in ({0}, {1})

    assert set(made.scheduler_cpus) <= allowed
    engine = wanted.engine_cpus or 0
    assert 0 <= made.engine_threads <= engine
    assert (made.engine_threads > 0) == (engine > 0)
    assert made.engine_threads <= topology.budget
    if made.pinned:
        assert made.scheduler_cpus
        left = len(allowed - used_cpus(made))
        too_few = left < max(1, min(engine, 2))
        if not too_few:
            assert used_cpus(made).isdisjoint(made.scheduler_cpus)
    else:
        assert made.scheduler_cpus == ()

    assert plan(topology, wanted) == made, "two calls differ"
    assert len(made.describe().splitlines()) >= 1 + len(made.cores)


@settings(max_examples=100, deadline=None)
@given(topologies(), st.none() | st.integers(0, 140))
def test_default_plans_are_modest(topology: Topology, engine: int | None) -> None:
    made = plan(topology, PlanSettings(engine_cpus=engine))
    assert len(made.cores) <= min(6, max(1, topology.budget - 1))
    if topology.pinnable and topology.budget == len(topology.allowed):
        assert made.pinned
        assert len(used_cpus(made)) == len(made.cores), "two cores on one CPU"


@settings(max_examples=100, deadline=None)
@given(topologies(), specs.filter(lambda spec: spec is None or spec.count is not None))
def test_io_cores_share_a_physical_core_only_when_none_is_free(
    topology: Topology, spec: CoresSpec | None
) -> None:
    made = plan(topology, PlanSettings(cores=spec))
    if not made.pinned:
        return
    physical_of = {cpu: group for group in topology.siblings for cpu in group}
    io = [made.cores[index].cpus[0] for index in made.stage_cores("ingress")]
    physical = {physical_of.get(cpu, (cpu,)) for cpu in io}
    assert len(physical) == min(len(io), topology.physical)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.none() | st.integers(0, 3))
def test_what_fits_in_one_domain_stays_in_one(name: str, engine: int | None) -> None:
    topology = recorded(name)
    made = plan(topology, PlanSettings(engine_cpus=engine))
    for domains in (topology.nodes, topology.caches):
        wanted = len(made.cores) + (engine or 2)
        if made.pinned and any(len(group) >= 2 * wanted for group in domains):
            assert any(used_cpus(made) <= set(group) for group in domains)


@given(specs.filter(lambda spec: spec is not None))
def test_a_spec_reads_back_from_its_text(spec: CoresSpec) -> None:
    assert parse_cores(str(spec)) == spec


# A small alphabet gets past the first check more often, and needs no Unicode tables.
@given(st.text("0123,-= \t+.x٣ingrestokdu", max_size=30))
def test_any_text_is_a_spec_or_a_value_error_naming_the_flag(text: str) -> None:
    try:
        spec = parse_cores(text)
    except ValueError as error:
        assert str(error).startswith("--cores")
    else:
        assert parse_cores(str(spec)) == spec


@given(st.lists(st.integers(0, 8191)))
def test_cpu_lists_read_back(cpus: list[int]) -> None:
    expected = tuple(sorted(set(cpus)))
    assert parse_cpus(format_cpus(expected)) == (expected if expected else ())
