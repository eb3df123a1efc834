"""SGLang's core rules, with the values its own code gives. Owner: pytest."""

from __future__ import annotations

import pytest

from tpc_server.affinity.plan import STAGES, route
from tpc_server.affinity.sglang_rules import (
    ThreadCores,
    partition_cores,
    plan_cores,
    plan_for_server,
)


def span(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


@pytest.mark.parametrize(
    ("allowed", "mm_workers", "launch", "server"),
    [
        (range(4), 0, (0,), span(1, 3)),
        (range(7), 0, (0,), span(1, 6)),
        (range(8), 0, (0, 1), span(2, 7)),
        (range(10), 0, (0, 1), span(2, 9)),
        (range(16), 0, (0, 1), span(2, 9)),
        (range(64), 0, (0, 1), span(2, 9)),
        (range(16), 8, (0, 1), span(2, 13)),
        (range(16), 4, (0, 1), span(2, 9)),
        ((9, 2, 8, 3), 0, (2,), (3, 8, 9)),
    ],
)
def test_partition(
    allowed: tuple[int, ...], mm_workers: int, launch: tuple[int, ...], server: tuple[int, ...]
) -> None:
    assert partition_cores(allowed, mm_workers) == (launch, server)


@pytest.mark.parametrize("allowed", [None, (), (0,), (0, 1, 2)])
def test_too_few_or_unreadable_is_unpinned(allowed: tuple[int, ...] | None) -> None:
    assert partition_cores(allowed) == (None, None)


def test_dealing_with_two_left_over() -> None:
    assert plan_cores(span(2, 9), 2, 2, 2) == ThreadCores(
        api=(2, 3), tokenizer=(4, 5), detokenizer=(6, 7), from_scheduler=(8,), to_scheduler=(9,)
    )


def test_dealing_with_one_left_over_shares_it() -> None:
    dealt = plan_cores(span(1, 4), 1, 1, 1)
    assert dealt.from_scheduler == dealt.to_scheduler == (4,)


def test_dealing_with_none_left_over_shares_the_api_set() -> None:
    assert plan_cores(span(1, 3), 1, 1, 1) == ThreadCores(
        api=(1,), tokenizer=(2,), detokenizer=(3,), from_scheduler=(1,), to_scheduler=(1,)
    )
    dealt = plan_cores(span(1, 4), 2, 1, 1)
    assert dealt.from_scheduler == dealt.to_scheduler == (1, 2)


def test_dealing_with_more_than_two_left_over_leaves_the_rest() -> None:
    dealt = plan_cores((2, 3, 8, 9, 10, 11), 1, 1, 1)
    assert (dealt.from_scheduler, dealt.to_scheduler) == ((9,), (10,))


@pytest.mark.parametrize("server", [None, (), []])
def test_no_cores_means_unpinned_without_a_word(server: tuple[int, ...] | None) -> None:
    assert plan_cores(server, 2, 1, 1) == ThreadCores()
    made = plan_for_server(server)
    assert not made.pinned
    assert made.warnings == ()
    assert made.scheduler_cpus == ()


def test_too_few_cores_warn_and_pin_nothing() -> None:
    dealt = plan_cores((1, 2, 3), 2, 1, 1)
    assert dealt == ThreadCores(warning=dealt.warning)
    assert "3 cores" in dealt.warning
    assert "4 wanted" in dealt.warning
    made = plan_for_server((1, 2, 3))
    assert not made.pinned
    assert made.warnings == (dealt.warning,)


def test_our_stages_on_the_cores_given() -> None:
    made = plan_for_server(span(2, 9), 2, 2)
    assert [core.cpus for core in made.cores] == [(2,), (3,), (6,), (7,), (4,), (5,)]
    assert made.stage_cores("ingress") == (0, 1, 2, 3)
    assert made.stage_cores("detok") == made.stage_cores("egress") == (0, 1, 2, 3)
    assert made.stage_cores("tokenize") == (4, 5)
    assert route(made, "tokenize", 3) == 5
    assert made.scheduler_cpus == ()
    assert "2-9" in made.reason


def test_the_defaults_of_a_real_launch() -> None:
    _, server = partition_cores(range(16))
    made = plan_for_server(server, 1, 1)
    assert [core.cpus for core in made.cores] == [(2,), (3,), (5,), (4,)]
    assert made.cores[3].stages == ("tokenize",)


def test_one_api_worker_on_three_cores() -> None:
    made = plan_for_server((1, 2, 3), api_workers=1)
    assert [core.cpus for core in made.cores] == [(1,), (3,), (2,)]


@pytest.mark.parametrize(
    ("tok", "detok", "allowed", "io", "own"),
    [
        (1, 1, None, 1, 0),
        (2, 1, None, 1, 2),
        (1, 2, None, 2, 1),
        (2, 4, None, 4, 2),
        (4, 4, 2, 1, 0),
        (4, 4, 1, 1, 0),
        (4, 4, 4, 2, 1),
        (1, 2, 3, 2, 1),
        (0, 0, None, 1, 0),
    ],
)
def test_unpinned_sizes(tok: int, detok: int, allowed: int | None, io: int, own: int) -> None:
    made = plan_for_server(None, tok, detok, allowed_cpus=allowed)
    assert len(made.stage_cores("ingress")) == io
    assert len(set(made.stage_cores("tokenize")) - set(made.stage_cores("ingress"))) == own
    assert [core.index for core in made.cores] == list(range(io + own))
    for stage in STAGES:
        assert made.stage_cores(stage)
