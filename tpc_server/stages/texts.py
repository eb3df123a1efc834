"""Texts, ids, counts, parsers: the calls that the tokenize core answers. Owner: that core.

The functions are for its helper threads too: nothing in them is kept.
"""

from __future__ import annotations

from typing import Any, Final

from .. import frame
from ..contract.errors import BadRequest, anthropic_error_body, openai_error_body
from ..contract.limits import fit_text
from ..helper import Helper
from ..render import native
from ..text.chat_prompt import ChatTemplateError, is_long
from ..text.encode import (
    HUGE_TEXT_CHARS,
    LONG_TEXT_CHARS,
    EncodeHelper,
    Encoder,
    PromptEncoder,
)
from .base import Port

MOST_INLINE: Final = 64  # entries; more belong to the helper thread
LONG_IDS: Final = LONG_TEXT_CHARS // 4
LONG_PARSE_CHARS: Final = 8 * 1024


class TextCalls:
    """The part of the tokenize stage that has the tokenizer, and serves it as such."""

    def __init__(self, setup: Any) -> None:
        self.setup = setup
        self.helper_hook: Any = None  # registers the helper's descriptor with the reactor
        self._limits = setup.limits
        self._detok: dict[int, Port] = {}
        self._encoder = Encoder(setup.tokenizer_json) if setup.tokenizer_json else None
        self._prompts: PromptEncoder | None = None
        if self._encoder is not None:
            source = setup.chat_template
            self._prompts = PromptEncoder(self._encoder, source, setup.bos_id, self._fit)
            if setup.chat_template is not None:
                self._prompts.build()  # now, not in the middle of other requests' streams
        self._helper: Helper | None = None
        self._calls: dict[str, int] = {}  # detok core, by wire rid, of what the helper does
        self._counts: set[str] = set()  # rids whose errors are told in Anthropic's shape

    def _fit(self, text: str) -> str:
        """The text, cut where that is wished; raises BadRequest. Any thread."""
        return fit_text(text, self._limits)

    def _make_helper(self) -> Helper:
        helper = self._helper
        if helper is None:
            setup = self.setup
            if self._encoder is None:
                helper = Helper("tpc-parse")
            else:
                source = setup.chat_template
                helper = EncodeHelper(self._encoder, source, setup.bos_id, self._fit)
            self.helper_hook(helper.fileno(), self)
            self._helper = helper
        return helper

    def texts(
        self, core: int, rid: str, encode: bool, items: list[Any], is_list: bool, special: bool
    ) -> None:
        """/tokenize or /detokenize; what takes long is done by the helper."""
        encoder, prompts = self._encoder, self._prompts
        if encoder is None or prompts is None:
            error = openai_error_body("this server has no tokenizer", 400)
            self._detok[core].send((frame.D_RESULT, rid, 400, error))
            return
        most = self.setup.max_model_len
        if encode and items and type(items[0]) is tuple:
            self._converse(core, rid, items[0], conversation, special, most)
            return
        work = (encoder, encode, items, is_list, special, most)
        size = sum([len(item) for item in items])
        if len(items) > MOST_INLINE or size > (LONG_TEXT_CHARS if encode else LONG_IDS):
            try:
                self._make_helper().call(rid, size > HUGE_TEXT_CHARS, answer, *work)
                self._calls[rid] = core
                return
            except (OSError, RuntimeError):
                pass
        self._answer_now(core, rid, answer, *work)

    def count(self, core: int, rid: str, chat: tuple[Any, ...]) -> None:
        """/v1/messages/count_tokens; who calls has a tokenizer."""
        self._counts.add(rid)
        self._converse(core, rid, chat, counted)

    def _converse(self, core: int, rid: str, chat: tuple[Any, ...], work: Any, *args: Any) -> None:
        """`work(prompts, chat, *args)`; on the helper thread where it takes long."""
        if is_long(chat, LONG_TEXT_CHARS):
            try:
                helper = self._make_helper()
                assert isinstance(helper, EncodeHelper)
                helper.converse(rid, chat, work, *args)
                self._calls[rid] = core
                return
            except (OSError, RuntimeError):
                pass  # no descriptors, no threads
        self._answer_now(core, rid, work, self._prompts, chat, *args)

    def parse(self, core: int, rid: str, calls: bool, text: str, parser: str, wanted: Any) -> None:
        """/parse_function_call or /separate_reasoning."""
        if len(text) > LONG_PARSE_CHARS:
            try:
                huge = len(text) > HUGE_TEXT_CHARS
                self._make_helper().call(rid, huge, parsed, calls, text, parser, wanted)
                self._calls[rid] = core
                return
            except (OSError, RuntimeError):
                pass
        self.answer_call(core, rid, parsed(calls, text, parser, wanted), None)

    def _answer_now(self, core: int, rid: str, work: Any, *args: Any) -> None:
        try:
            self.answer_call(core, rid, work(*args), None)
        except Exception as error:
            self.answer_call(core, rid, b"", error)

    def answer_call(self, core: int, rid: str, body: bytes, error: Exception | None) -> None:
        """A call's result, to the stage that will write it."""
        self._calls.pop(rid, None)
        anthropic = rid in self._counts
        self._counts.discard(rid)
        status = 200
        if error is not None:
            status = 400
            message = refusal(error)
            body = anthropic_error_body(message) if anthropic else openai_error_body(message)
        self._detok[core].send((frame.D_RESULT, rid, status, body))

    def forget_call(self, rid: str) -> None:
        """Nobody waits for a call any more."""
        self._counts.discard(rid)
        if self._calls.pop(rid, None) is not None and self._helper is not None:
            self._helper.cancel(rid)

    def bury_calls(self, message: str) -> None:
        """A dying core: what the helper does has no taker."""
        for rid, at in self._calls.items():
            self._detok[at].send((frame.D_FAIL, rid, 503, message))
        self._calls.clear()
        self._counts.clear()


def refusal(error: Exception) -> str:
    """What the client is told of a prompt that has no ids."""
    if isinstance(error, ChatTemplateError | BadRequest):
        return str(error)
    return f"the text could not be tokenized: {error}"


def answer(
    encoder: Encoder, encode: bool, items: list[Any], is_list: bool, special: bool, max_len: int
) -> bytes:
    """Body of the answer: ids and counts of texts, or the texts of ids."""
    if encode:
        ids = [encoder.encode(text, special) for text in items]
        counts = [len(one) for one in ids]
        return native.to_json(
            {
                "tokens": ids if is_list else ids[0],
                "count": counts if is_list else counts[0],
                "max_model_len": max_len,
            }
        )
    texts = [encoder.decode(one, special) for one in items]
    return native.to_json({"text": texts if is_list else texts[0]})


def conversation(
    prompts: PromptEncoder, chat: tuple[Any, ...], special: bool, max_len: int
) -> bytes:
    """Body of the answer: ids of a rendered conversation."""
    ids = prompts.conversation(chat, special)
    return native.to_json({"tokens": ids, "count": len(ids), "max_model_len": max_len})


def counted(prompts: PromptEncoder, chat: tuple[Any, ...]) -> bytes:
    """Body of the answer: how many ids a rendered conversation has."""
    return b'{"input_tokens":%d}' % len(prompts.conversation(chat, False))


def parsed(calls: bool, text: str, parser: str, wanted: Any) -> bytes:
    """Body of the answer: the calls in a text, or its reasoning."""
    from ..parsers import answers  # few servers need it

    if calls:
        return native.to_json(answers.function_calls(text, parser, wanted))
    return native.to_json(answers.separated(text, parser, wanted))
