"""Records of live requests on the core that detokenizes them. Owner: the detok stage's core.

One connection has at most one `Group` in flight: the answer to one HTTP request, made of one
`Stream` per item (a batch's prompts times `n`). Records are acyclic once they have ended.
"""

from __future__ import annotations

from typing import Any, Final

# What a group answers to. Those up to COMPLETION generate for a client.
NATIVE: Final = 0
CHAT: Final = 1
MESSAGES: Final = 2
COMPLETION: Final = 3
HEALTH: Final = 4
WARMUP: Final = 5
CONTROL: Final = 6

# First words of what groups of CONTROL are about whose routes tell errors otherwise than natively.
TEXTS: Final = "texts"  # /tokenize, /detokenize, the parsers
COUNT: Final = "count"  # /v1/messages/count_tokens
LOADS: Final = "loads"

# How the step loop may treat a plain row of a stream.
SLOW: Final = 0
INCREMENTAL: Final = 1
CUMULATIVE: Final = 2
UNARY: Final = 3
DELTA: Final = 4  # OpenAI: the new text between two pieces that stay the same

# Positions in `Stream.hot`, what the step loop needs of a stream in one list: a list is read
# with one unpacking, where the same attributes would cost a type look-up each.
MODE: Final = 0  # how a plain row is treated now; SLOW while anything is pending
CACHED: Final = 1  # cached_tokens, shown in every frame
FRAGMENTS: Final = 2  # rendered pieces by token id
DONE: Final = 3  # completion_tokens
MIDDLE: Final = 4  # from the ids to the counter; DELTA: (before the text, after it)
SEND: Final = 5  # the writer's send, or sendmsg for cumulative text
KEPT: Final = 6  # list of all ids where they are needed at the end, or None
STREAM: Final = 7


class Group:
    """The answer to one HTTP request.

    What most answers leave at its default is an attribute of the class: a store into a slot costs
    as much as four bytecodes. The defaults are immortal constants, which no core counts.
    """

    deadline_ns = 0  # probes and control requests: answered by then
    last_done = 0  # tokens by `last_ns`
    route = -1  # number of its route in the metrics
    results: Any = ()  # list of an answer's parts, by index
    head_sent = False

    __slots__ = (
        "__dict__", "about", "api", "chunked", "close", "created_ns", "done", "extra", "head_only",
        "is_batch", "is_stream", "key", "last_ns", "remaining", "shape", "streams", "writer",
    )  # fmt: skip

    def __init__(
        self, key: int, writer: Any, api: int, is_stream: bool, is_batch: bool, chunked: bool,
        close: bool, head_only: bool, extra: bytes, about: Any, created_ns: int, shape: Any,
    ) -> None:  # fmt: skip
        self.key = key  # connection key
        self.shape = shape  # how its answer looks: see render.shape
        self.writer = writer
        self.api = api
        self.is_stream = is_stream
        self.is_batch = is_batch
        self.chunked = chunked  # HTTP/1.1: chunked transfer coding
        self.close = close  # close the connection after the answer
        self.head_only = head_only
        self.extra = extra  # header lines of this answer
        self.about = about  # name of a control request; facts of an OpenAI request
        self.created_ns = created_ns
        self.last_ns = created_ns  # last time bytes were known to be written
        self.streams: list[Stream] = []
        self.remaining = 0
        self.done = False


class Stream:
    """One generation: its detokenizer, what is rendered and not yet written, its counters.

    Defaults as in `Group`.
    """

    group_rid: str | None = None  # of the batch it is part of: an abort of it ends this
    detok: Any = None
    hidden: Any = b""  # as `text`
    prompt_ids: list[int] | None = None
    logprobs: Any = None
    transform: Any = None  # a parser of reasoning and tool calls, or None
    events: Any = None  # list of what it made of the text that is not shown yet
    opened = False  # what comes once before the first text has been shown
    finish: Any = None
    versions: Any = None
    meter: list[Any] | None = None  # see `metrics.recorder`; None: not recorded
    context: Any = ()  # last prompt ids, where the decoder asks for them
    has_context = True
    aborting = False  # the scheduler has been told
    waiting = False  # listed in writer.waiting
    index = 0
    reasoning = 0

    __slots__ = (
        "__dict__", "group", "hot", "ids", "mode", "out_ids", "plan", "prompt_tokens", "rid_json",
        "state", "text", "tok_port", "user_rid", "wire_rid", "writer",
    )  # fmt: skip

    def __init__(
        self, group: Group, wire_rid: str, user_rid: str, plan: tuple[Any, ...], tok_port: Any,
        state: int,
    ) -> None:  # fmt: skip
        self.group = group
        self.writer = group.writer
        self.wire_rid = wire_rid
        self.user_rid = user_rid
        self.plan = plan  # see render.plan
        self.tok_port = tok_port  # to the tokenize stage that sent it
        self.state = state
        self.mode = SLOW  # fast path once nothing is pending
        self.out_ids: list[int] = []  # unary: all ids
        self.hot: list[Any] = [SLOW, 0, (), 0, b"", None, None, self]
        self.rid_json = b""
        self.prompt_tokens = 0
        # Bytearrays where they grow, which a plain unary answer's never do.
        self.text: Any = b""  # JSON-escaped; incremental: not yet shown
        self.ids: Any = b""  # "1,2,3"; incremental: not yet shown

    @property
    def completion(self) -> int:
        """Tokens so far."""
        return int(self.hot[DONE])

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the scheduler's cache."""
        return int(self.hot[CACHED])
