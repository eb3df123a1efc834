"""Prompts to ids with Hugging Face tokenizers. Owner: one core per Encoder and per EncodeHelper.

A short prompt is encoded in the core's own turn (tens of microseconds). A long one takes
milliseconds to seconds and goes to a helper thread of the core (`helper.py`), the rendering of a
long conversation too.

Everything goes through the batch call, with a batch of one: ``Tokenizer.encode`` keeps its thread
attached (a GIL build stands still, and a free-threaded one as soon as its collector wants to stop
the world), ``encode_batch_fast`` detaches, leaves offsets out and costs no more. It would spread a
batch over a thread pool of its own, which is switched off: threads are the core plan's business.
"""

from __future__ import annotations

import marshal
import os
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read at every call of a batch

from tokenizers import Tokenizer

from ..helper import Helper
from .chat_prompt import TEXT, ChatTemplateError, Prompt, exceeds, is_long

if TYPE_CHECKING:
    from .chat_source import ChatSource

#: Text of more characters than this belongs to a helper thread.
LONG_TEXT_CHARS: Final = 8 * 1024
#: Text of more than this belongs to the helper thread for huge ones.
HUGE_TEXT_CHARS: Final = 512 * 1024

#: Checks the characters of a text against the context, and may cut it.
Fit = Callable[[str], str]


class Encoder:
    """One tokenizer, built from the text of a tokenizer.json.

    ``tokenizer`` is safe to share between threads for encoding and decoding; nothing here ever
    sets truncation or padding on it.
    """

    __slots__ = ("_encode_batch", "tokenizer")

    def __init__(self, json_text: str) -> None:
        self.tokenizer: Any = Tokenizer.from_str(json_text)
        self._encode_batch: Any = self.tokenizer.encode_batch_fast

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a prompt, with the special tokens the model wants around a plain text."""
        encodings = self._encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encodings[0].ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; an id that no token can have (negative, or over 32 bits) has no text."""
        known = [i for i in ids if 0 <= i < 1 << 32]
        text: str = self.tokenizer.decode(known, skip_special_tokens=skip_special_tokens)
        return text


class PromptEncoder:
    """Encodes every kind of prompt, with chat templates of its own. Owner: one thread.

    ``fit`` is asked before a text is encoded that may be too long for the model whatever its
    tokens; it raises, or cuts.
    """

    __slots__ = ("_bos", "_encoder", "_fit", "_ids", "_prompt", "_source", "_template")

    def __init__(
        self, encoder: Encoder, source: ChatSource | None, bos_id: int | None, fit: Fit = str
    ) -> None:
        self._encoder = encoder
        self._fit = fit
        self._source = source
        self._bos = bos_id
        self._template: Any = None
        # The samples of one request share their conversation.
        self._prompt: Prompt = ""
        self._ids: list[int] = []

    def build(self) -> None:
        """Build the templates now instead of at the first conversation."""
        if self._source is None:
            raise ChatTemplateError("this model has no chat template")
        from .chat_template import ChatTemplate  # imports jinja2

        self._template = ChatTemplate(self._source)

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt. Raises ChatTemplateError, and what ``fit`` and the tokenizer raise."""
        if isinstance(prompt, str):
            if len(prompt) > LONG_TEXT_CHARS:
                prompt = self._fit(prompt)
            return self._encoder.encode(prompt)
        if prompt[0] == TEXT:
            return self._encoder.encode(self._fit(prompt[1]), prompt[2])
        if prompt is self._prompt:  # not equal: to a template 1 is not true, nor today yesterday
            return self._ids
        ids = self.conversation(prompt, False, self._fit)
        self._prompt, self._ids = prompt, ids
        return ids

    def conversation(self, prompt: tuple[Any, ...], special: bool, fit: Fit = str) -> list[int]:
        """Ids of a rendered conversation; `special`: with special tokens around it all the same."""
        if self._template is None:
            self.build()
        if is_long(prompt, LONG_TEXT_CHARS):
            # The template reads dicts of this thread: of another's, the first look into each costs
            # tens of microseconds, on a busy machine seconds a conversation (chat_prompt, CHAT).
            prompt = marshal.loads(marshal.dumps(prompt))
        text, behind = self._template.prompt(prompt)
        encoder = self._encoder
        ids = encoder.encode(fit(text), special)
        if behind:
            ids += encoder.encode(behind, False)
        # The template alone puts the BOS, some templates twice.
        while not special and len(ids) > 1 and ids[0] == ids[1] == self._bos:
            del ids[0]
        return ids

    def encode_bytes(self, prompt: Prompt) -> bytes:
        """Ids of a prompt as int64 in native order, as the scheduler takes them."""
        return array("q", self.encode(prompt)).tobytes()

    def forget(self) -> None:
        """Let go of the last conversation."""
        self._prompt, self._ids = "", []


class EncodeHelper(Helper):
    """Threads beside a core that encode long prompts; a result is ids as int64 bytes."""

    __slots__ = ("_prompts",)

    def __init__(
        self, encoder: Encoder, source: ChatSource | None = None, bos_id: int | None = None,
        fit: Fit = str,
    ) -> None:  # fmt: skip
        long, huge = [PromptEncoder(encoder, source, bos_id, fit) for _ in range(2)]  # a thread's
        self._prompts = (long, huge)
        super().__init__("tpc-encode", (long.forget, huge.forget))

    def submit(self, tag: Hashable, prompt: Prompt) -> None:
        """Queue one prompt; ``tag`` comes back with its ids."""
        huge = exceeds(prompt, HUGE_TEXT_CHARS)
        self.call(tag, huge, self._prompts[huge].encode_bytes, prompt)

    def converse(
        self, tag: Hashable, prompt: tuple[Any, ...], work: Callable[..., bytes], *args: Any
    ) -> None:
        """Queue `work(prompts, prompt, *args)`, with the encoder of the thread that does it."""
        huge = exceeds(prompt, HUGE_TEXT_CHARS)
        self.call(tag, huge, work, self._prompts[huge], prompt, *args)
