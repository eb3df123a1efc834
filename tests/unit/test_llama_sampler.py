"""From logits to tokens: filters, penalties, determinism; logprobs."""

from __future__ import annotations

import numpy as np
import pytest

from tpc_server.engines.llama import logprobs, sampler
from tpc_server.engines.llama.request import LogprobWish, Request, Sampling, StopRules

N = 200


def request(sampling: Sampling, lp_wish: LogprobWish | None = None) -> Request:
    return Request("r", [1, 2, 3], sampling, StopRules(100), False, lp_wish=lp_wish)


def row(seed: int = 0, spread: float = 2.0, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, n).astype(np.float32)


def shares(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """What each id's probability should be, from the definitions, in float64."""
    p = np.exp((logits - logits.max()).astype(np.float64) / sampling.temperature)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    before = np.cumsum(p[order]) - p[order]
    keep = np.zeros(len(p), bool)
    for rank, token in enumerate(order):
        keep[token] = (
            rank < sampling.top_k
            and before[rank] <= sampling.top_p
            and p[token] >= sampling.min_p * p.max()
        )
    p[~keep] = 0
    found: np.ndarray = p / p.sum()
    return found


@pytest.mark.parametrize(
    "given",
    [
        dict(),
        dict(temperature=0.5),
        dict(temperature=3.0, top_k=5),
        dict(top_p=0.6),
        dict(top_p=0.999),
        dict(top_k=20, top_p=0.8, temperature=1.7),
        dict(min_p=0.2),
        dict(min_p=0.1, top_k=7, top_p=0.9, temperature=2.0),
        dict(top_k=10_000),
        dict(top_p=1e-6),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(given) -> None:
    sampling = Sampling(**given)
    logits = row(3)
    expected = shares(logits, sampling)
    draws = 1500
    counts = np.zeros(N)
    wanted = request(sampling)
    for seed in range(draws):
        sampling.seed = seed
        counts[sampler.pick(logits, wanted)] += 1
    assert not counts[expected == 0].any()
    spread = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(counts / draws - expected) <= 5 * spread + 1e-3).all()


def test_top_p_looks_further_until_it_has_enough() -> None:
    logits = row(1, spread=0.01, n=5000)  # nearly flat: thousands of ids are needed
    sampling = Sampling(top_p=0.9)
    weights = np.exp(logits - logits.max())
    ids = sampler._likeliest(weights, sampling)
    assert set(ids) == set(np.flatnonzero(shares(logits, sampling)))


def test_top_ids_are_sorted_and_ties_go_by_position() -> None:
    values = np.array([1, 5, 3, 5, 5, 0, 3], np.float32)
    assert sampler.top_ids(values, 2).tolist() == [1, 3]
    assert sampler.top_ids(values, 4).tolist() == [1, 3, 4, 2]
    assert sampler.top_ids(values, 7).tolist() == [1, 3, 4, 2, 6, 0, 5]
    assert sampler.top_ids(values, 99).tolist() == [1, 3, 4, 2, 6, 0, 5]
    flat = np.zeros(300, np.float32)
    assert sampler.top_ids(flat, 3).tolist() == [0, 1, 2]


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.zeros(N, np.float32)
    logits[[7, 9]] = 4
    assert sampler.pick(logits, request(Sampling(top_k=1))) == 7


def test_a_seed_fixes_every_position_and_differs_between_them() -> None:
    logits = row(5, spread=0.5)

    def draw(seed: int) -> list[int]:
        wanted = request(Sampling(seed=seed))
        for _ in range(30):
            token = sampler.pick(logits, wanted)
            assert token is not None
            wanted.output.append(token)
        return wanted.output

    assert draw(42) == draw(42)
    assert draw(42) != draw(43)
    assert len(set(draw(42))) > 10
    assert draw(-1) == draw(-1)


def test_uniform_is_uniform() -> None:
    values = np.array([sampler.uniform(s, p) for s in range(100) for p in range(100)])
    assert values.min() >= 0 and values.max() < 1
    histogram = np.histogram(values, 20, (0, 1))[0]
    assert abs(histogram - 500).max() < 110  # five sigma


def test_penalties_biases_and_minimum_length() -> None:
    sampling = Sampling(
        frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=2.0,
        biases=[(4, 3.0), (9, -1.0)], min_new_tokens=5, barred=[2, 11],
    )  # fmt: skip
    wanted = request(sampling)
    wanted.output = [4, 7, 7]
    wanted.counts = {4: 1, 7: 2}
    logits = row(8)
    logits[4], logits[7] = 3.0, -1.0
    expected = logits.astype(np.float64)
    expected[4] = (3.0 - 0.5 - 0.25) / 2 + 3
    expected[7] = (-1.0 - 2 * 0.5 - 0.25) * 2
    expected[9] -= 1
    expected[[2, 11]] = -np.inf
    assert sampler.is_adjusted(wanted)
    sampler.adjust(logits, wanted)
    assert np.allclose(logits, expected, rtol=1e-6)


def test_barred_ids_come_back_after_the_minimum() -> None:
    wanted = request(Sampling(min_new_tokens=1, barred=[2], top_k=1))
    logits = row(8)
    logits[2] = 50
    changed = logits.copy()
    sampler.adjust(changed, wanted)
    assert sampler.pick(changed, wanted) != 2
    wanted.output = [5]
    assert not sampler.is_adjusted(wanted)
    changed = logits.copy()
    sampler.adjust(changed, wanted)
    assert sampler.pick(changed, wanted) == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("top_k", [1, 50])
def test_logits_without_a_number_give_no_token(bad, top_k) -> None:
    logits = row(2)
    logits[17] = bad
    assert sampler.pick(logits, request(Sampling(top_k=top_k))) is None
    assert sampler.pick(np.full(N, -np.inf, np.float32), request(Sampling(top_k=top_k))) is None


def test_an_id_of_no_weight_is_never_drawn() -> None:
    weights = np.array([0, 1, 1, 0], np.float32)
    assert sampler._at(weights, 0.0) == 1
    assert sampler._at(weights, np.nextafter(1.0, 0)) == 2
    assert sampler._at(np.array([1.0, 0.0], np.float32), np.nextafter(1.0, 0)) == 0


# -- logprobs -------------------------------------------------------------------------


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    found: np.ndarray = x - x.max() - np.log(np.exp(x - x.max()).sum())
    return found


def test_output_logprobs_are_those_of_the_temperature() -> None:
    logits = row(4)
    wanted = request(Sampling(temperature=0.5, top_k=3), LogprobWish(3, 4, [8, 0, 8]))
    logprobs.add_output(logits, wanted, 8)
    expected = log_softmax(logits / 0.5)
    family = wanted.output_lp
    assert family is not None
    assert family.idx == [8] and family.ids_idx == [[8, 0, 8]]
    assert family.val == pytest.approx([expected[8]], abs=1e-5)
    assert family.ids_val[0] == pytest.approx([expected[8], expected[0], expected[8]], abs=1e-5)
    order = np.argsort(-expected)[:4].tolist()
    assert family.top_idx == [order]
    assert family.top_val[0] == pytest.approx(expected[order].tolist(), abs=1e-5)


def test_input_logprobs_begin_without_a_value() -> None:
    wanted = request(Sampling(temperature=0.1), LogprobWish(1, 1, [5]))
    logprobs.open_input(wanted)
    logprobs.add_input(row(4), wanted, 2)
    family = wanted.input_lp
    assert family is not None
    expected = log_softmax(row(4))
    assert family.idx == [2, 3]
    assert family.val[0] is None and family.val[1] == pytest.approx(expected[3], abs=1e-5)
    assert family.top_idx == [None, [int(expected.argmax())]]
    assert family.ids_val[0] is None
    assert family.ids_val[1] == pytest.approx([expected[5]], abs=1e-5)


def test_nothing_is_collected_that_was_not_asked_for() -> None:
    wanted = request(Sampling(), LogprobWish(3, 0, None))
    logprobs.open_input(wanted)
    logprobs.add_output(row(4), wanted, 8)
    for family in (wanted.input_lp, wanted.output_lp):
        assert family is not None
        assert family.top_val == family.top_idx == family.ids_val == family.ids_idx == []
    assert wanted.input_lp is not None and wanted.input_lp.val == []
    logprobs.add_output(row(4), request(Sampling()), 8)


def test_a_probability_of_zero_stays_a_float32() -> None:
    logits = row(4)
    logits[6] = -np.inf
    wanted = request(Sampling(), LogprobWish(3, 0, [6]))
    logprobs.add_output(logits, wanted, 6)
    assert wanted.output_lp is not None
    assert wanted.output_lp.val == [float(np.finfo(np.float32).min)]
