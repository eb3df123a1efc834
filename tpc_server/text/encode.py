"""Prompts to ids with Hugging Face tokenizers. Owner: one core per Encoder and per EncodeHelper.

A short prompt is encoded in the core's own turn (tens of microseconds). A long one takes
milliseconds to seconds and goes to the core's helper thread, the rendering of a long conversation
too; where both share one CPU the helper's higher niceness lets the core run first.

Everything goes through the batch call, with a batch of one: ``Tokenizer.encode`` keeps its thread
attached (a GIL build stands still, and a free-threaded one as soon as its collector wants to stop
the world), ``encode_batch_fast`` detaches, leaves offsets out and costs no more. It would spread a
batch over a thread pool of its own, which is switched off: threads are the core plan's business.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read at every call of a batch

from tokenizers import Tokenizer

from .chat_prompt import TEXT, ChatTemplateError, Prompt

if TYPE_CHECKING:
    from .chat_source import ChatSource

#: Text of more characters than this belongs to a helper thread.
LONG_TEXT_CHARS: Final = 8 * 1024
#: Niceness of the helper thread above the core's.
_HELPER_NICE: Final = 10
_JOIN_S: Final = 5.0

#: (what was handed to ``submit``, ids as int64 little-endian bytes, the error if there was one)
Result = tuple[Any, bytes, Exception | None]
_Job = tuple[Any, Callable[..., bytes], tuple[Any, ...]]


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
    """Encodes every kind of prompt, with chat templates of its own. Owner: one thread."""

    __slots__ = ("_bos", "_encoder", "_ids", "_prompt", "_source", "_template")

    def __init__(self, encoder: Encoder, source: ChatSource | None, bos_id: int | None) -> None:
        self._encoder = encoder
        self._source = source
        self._bos = bos_id
        self._template: Any = None
        # The samples of one request share their conversation.
        self._prompt: Prompt = ""
        self._ids: list[int] = []

    def compile(self) -> None:
        """Compile the templates now (tens of milliseconds) instead of at the first conversation."""
        if self._source is None:
            raise ChatTemplateError("this model has no chat template")
        from .chat_template import ChatTemplate  # imports jinja2

        self._template = ChatTemplate(self._source)

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt. Raises ChatTemplateError, and what the tokenizer raises."""
        if isinstance(prompt, str):
            return self._encoder.encode(prompt)
        if prompt[0] == TEXT:
            return self._encoder.encode(prompt[1], prompt[2])
        if prompt == self._prompt:
            return self._ids
        if self._template is None:
            self.compile()
        text, behind = self._template.prompt(prompt)
        encoder = self._encoder
        ids = encoder.encode(text, False)
        if behind:
            ids += encoder.encode(behind, False)
        # The template alone puts the BOS, some templates twice.
        while len(ids) > 1 and ids[0] == ids[1] == self._bos:
            del ids[0]
        self._prompt, self._ids = prompt, ids
        return ids

    def encode_bytes(self, prompt: Prompt) -> bytes:
        """Ids of a prompt as int64 in native order, as the scheduler takes them."""
        return array("q", self.encode(prompt)).tobytes()

    def forget(self) -> None:
        """Let go of the last conversation."""
        self._prompt, self._ids = "", []


class EncodeHelper:
    """A thread beside a core that encodes long prompts, first come, first served.

    ``fileno`` becomes readable when results wait; then ``results`` takes them. All methods belong
    to the core; ``encoder`` is only read.
    """

    __slots__ = ("_done", "_encode", "_jobs", "_thread", "_wake")

    def __init__(
        self, encoder: Encoder, source: ChatSource | None = None, bos_id: int | None = None
    ) -> None:
        prompts = PromptEncoder(encoder, source, bos_id)  # the thread's
        self._encode = prompts.encode_bytes
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[Result] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=_serve,
            args=(prompts, self._jobs, self._done, self._wake),
            name="tpc-encode",
            daemon=True,
        )
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._wake

    def submit(self, tag: Hashable, prompt: Prompt) -> None:
        """Queue one prompt; ``tag`` comes back with its ids."""
        self._jobs.put((tag, self._encode, (prompt,)))

    def run(self, tag: Hashable, work: Callable[..., bytes], *args: Any) -> None:
        """Queue a call of any function; ``tag`` comes back with what it gives."""
        self._jobs.put((tag, work, args))

    def results(self) -> list[Result]:
        """All results that wait."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        taken: list[Result] = []
        done = self._done
        while done:
            taken.append(done.popleft())
        return taken

    def close(self) -> None:
        """End the thread after the text it is at; later jobs are dropped.

        A text of megabytes may outlast the wait: the descriptor then stays with the thread.
        """
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            os.close(self._wake)


def _serve(
    prompts: PromptEncoder, jobs: SimpleQueue[_Job | None], done: deque[Result], wake: int
) -> None:
    """The helper thread's whole life."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _HELPER_NICE)
    except OSError:
        pass  # a container may forbid it; the kernel then shares the CPU evenly
    while True:
        job = jobs.get()
        if job is None:
            return
        tag, work, args = job
        job = None  # the text is let go as soon as it is encoded
        try:
            result: Result = (tag, work(*args), None)
        except Exception as error:
            result = (tag, b"", error)
        del args
        if jobs.empty():
            prompts.forget()
        done.append(result)
        os.eventfd_write(wake, 1)
