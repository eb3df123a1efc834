"""Prompts on a helper thread: cancelled at once, too long ones refused by their characters."""

from __future__ import annotations

from types import SimpleNamespace

from tests.unit.test_message_order import job, tokenize  # noqa: F401  # a fixture
from tpc_server import frame
from tpc_server.contract.limits import Limits
from tpc_server.stages.tokenize import QUEUE_ABORT
from tpc_server.text.encode import EncodeHelper, PromptEncoder


class Idle(EncodeHelper):
    """Takes prompts and does nothing with them."""

    def __init__(self):
        self.given = {}

    def submit(self, tag, prompt):
        self.given[tag] = prompt

    def cancel(self, tag):
        return self.given.pop(tag, None) is not None


def long_job(rid, text="x" * 9000):
    _, _, _, *rest = job(rid)
    return (rid, text, None, *rest)


def test_a_cancelled_prompt_is_let_go_of_at_once(tokenize):  # noqa: F811
    stage = tokenize.stage
    stage._prompts, stage._helper = object(), Idle()
    stage.inbox.append((frame.T_JOB, 7, [long_job("a#1"), long_job("b#2")]))
    stage.poll(100)
    assert list(stage._helper.given) == ["a#1", "b#2"]
    assert all(kept[1][1] == "" for kept in stage._waiting.values())  # the helper's alone
    stage.inbox.append((frame.T_ABORT, "a#1"))
    stage.poll(100)
    assert list(stage._helper.given) == ["b#2"] and list(stage._waiting) == ["b#2"]
    assert tokenize.to_detok.messages() == [(frame.D_FAIL, "a#1", 0, QUEUE_ABORT)]
    assert not tokenize.aborts.posted  # the scheduler never heard of it


def test_a_text_that_cannot_fit_is_never_tokenized(tokenize):  # noqa: F811
    stage = tokenize.stage
    stage._limits = Limits(100, 256, token_chars=4)

    class Never:
        def encode(self, text, add_special_tokens=True):
            raise AssertionError("tokenized")

    stage._prompts = PromptEncoder(Never(), None, None, stage._fit)
    stage._make_helper = lambda: SimpleNamespace()  # none to be had
    stage._hand_over = lambda *job: False
    stage.inbox.append((frame.T_JOB, 7, [long_job("a#1")]))
    stage.poll(100)
    (told,) = tokenize.to_detok.messages()
    assert told[:3] == (frame.D_FAIL, "a#1", 400)
    assert "at least 2250 tokens) is longer than the model's context length (100" in told[3]
