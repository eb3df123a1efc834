"""Stop windows: tokens of stop strings, longest match of patterns."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest

from tests import text_samples as samples
from tpc_server.text.stops import COUNTED_CHARS, UNBOUNDED, count_stop_tokens, stop_regex_max_len

TOKENIZER = samples.tokenizer(
    samples.byte_level_dict() | {"pre_tokenizer": samples.BYTE_LEVEL | {"add_prefix_space": False}}
)


def test_stops_are_counted_in_tokens_and_the_longest_counts():
    assert count_stop_tokens(TOKENIZER, []) == 0
    assert count_stop_tokens(TOKENIZER, ["ab"]) == 2
    assert count_stop_tokens(TOKENIZER, ["a", "🎉", "abc"]) == 4
    assert count_stop_tokens(TOKENIZER, ["</s>"]) == 1  # a special token's text is one token


def test_no_special_tokens_are_added():
    data = samples.byte_level_dict() | {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [272], "tokens": ["<s>"]}},
        }
    }
    real = samples.tokenizer(data)
    assert len(real.encode("ab").ids) == 3
    assert count_stop_tokens(real, ["ab"]) == 2


def test_what_does_not_encode_counts_as_its_bytes():
    class Broken:
        def encode(self, sequence: str, *, add_special_tokens: bool):
            raise ValueError("no")

    assert count_stop_tokens(Broken(), ["é世"]) == 5
    assert count_stop_tokens(TOKENIZER, ["\ud800"]) == 3
    assert count_stop_tokens(None, ["é世", "a"]) == 5


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("abc", 3),
        ("a|bcd", 3),
        ("[0-9]{2,5}x", 6),
        ("^end$", 3),
        ("(foo|ba){3}", 9),
        (r"\bx\b", 1),
        ("ab+", 1 + UNBOUNDED),
        ("(?=ab)c", UNBOUNDED + 1),
        ("(?<!ab)cd", UNBOUNDED + 2),
        (r"(a)\1b", UNBOUNDED + 2),
        (r"(a)?(?(1)b|c)", UNBOUNDED + 1),
        ("", 0),
        ("[^a].", 2),
        ("a{2,3}?", 3),
        ("(?i:ab)", 2),
        ("(?:a(?:bc)?){0,4}", 12),
    ],
)
def test_longest_match_of_a_pattern(pattern, length):
    assert stop_regex_max_len([pattern]) == length


def test_longest_of_several_patterns_and_none():
    assert stop_regex_max_len([]) == 0
    assert stop_regex_max_len(["a", "bcd", "ef"]) == 3


def test_newer_syntax_where_this_python_has_it():
    assert stop_regex_max_len(["(?>ab)c", "a{2,3}+"]) == 3


@pytest.mark.parametrize(
    "pattern", ["(", "[", "a{2,1}", "(?<=a+)b", "*", "(?P<a>x)(?P<a>y)", r"\2"]
)
def test_an_invalid_pattern_is_a_value_error(pattern):
    with pytest.raises(ValueError, match="not valid"):
        stop_regex_max_len([pattern])


def test_no_match_is_longer_than_said():
    rng = random.Random(20261130)
    parts = ["a", "b", ".", "[ab]", "(a|bb)", "a?", "b{1,3}", "(ab){2}", "a{0,2}?", "^", r"\b"]
    for _ in range(300):
        pattern = "".join(rng.choices(parts, k=rng.randrange(1, 6)))
        longest = stop_regex_max_len([pattern])
        assert longest < UNBOUNDED
        for _ in range(20):
            text = "".join(rng.choices("ab", k=20))
            for match in re.finditer(pattern, text):
                assert len(match.group()) <= longest, (pattern, text)


def test_patterns_of_clients_warn_nobody():
    done = subprocess.run(
        [sys.executable, "-c",
         "from tpc_server.text.stops import stop_regex_max_len as f;"
         "f(['[[a]', '[a-c--]', '[a&&b]', '[a||b]', '[a~~b]'])"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_a_long_stop_is_not_tokenized():
    class Never:
        def encode(self, sequence: str, *, add_special_tokens: bool):
            raise AssertionError("encoded")

    assert count_stop_tokens(Never(), ["é" * (COUNTED_CHARS + 1)]) == 2 * (COUNTED_CHARS + 1)
