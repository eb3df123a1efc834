"""Where processes count together: places for each, and pages of those in use. Owner: pytest."""

from __future__ import annotations

import os

import pytest

from tpc_server import MetricsConfig, ModelConfig, ServerArgs
from tpc_server.affinity import sglang_rules
from tpc_server.frontend import make_mesh
from tpc_server.metrics.area import MetricsArea
from tpc_server.shm import Region


def test_a_block_is_shown_once_it_is_in_use():
    area = MetricsArea.create(16, cores=2, slots=3)
    words = area.words()
    assert area.blocks(words) == []
    other = MetricsArea(Region.attach(os.dup(area.region.fd), area.region.size), 16, 2, 3, 2)
    theirs = other.words()
    assert other.take(1, theirs) == 5 * 16
    assert area.take(0, words) == 0
    assert area.blocks(words) == other.blocks(theirs) == [0, 5 * 16]
    theirs[5 * 16 + 15] = 7  # the last word of a block is not the mark of another
    assert area.blocks(words) == [0, 5 * 16]
    for one in (area, other):
        one.close()


def test_a_process_with_more_cores_than_a_place_has_is_told():
    args = ServerArgs(
        skip_tokenizer_init=True, metrics=MetricsConfig(labels={}),
        model_config=ModelConfig(context_len=64, vocab_size=9),
    )  # fmt: skip
    plan = sglang_rules.plan_for_server(list(range(6)), 1, 2, allowed_cpus=6)
    cores = len(plan.cores)
    assert cores > 1
    mesh = make_mesh(args, plan, 8, 8, 8)
    assert mesh.metrics is not None
    shared = [os.dup(mesh.metrics.region.fd), mesh.metrics.region.size, 1, 0]
    with pytest.raises(ValueError, match=f"{cores} cores: .* room for {cores - 1}"):
        make_mesh(args, plan, 8, 8, 8, [*shared, cores - 1])
    os.close(shared[0])
    mesh.close()
