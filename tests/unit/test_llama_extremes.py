"""Values at the ends of their range, on the embedded engine: sane answers, bounded work."""

from __future__ import annotations

import pytest

from tests.llama_driver import Driver, ids_of, scripted
from tpc_server.engines.llama.intake import MAX_PATTERN_TOKENS
from tpc_server.engines.llama.request import Request, Sampling, StopRules
from tpc_server.engines.llama.stops import is_held_back

EVERY_ID = list(range(80))
GREEDY = {"top_k": 1, "ignore_eos": True}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({"logit_bias": {"9": 1e308}}, [9, 9, 9]),
        ({"logit_bias": {"9": 1e308, "8": -1e308}}, [9, 9, 9]),
        ({"logit_bias": {"9": 1e308}, "temperature": 1e-6}, [9, 9, 9]),
        ({"logit_bias": {"9": 1e308}, "repetition_penalty": 1e-300}, [9, 9, 9]),
        ({"logit_bias": {"5": -1e308}, **GREEDY}, None),
        ({"repetition_penalty": 1e-300, **GREEDY}, [5, 5, 6]),
        ({"repetition_penalty": 5e-324, "temperature": 1e-6}, [5, 5, 6]),
        ({"temperature": 1.7e308}, None),
        ({"temperature": 1e-6, "top_p": 5e-324, "min_p": 1.0}, [5, 5, 6]),
        ({"min_new_tokens": 2, "stop_token_ids": EVERY_ID, **GREEDY}, [5, 5, 6]),
        ({"min_new_tokens": 3, "stop_token_ids": EVERY_ID}, None),
        ({"min_new_tokens": 3, "stop_token_ids": [*EVERY_ID[:30], *EVERY_ID[31:]]}, [30, 30, 30]),
        ({"logit_bias": dict.fromkeys(map(str, EVERY_ID), -1e308), **GREEDY}, None),
        ({"logit_bias": dict.fromkeys(map(str, EVERY_ID), -1e308)}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("logprobs", [False, True])
def test_extreme_values_give_a_sane_answer(given, ids, logprobs, tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, 5, 6]})
    driver = Driver()
    wish = {"return_logprob": True, "top_logprobs_num": 3} if logprobs else {}
    driver.generate("r", [40], max_new_tokens=3, **{"ignore_eos": True, **given}, **wish)
    driver.run(engine)
    assert driver.finish("r") == {"type": "length", "length": 3}
    if ids is not None:
        assert driver.ids("r") == ids
    else:
        assert len(driver.ids("r")) == 3


@pytest.mark.parametrize("given", [{"top_k": 1}, {"temperature": 1e-6}], ids=str)
def test_where_every_id_ends_the_answer_the_likeliest_ends_it(given, tmp_path) -> None:
    engine = scripted(tmp_path, {40: [5, 6, 7]})
    driver = Driver()
    rules = {"min_new_tokens": 2, "stop_token_ids": EVERY_ID, "max_new_tokens": 3}
    driver.generate("r", [40], **rules, **given)
    driver.run(engine)
    assert driver.ids("r") == [5]
    assert driver.finish("r") == {"type": "stop", "matched": 5}


def test_a_pattern_without_an_end_looks_at_so_many_tokens_only(tmp_path) -> None:
    """Each step decodes the window: one that grows with the answer would cost its square."""
    seen: list[int] = []

    def decode(ids: list[int]) -> str:
        seen.append(len(ids))
        return "a" * len(ids)

    engine = scripted(tmp_path, {40: ids_of("a" * 2000)}, decode=decode)
    driver = Driver()
    driver.generate(
        "r", [40], stop_regex_strs=["b+"], stop_regex_max_len=1 << 30, max_new_tokens=1500,
        **GREEDY,
    )  # fmt: skip
    driver.run(engine)
    assert driver.finish("r") == {"type": "length", "length": 1500}
    assert max(seen) == 1 + MAX_PATTERN_TOKENS


@pytest.mark.parametrize(
    ("tail", "stops", "held"),
    [
        ("", ["ab"], False),
        ("xa", ["ab"], True),
        ("xab", ["ab"], True),
        ("xa\ufffd", ["ab"], True),
        ("x\ufffd", ["\ufffdb"], True),
        ("aab", ["aabaac"], True),
        ("aabaab", ["aabaac"], True),
        ("aaaa", ["aaaab"], True),
        ("b", ["ab", "ba"], True),
        ("\ufffd", ["a"], False),
        ("abc" * 500, ["x" * 4096], False),
    ],
)
def test_what_may_become_a_stop_is_held_back(tail, stops, held) -> None:
    request = Request("r", [1], Sampling(), StopRules(9, strings=stops), True)
    request.tail = tail
    assert is_held_back(request) is held
