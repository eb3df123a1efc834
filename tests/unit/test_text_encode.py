"""Encoder, and long texts on a helper thread."""

from __future__ import annotations

import json
import os
import select
import struct
import time

import pytest

from tests import text_samples as samples
from tpc_server.text.encode import EncodeHelper, Encoder, PromptEncoder

JSON = json.dumps(
    samples.byte_level_dict() | {"pre_tokenizer": samples.BYTE_LEVEL | {"add_prefix_space": False}}
)


@pytest.fixture(scope="module")
def encoder():
    return Encoder(JSON)


@pytest.fixture
def helper(encoder):
    helper = EncodeHelper(encoder)
    yield helper
    helper.close()


def wait(helper: EncodeHelper, count: int) -> list:
    """Results as a reactor would take them: only when the descriptor says so."""
    found: list = []
    end = time.monotonic() + 30
    while len(found) < count:
        readable, _, _ = select.select([helper.fileno()], [], [], max(end - time.monotonic(), 0))
        assert readable, "no result within 30 s"
        found += helper.results()
    return found


def as_bytes(encoder: Encoder, text: str) -> bytes:
    return PromptEncoder(encoder, None, None).encode_bytes(text)


def test_ids_as_list_and_as_bytes(encoder):
    ids = encoder.encode("hé")
    assert ids == [0x68, 0xC3, 0xA9]
    prompts = PromptEncoder(encoder, None, None)
    assert prompts.encode_bytes("hé") == struct.pack("=3q", *ids)
    assert prompts.encode_bytes("") == b""


def test_encoding_starts_no_threads_of_its_own(encoder):
    before = os.listdir("/proc/self/task")
    encoder.encode("some text " * 1000)
    assert os.listdir("/proc/self/task") == before
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_decode_passes_over_ids_that_cannot_be(encoder):
    assert encoder.decode([-1, 0x68, 1 << 40, 10_000, 0x69]) == "hi"
    special = encoder.tokenizer.token_to_id("</s>")
    assert encoder.decode([0x68, special]) == "h"
    assert encoder.decode([0x68, special], False) == "h</s>"


def test_results_come_in_order_with_their_tags(helper, encoder):
    texts = [f"text number {n} " * (n % 7) for n in range(50)]
    for n, text in enumerate(texts):
        helper.submit(("tag", n), text)
    results = wait(helper, len(texts))
    assert [tag for tag, _, _ in results] == [("tag", n) for n in range(50)]
    assert [ids for _, ids, _ in results] == [as_bytes(encoder, text) for text in texts]
    assert all(error is None for _, _, error in results)
    assert helper.results() == []
    assert select.select([helper.fileno()], [], [], 0)[0] == []


def test_a_text_that_does_not_encode_fails_alone(helper, encoder):
    helper.submit(1, "\ud800")
    helper.submit(2, "a")
    first, second = wait(helper, 2)
    assert (first[0], first[1]) == (1, None)
    assert isinstance(first[2], Exception)
    assert second == (2, as_bytes(encoder, "a"), None)


def test_the_core_goes_on_while_a_long_text_is_encoded(helper):
    """The core's turns meanwhile; the bound is ten times the promise, for busy machines."""
    text = ("It was the best of times, it was the worst of times; 世界. " * 5_000)[:250_000]
    poller = select.epoll()
    poller.register(helper.fileno(), select.EPOLLIN)
    helper.submit("long", text)
    turns = 0
    longest = 0.0
    last = time.monotonic()
    end = last + 50
    results: list = []
    while not results:
        assert last < end
        poller.poll(0.001)
        now = time.monotonic()
        longest = max(longest, now - last)
        last = now
        turns += 1
        results = helper.results()
    poller.close()
    assert results[0][2] is None
    assert len(results[0][1]) >= 8 * 250_000
    assert turns > 20
    assert longest < 0.2
