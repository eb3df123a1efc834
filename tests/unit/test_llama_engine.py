"""The engine behind the boundary: greedy answers, batching, frames, logprobs, hidden states."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.llama_driver import Driver, load_tiny
from tests.llama_models import TinyModel
from tpc_server.engines.llama.engine import LlamaEngine
from tpc_server.engines.llama.errors import EngineError

GREEDY: dict[str, Any] = {"top_k": 1, "ignore_eos": True}
PROMPTS = [np.random.default_rng(k).integers(3, 80, 1 + (k * 7) % 23).tolist() for k in range(12)]


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return TinyModel(21)


@pytest.fixture(scope="module")
def answers(tiny) -> list[list[int]]:
    """What the reference says to each prompt, 12 ids."""
    return [tiny.greedy(prompt, 12) for prompt in PROMPTS]


def test_facts_of_the_model(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    assert (engine.vocab_size, engine.context_len, engine.model_name) == (80, 128, "tiny")
    assert (engine.bos_id, engine.eos_ids, engine.chat_template) == (1, (2,), None)
    assert load_tiny(tiny, tmp_path, context_len=50).context_len == 50
    for wrong in (129, 1, 0):
        with pytest.raises(EngineError, match="context_len: "):
            load_tiny(tiny, tmp_path, context_len=wrong)
    with pytest.raises(EngineError, match="kv_tokens"):
        load_tiny(tiny, tmp_path, kv_tokens=1)


def test_a_request_alone_says_what_the_reference_says(tiny, answers, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        driver = Driver()
        driver.generate("r", prompt, max_new_tokens=12, **GREEDY)
        driver.run(engine)
        (row,) = driver.rows("r")
        assert row["ids"] == answer
        assert row["finish"] == {"type": "length", "length": 12}
        assert row["weights"] == [["default", 0, 12]]
        assert row["latency"] >= 0


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_does_not_depend_on_what_runs_beside_it(seed, tiny, answers, tmp_path) -> None:
    """Any arrival order, chunk size, batch limit, cache, and with others aborted in between."""
    rng = random.Random(seed)
    engine = load_tiny(
        tiny,
        tmp_path,
        max_running_requests=rng.choice((1, 2, 5, 16)),
        prefill_tokens=rng.choice((1, 3, 16, 256)),
        prefill_tokens_busy=rng.choice((1, 2, 5, 64)),
        prefix_cache=rng.random() < 0.7,
        kv_tokens=rng.choice((None, 128, 150)),
    )
    driver = Driver()
    arrivals: dict[int, list[int]] = {}
    for k in range(len(PROMPTS)):
        arrivals.setdefault(rng.randrange(25), []).append(k)
    doomed = set(rng.sample(range(len(PROMPTS)), 3))

    def act(look: int) -> None:
        for k in arrivals.get(look, ()):
            driver.generate(
                f"{k}.", PROMPTS[k], max_new_tokens=12, stream=bool(rng.random() < 0.5), **GREEDY
            )
        for k in doomed:
            if rng.random() < 0.05:
                driver.abort(f"{k}.")

    for look in range(40):
        driver.at[look] = partial(act, look)
    driver.run(engine)
    for k, answer in enumerate(answers):
        finish = driver.finish(f"{k}.")
        ids = driver.ids(f"{k}.")
        if finish["type"] == "abort":
            assert k in doomed
            assert ids == answer[: len(ids)]
        else:
            assert ids == answer, f"seed {seed}, request {k}"
    stats = engine.stats()
    assert stats["running"] == stats["waiting"] == 0
    assert engine._cache.promised == 0


def test_a_seed_draws_the_same_alone_and_in_company(tiny, tmp_path) -> None:
    def draw(others: int) -> list[int]:
        engine = load_tiny(tiny, tmp_path, prefix_cache=False)
        driver = Driver()
        for k in range(others):
            driver.generate(f"o{k}", PROMPTS[k], max_new_tokens=30, ignore_eos=True)
        driver.generate(
            "r", PROMPTS[11], max_new_tokens=15, temperature=1.5, top_p=0.95, sampling_seed=7,
            ignore_eos=True,
        )  # fmt: skip
        driver.run(engine)
        return driver.ids("r")

    alone = draw(0)
    assert len(alone) == 15
    assert draw(1) == draw(6) == alone


def test_requests_without_a_seed_differ(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    driver = Driver()
    for k in range(4):
        driver.generate(f"r{k}", PROMPTS[1], max_new_tokens=20, temperature=2.0, ignore_eos=True)
    driver.run(engine)
    assert len({tuple(driver.ids(f"r{k}")) for k in range(4)}) > 1


def test_streams_get_a_row_every_step_and_intervals_are_kept(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    driver = Driver()
    driver.generate("every", PROMPTS[0], max_new_tokens=7, stream=True, **GREEDY)
    driver.generate("third", PROMPTS[1], max_new_tokens=8, stream=True, stream_interval=3, **GREEDY)
    driver.run(engine)
    assert [len(row["ids"]) for row in driver.rows("every")] == [1] * 7
    assert [len(row["ids"]) for row in driver.rows("third")] == [1, 3, 3, 1]
    for rid in ("every", "third"):
        rows = driver.rows(rid)
        assert [row["finish"] for row in rows[:-1]] == [None] * (len(rows) - 1)
        assert all(row["weights"] is None for row in rows[:-1])
        assert rows[-1]["latency"] is None, "only the frontend sees a stream's first token"
    # Both streams' tokens of a step ride in one frame.
    assert max(len(frame) for frame in driver.frames) == 2
    by_default = load_tiny(tiny, tmp_path, stream_interval=4)
    driver = Driver()
    driver.generate("r", PROMPTS[0], max_new_tokens=7, stream=True, **GREEDY)
    driver.run(by_default)
    assert [len(row["ids"]) for row in driver.rows("r")] == [1, 4, 2]


def test_a_request_that_does_not_stream_gives_a_sign_of_life(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    driver = Driver()
    driver.generate("r", PROMPTS[0], max_new_tokens=110, **GREEDY)
    driver.run(engine)
    rows = driver.rows("r")
    assert [len(row["ids"]) for row in rows] == [50, 50, 10]
    assert [row["finish"] for row in rows] == [None, None, {"type": "length", "length": 110}]


def test_length_limits(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    driver = Driver()
    driver.generate("none", PROMPTS[0], max_new_tokens=0, **GREEDY)
    driver.generate("open", PROMPTS[1], max_new_tokens=None, **GREEDY)
    driver.generate("clamped", PROMPTS[1], max_new_tokens=10_000, **GREEDY)
    driver.generate("full", [5] * 127, max_new_tokens=1, **GREEDY)
    driver.generate("over", [5] * 128, max_new_tokens=1, **GREEDY)
    driver.run(engine)
    (row,) = driver.rows("none")
    assert row["ids"] == [] and row["finish"] == {"type": "length", "length": 0}
    room = 128 - len(PROMPTS[1])
    for rid in ("open", "clamped"):
        assert driver.finish(rid) == {"type": "length", "length": room}
        assert len(driver.ids(rid)) == room
    assert len(driver.ids("full")) == 1
    assert driver.finish("over") == {
        "type": "abort",
        "message": "The input (128 tokens) is longer than the model's context length (128 tokens).",
        "status_code": 400,
        "err_type": "BadRequestError",
    }


def test_eos_ends_an_answer_unless_ignored(tmp_path) -> None:
    tiny = TinyModel(21)
    prompt = PROMPTS[3]
    answer = tiny.greedy(prompt, 12)
    tiny.eos = next(t for k, t in enumerate(answer) if k > 2 and t not in answer[:k])
    cut = answer.index(tiny.eos) + 1
    engine = load_tiny(tiny, tmp_path)
    driver = Driver()
    driver.generate("eos", prompt, max_new_tokens=12, top_k=1)
    driver.generate("ignored", prompt, max_new_tokens=12, top_k=1, ignore_eos=True)
    driver.generate("asked", prompt, max_new_tokens=12, top_k=1, stop_token_ids=[answer[0]])
    driver.generate(
        "asked-ignored", prompt, max_new_tokens=12, stop_token_ids=[answer[0]], **GREEDY
    )
    driver.generate("late", prompt, max_new_tokens=12, top_k=1, min_new_tokens=cut)
    driver.generate("both", prompt, max_new_tokens=cut, top_k=1)
    driver.run(engine)
    assert driver.ids("eos") == answer[:cut], "the stop id itself belongs to the answer"
    assert driver.finish("eos") == {"type": "stop", "matched": tiny.eos}
    assert driver.ids("ignored") == driver.ids("asked-ignored") == answer
    assert driver.ids("asked") == answer[:1]
    assert driver.finish("asked") == {"type": "stop", "matched": answer[0]}
    assert driver.ids("late")[: cut - 1] == answer[: cut - 1]
    assert tiny.eos not in driver.ids("late")[:cut]
    assert driver.finish("both") == {"type": "stop", "matched": tiny.eos}, "a stop beats the length"


def test_a_prefix_is_computed_once(tiny, answers, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    prompt = PROMPTS[3]
    cached = []
    for _ in range(2):
        driver = Driver()
        driver.generate("r", prompt, max_new_tokens=12, **GREEDY)
        driver.run(engine)
        assert driver.ids("r") == answers[3]
        cached.append(driver.rows("r")[0]["counts"])
    n = len(prompt)
    assert cached == [[n, 0, 0], [n, n - 1, 0]]
    # The answer is a prefix too: a conversation that goes on.
    driver = Driver()
    longer = prompt + answers[3] + [4, 5]
    driver.generate("r", longer, max_new_tokens=3, **GREEDY)
    driver.run(engine)
    assert driver.rows("r")[0]["counts"] == [n + 14, n + 11, 0]
    assert driver.ids("r") == tiny.greedy(longer, 3)
    assert engine.stats()["cached_tokens"] == 2 * n + 10


def test_requests_that_arrive_together_share_a_long_prefix(tiny, tmp_path) -> None:
    """Samples of one prompt: the later ones start once the first has computed it."""
    prompt = np.random.default_rng(5).integers(3, 80, 100).tolist()
    engine = load_tiny(tiny, tmp_path, prefill_tokens=64)
    driver = Driver()
    for k in range(4):
        driver.generate(f"{k}", prompt, max_new_tokens=5, **GREEDY)
    driver.run(engine)
    assert [driver.ids(f"{k}") for k in range(4)] == [tiny.greedy(prompt, 5)] * 4
    assert [driver.rows(f"{k}")[0]["counts"][1] for k in range(4)] == [0, 99, 99, 99]


def long_prompts(count: int, length: int = 100) -> list[list[int]]:
    return [np.random.default_rng(100 + k).integers(3, 80, length).tolist() for k in range(count)]


@pytest.mark.parametrize("beside", ["nothing", "a stream", "long prompts", "samples"])
def test_a_short_prompt_passes_a_long_one(beside, tiny, tmp_path) -> None:
    """Its first token comes within a few steps, whatever is being computed or waits before it."""
    engine = load_tiny(tiny, tmp_path, prefill_tokens=8, prefill_tokens_busy=4)
    driver = Driver()
    longs = long_prompts(3 if beside == "long prompts" else 1)
    if beside == "samples":
        longs *= 3
    if beside == "a stream":
        driver.generate("s", [5], max_new_tokens=100, stream=True, **GREEDY)
    for k, prompt in enumerate(longs):
        driver.generate(f"long{k}", prompt, max_new_tokens=5, **GREEDY)
    came: list[int] = []
    driver.at[2] = lambda: driver.generate("short", [7, 8], max_new_tokens=1, **GREEDY)
    for look in range(3, 60):
        driver.at[look] = lambda: came.append(len(driver.rows("short")))
    driver.run(engine)
    assert came.index(1) <= 3, "steps from its arrival to its answer"
    assert driver.ids("short") == tiny.greedy([7, 8], 1)
    for k, prompt in enumerate(longs):
        assert driver.ids(f"long{k}") == tiny.greedy(prompt, 5)


def test_a_long_prompt_is_not_forgotten_for_short_ones(tiny, tmp_path) -> None:
    """As many short prompts at every step as would fill it: the long one gets its half."""
    engine = load_tiny(tiny, tmp_path, prefill_tokens=8, prefill_tokens_busy=8, prefix_cache=False)
    driver = Driver()
    (prompt,) = long_prompts(1)
    driver.generate("long", prompt, max_new_tokens=1, **GREEDY)
    shorts = long_prompts(120, 8)
    answered: list[int] = []

    def arrive(k: int) -> None:
        answered.append(len(driver.rows("long")))
        driver.generate(f"s{k}", shorts[k], max_new_tokens=1, **GREEDY)

    for look in range(1, 120):
        driver.at[look] = partial(arrive, look)
    driver.run(engine)
    assert answered.index(1) <= 100 // 4 + 3
    assert driver.ids("long") == tiny.greedy(prompt, 1)


# -- logprobs and hidden states ------------------------------------------------------------


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


@pytest.mark.parametrize("chunk", [2, 256])
@pytest.mark.parametrize("start", [-1, 0, 1, 5, 9, 10])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_all_families(stream, start, chunk, tiny, tmp_path) -> None:
    prompt = np.random.default_rng(9).integers(3, 80, 10).tolist()
    engine = load_tiny(tiny, tmp_path, prefill_tokens=chunk)
    driver = Driver()
    driver.generate(
        "r", prompt, max_new_tokens=4, return_logprob=True, logprob_start_len=start,
        top_logprobs_num=3, token_ids_logprob=[9, 4], stream=stream, **GREEDY,
    )  # fmt: skip
    driver.generate("plain", PROMPTS[1], max_new_tokens=4, stream=stream, **GREEDY)
    driver.run(engine)
    rows = driver.rows("r")
    ids = driver.ids("r")
    assert ids == tiny.greedy(prompt, 4)
    exact = log_softmax(tiny.logits(prompt + ids))
    first = rows[0]
    begin = len(prompt) if start < 0 else start
    assert first["in"][1] == prompt[begin:]
    values = first["in"][0]
    if begin < len(prompt):
        assert values[0] is None, "nothing came before: NaN on the wire"
        expected = [exact[k - 1, prompt[k]] for k in range(begin + 1, len(prompt))]
        assert values[1:] == pytest.approx(expected, abs=2e-4)
        assert first["in_top"][0] is None and first["in_ids"][0] is None
    for k in range(begin + 1, len(prompt)):
        check_position(first, "in", k - begin, exact[k - 1])
    for row in rows[1:]:
        assert row["in"] == ([], []) and row["in_top"] == [] and row["in_ids"] == []
    out = [pair for row in rows for pair in zip(*row["out"], strict=True)]
    assert [token for _, token in out] == ids
    expected = [exact[len(prompt) - 1 + k, token] for k, token in enumerate(ids)]
    assert [value for value, _ in out] == pytest.approx(expected, abs=2e-4)
    k = 0
    for row in rows:
        assert len(row["out"][0]) == len(row["ids"])
        for at in range(len(row["ids"])):
            check_position(row, "out", at, exact[len(prompt) - 1 + k])
            k += 1
    for row in driver.rows("plain"):
        assert row["out"] == ([], []) == row["in"] and row["out_top"] == []


def check_position(row, side: str, at: int, exact: np.ndarray) -> None:
    values, ids = row[f"{side}_top"][at]
    assert ids == np.argsort(-exact)[:3].tolist()
    assert values == pytest.approx(exact[ids].tolist(), abs=2e-4)
    values, ids = row[f"{side}_ids"][at]
    assert ids == [9, 4]
    assert values == pytest.approx(exact[[9, 4]].tolist(), abs=2e-4)


def test_a_prompt_is_scored_without_generating(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path)
    for _ in range(2):  # the second time its prefix is in the cache
        driver = Driver()
        driver.generate(
            "r", PROMPTS[3], max_new_tokens=0, return_logprob=True, logprob_start_len=0, **GREEDY
        )
        driver.run(engine)
        (row,) = driver.rows("r")
        assert row["ids"] == [] and row["out"] == ([], [])
        assert row["in"][1] == PROMPTS[3] and len(row["in"][0]) == len(PROMPTS[3])
        assert row["counts"][1] == 0, "positions that are scored cannot come from the cache"


def test_hidden_states(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path, prefill_tokens=3, prefix_cache=False)
    prompt = PROMPTS[2]
    driver = Driver()
    driver.generate("all", prompt, max_new_tokens=3, return_hidden_states=True, **GREEDY)
    driver.generate("last", prompt, max_new_tokens=3, return_hidden_states="last", **GREEDY)
    driver.generate(
        "stream", prompt, max_new_tokens=3, stream=True, return_hidden_states=True, **GREEDY
    )
    driver.generate("none", prompt, max_new_tokens=3, **GREEDY)
    driver.run(engine)
    whole = driver.rows("all")[0]["hidden"]
    dim = tiny.dim
    assert [len(row) for row in whole] == [len(prompt) * dim, dim, dim]
    # A state times the output matrix are the logits: those of the last token and all before it.
    ids = driver.ids("all")
    exact = tiny.logits(prompt + ids[:-1])
    states = np.concatenate([np.array(row, np.float64).reshape(-1, dim) for row in whole])
    assert np.abs(states @ tiny.w["head"].T.astype(np.float64) - exact).max() < 2e-4
    (last,) = driver.rows("last")[0]["hidden"]
    assert last == pytest.approx(whole[-1], abs=1e-4)
    sizes = [[len(entry) for entry in row["hidden"]] for row in driver.rows("stream")]
    assert sizes == [[len(prompt) * dim], [len(prompt) * dim, dim], [len(prompt) * dim, dim, dim]]
    assert driver.rows("none")[0]["hidden"] == []


def test_statistics_are_published(tiny, tmp_path) -> None:
    engine = load_tiny(tiny, tmp_path, max_running_requests=3, kv_tokens=200)
    before = engine.stats()
    assert before["generated_tokens"] == before["steps"] == 0
    assert before["kv_budget_tokens"] == 200 and before["max_running_requests"] == 3
    driver = Driver()
    driver.generate("r", PROMPTS[2], max_new_tokens=5, **GREEDY)
    driver.run(engine)
    after = engine.stats()
    assert before["generated_tokens"] == 0, "a snapshot does not change"
    assert after["generated_tokens"] == 5 and after["prompt_tokens"] == len(PROMPTS[2])
    assert after["failures"] == 0 and after["kv_bytes"] > 0


def test_the_default_log_goes_to_stderr(tiny, tmp_path, capfd) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    from tpc_server.engines.llama.settings import LlamaSettings

    engine = LlamaEngine.load(path, LlamaSettings(cache_dir=tmp_path), lambda text, done: None)
    driver = Driver()
    driver.send(b"\xc1")
    driver.run(engine)
    assert "llama engine: a message that names no request was dropped" in capfd.readouterr().err
