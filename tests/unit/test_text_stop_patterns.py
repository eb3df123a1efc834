"""Admission of stop patterns: what is refused, why, and that what is taken runs fast."""

from __future__ import annotations

import random
import re

import pytest

from tpc_server.text.stop_patterns import (
    MAX_PATTERN_BYTES,
    check_stop_regex,
)

TAKEN = [
    "abc",
    "",
    "[0-9]+;",
    r"\d{1,3}(,\d{3})*\.",
    "([a-z]+ )*x",
    r"(\d{1,3},)+",
    "foo.*bar",
    "(?i:a+)b+",
    "(.a|.b)+",
    r"[\w-]+@[a-z]+",
    r"\s+\S+",
    r"(?:.|\n)*?end",
    "(ab?){100}",
    r"^\s*$",
    r"(?=ab)a",
    r"(a)\1",
    r"(?:[^\n]*\n){1,2}",
    "(?:ab|cd)*ef",
    "a{3,}b",
    "(?>a+)b",
    "a*+b",
    r"(\w|\d)+$",
    "(?i:(a|A)*)",
    ".{0,200}end",
    ".{0,512}x",
    r"x[^y]{0,512}y[^z]{0,512}z",
    "a{0,30}a{0,30}b",
    r"foo(.*?)bar",
    r"(?s:.*?)</think>",
    r"\b(?:yes|no|maybe)\b.{0,100}\.",
    r"(?:\w{1,8} ){0,50}end",
    "(?:a|ab|abc|abcd)x",
    "(http|https|ftp)://",
    r"\n\n?\n?",
]
TWO_WAYS = [
    "(a+)+",
    "(a*)*",
    "(?:a?a?)*",
    "(a|b*)*",
    "(a|ab|b)*c",
    "([a-z]+)*x",
    "(a|a)*?#",
    "(a?)*",
    "(a?){30}a",
    "(a|a){30}x",
    "(|){30}x",
    "(?:a(?:b?)?)+",
    "(ab|a|b){20}x",
    "(?:a|b|ab)*c",
    "x(?=(a+)+)",
    "(?:.*,)*",
    "((a|b)+|c)*",
    "(?:é|[^a])*",
]


@pytest.mark.parametrize("pattern", TAKEN)
def test_taken(pattern):
    check_stop_regex(pattern)


@pytest.mark.parametrize("pattern", TWO_WAYS)
def test_two_ways_inside_a_repeat(pattern):
    with pytest.raises(ValueError, match="in two ways"):
        check_stop_regex(pattern)


@pytest.mark.parametrize(
    "pattern", ["a*a*", ".*.*", r"\s*\s+x", "(?i:a+)A+", "x*" * 20, r"\w+\d*!"]
)
def test_two_endless_repeats_in_a_row(pattern):
    with pytest.raises(ValueError, match="in a row"):
        check_stop_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a" * (MAX_PATTERN_BYTES + 1), "257 bytes"),
        ("é" * 129, "258 bytes"),
        ("a{513}", "multiply to 513"),
        ("(a{30}){30}", "multiply to 900"),
        ("(a{2,30}b){2,30}", "multiply to 900"),
        ("a{600,}", "multiply to 600"),
        ("(a?){500}", "in two ways"),
        ("(?:[ab]{1,40}){12}", "in two ways"),
        ("(?:" + "|".join("abcdefghijklmnopqrst") * 4 + "x){400}", "multiply|too complex"),
        ("a?" * 20 + "a" * 20, "too many choices"),
        ("(?:|)" * 20 + "a", "too many choices"),
        (".*a.*b.*c.*d", "too many choices"),
        (".*a.*b", "too many choices"),
        (r"[^\0]{0,512}[^\1]{0,512}\0", "too many choices"),
        (r"[^\0]*x[^\1]*\0", "too many choices"),
        (".{0,40}.{0,40}x", "too many choices"),
        (r"(a{0,500})\1x", "too many choices"),
        (r"([^x]{0,200})\1x", "too many choices"),
        ("(?=.*a.*b)c", "too many choices"),
        (r"(a)(?:\1)*", "back-reference"),
        ("(", "not valid"),
        ("(" * 120 + ")" * 120, None),
    ],
)
def test_refused_with_the_reason(pattern, reason):
    if reason is None:
        check_stop_regex(pattern)
        return
    with pytest.raises(ValueError, match=reason):
        check_stop_regex(pattern)


def test_limits_are_inclusive():
    check_stop_regex("a" * MAX_PATTERN_BYTES)
    check_stop_regex("a{512}")
    check_stop_regex("(a{16}){32}")


def test_the_work_of_a_pattern_is_told():
    steps = check_stop_regex("a{0,30}a{0,30}b")
    assert 30 <= steps <= 90
    assert check_stop_regex("abc[0-9]+;") == 1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", TAKEN)
def test_what_is_taken_comes_back_from_texts_made_to_hurt(pattern):
    rng = random.Random(pattern)
    for alphabet in ("a", "ab", "a ", "1,", "a1 \n", "-a@"):
        text = "".join(rng.choices(alphabet, k=400)) + "!"
        re.search(pattern, text)
        re.search(pattern, alphabet[0] * 400 + "\x00")


@pytest.mark.timeout(60)
def test_random_patterns_that_are_taken_come_back():
    """Patterns of the dangerous parts: each that is admitted must finish (the time-out says so)."""
    rng = random.Random(20261130)
    atoms = ["a", "b", "[ab]", ".", r"\w", "(?:%s)", "(?:%s|%s)", "(%s|a)"]
    suffixes = ["", "", "*", "+", "?", "{1,3}", "*?"]

    def pattern(depth: int) -> str:
        parts = []
        for _ in range(rng.randrange(1, 4)):
            atom = rng.choice(atoms if depth else atoms[:5])
            while "%s" in atom:
                atom = atom.replace("%s", pattern(depth - 1), 1)
            parts.append(atom + rng.choice(suffixes))
        return "".join(parts)

    taken = refused = 0
    for _ in range(1500):
        made = pattern(2)
        try:
            check_stop_regex(made)
        except ValueError:
            refused += 1
            continue
        taken += 1
        for text in ("a" * 60 + "\x00", "ab" * 30 + "\x00", "b" * 60 + "\n"):
            re.search(made + "#", text)
    assert taken > 200
    assert refused > 200
