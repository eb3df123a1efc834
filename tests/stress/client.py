"""One worker of the load: random requests, and the judgement of their ends. Owner: its loop.

An end that only an injury of the server could explain is kept as `Loose` and judged by the test,
which knows the injuries; what nothing explains raises `Wrong`.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

from tests.stress import faults, oracle
from tests.stress.checks import ABORTS, OK, Outcome, StreamCheck, Wanted, check_unary
from tests.stress.openai import OpenAICheck, check_openai, convert
from tests.stress.wire import Address, Conn, Gone, Wrong, chunked_request, parse_json, request

GENERATE: Final = "/generate"
# Requests that generate: each is answered once, or its client or an injury explains why not.
SENT: Final = "sent"
ANSWERED: Final = "answered"
UNANSWERED: Final = "unanswered"
_WORDS: Final = ("alpha", "beta", "déjà", "世界", "🎉", "<|x|>", "\\n", "0123456789", "zeta")


class Config:
    """What a run's clients need to know; plain data from the test."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.address: Address = (given["host"], given["port"])
        self.seed: str = given["seed"]
        self.seconds: float = given["seconds"]
        self.workers: int = given["workers"]
        self.incremental: bool = given["incremental"]
        self.small: bool = given["small"]  # rings so small that 503 is a right answer
        self.header_timeout: float = given["header_timeout"]
        self.limit: float = given["limit"]  # of one scenario, in seconds
        self.at_random: bool = given.get("at_random", False)  # ids, and no faults on request
        self.only: str = given.get("only", "")  # one scenario, to look into it


class Report:
    """Counts, and what has to be judged later."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.loose: list[faults.Loose] = []

    def count(self, name: str, more: int = 1) -> None:
        """One more of these."""
        self.counts[name] = self.counts.get(name, 0) + more


class Client:
    """One worker: its random numbers and its requests."""

    def __init__(self, config: Config, index: int, report: Report) -> None:
        self.config = config
        self.index = index
        self.report = report
        self.rng = random.Random(f"{config.seed}/{index}")
        self.doing = ""
        self.excused = False  # the scenario left, or was left: what it is still owed never comes
        self._serial = 0
        self._owed: dict[str, int] = {}  # answers, by name of their request

    # -- requests --------------------------------------------------------------------

    def rid(self, prefix: str = "") -> str:
        """A name nobody else has; no name is the start of another one."""
        self._serial += 1
        return f"{prefix}{self.index}-{self._serial}."

    def wanted(
        self, rid: str = "", stream: bool | None = None, least: int = 0, most: int = 60,
        batch: bool | None = None, plain: bool = False,
    ) -> Wanted:  # fmt: skip
        """A random request of any route that generates, and its answer. `plain`: nothing that
        ends it early."""
        rng = self.rng
        at_random = self.config.at_random
        plain = plain or at_random  # such ids hold no words
        rid = rid or self.rid()
        stream = rng.random() < 0.6 if stream is None else stream
        batch = rng.random() < 0.15 if batch is None else batch
        as_ids = rng.random() < 0.3
        params: dict[str, Any] = {"max_new_tokens": rng.randint(least, most)}
        if rng.random() < 0.2:
            params["sampling_seed"] = rng.getrandbits(40)
        if not plain:
            if rng.random() < 0.3:
                params["stop"] = rng.sample(oracle.STOPS, rng.randint(1, 3))
            if rng.random() < 0.15:
                params["stop_token_ids"] = rng.sample(oracle.STOP_IDS, 2)
            if rng.random() < 0.1:
                params["no_stop_trim"] = True
        body: dict[str, Any] = {"rid": rid, "stream": stream, "sampling_params": params}
        if rng.random() < 0.15:
            body["return_logprob"] = True
            if rng.random() < 0.5:
                body["top_logprobs_num"] = rng.randint(1, 3)
        count = rng.randint(1, 4) if batch else 1
        prompts = [f"{rid}{k} {' '.join(rng.choices(_WORDS, k=3))}".encode() for k in range(count)]
        values: list[Any] = [list(p) if as_ids else p.decode() for p in prompts]
        body["input_ids" if as_ids else "text"] = values if batch else values[0]
        n = rng.choice((1, 1, 2, 3)) if batch else 1
        if n > 1:
            params["n"] = n
        items = [oracle.answer(p, params, at_random) for p in prompts for _ in range(n)]
        ids: list[str | None] = [rid]
        if batch:
            ids = [None] * (count * n) if n > 1 else [f"{rid}_{k}" for k in range(count)]
        wanted = Wanted(rid, body, items, ids, batch)
        if rng.random() < 0.45:
            convert(wanted, rng, at_random)
        return wanted

    def check(self, wanted: Wanted) -> StreamCheck | OpenAICheck:
        """What judges the events of its stream."""
        if wanted.path == GENERATE:
            return StreamCheck(wanted, self.config.incremental)
        return OpenAICheck(wanted)

    def encode(self, wanted: Wanted, **more: str) -> bytes:
        """The request's bytes, sometimes with a chunked body; one answer is owed from now on."""
        self.owe(wanted)
        if not more and self.rng.random() < 0.1:
            return chunked_request(wanted.path, wanted.body, [self.rng.randint(1, 60), 7, 4000])
        return request(wanted.path, wanted.body, **more)

    async def open(self, rcvbuf: int = 0) -> Conn:
        """A connection."""
        return await Conn.open(self.config.address, rcvbuf)

    async def read(
        self, conn: Conn, wanted: Wanted, since: float, may_close: bool = False
    ) -> Outcome | None:
        """The answer to what was sent, judged; None when the connection was cut."""
        before = conn.read_bytes
        check = self.check(wanted)
        try:
            status, headers = await conn.head()
            if headers.get("content-type", "").startswith("text/event-stream"):
                if not wanted.stream or status != 200:
                    raise Wrong(f"an event stream with {status} for {wanted.body}")
                async for event in conn.events(headers):
                    check.feed(event)
                if not check.done and "transfer-encoding" not in headers:
                    raise Gone("end of an unfinished stream")
                outcome = check.end()
            else:
                value = parse_json(await conn.body(headers))
                if status == 200 and wanted.stream:
                    raise Wrong("no event stream")
                judge = check_unary if wanted.path == GENERATE else check_openai
                outcome = judge(wanted, status, value)
        except Gone as gone:
            self.cut(conn, wanted.rid, gone, conn.read_bytes - before)
            return None
        self._settle(wanted.rid)
        if faults.SLOW in outcome.message:  # what was pipelined behind it goes with the connection
            may_close = self.excused = True
        if conn.closing and not may_close:
            self.loose("closing", conn.opened, wanted.rid)
        self._judge(outcome, wanted, since)
        return outcome

    async def exchange(self, conn: Conn, wanted: Wanted) -> Outcome | None:
        """Send and read one."""
        since = time.monotonic()
        await conn.send(self.encode(wanted))
        return await self.read(conn, wanted, since)

    async def get(
        self, conn: Conn, path: str, may: tuple[int, ...] = (200,), may_close: bool = False
    ) -> Any:
        """The answer to a request without a stream that was sent: its JSON, or None if cut."""
        before = conn.read_bytes
        since = time.monotonic()
        try:
            status, headers = await conn.head()
            body = await conn.body(headers)
        except Gone as gone:
            self.cut(conn, path, gone, conn.read_bytes - before)
            return None
        if conn.closing and not may_close:
            self.loose("closing", conn.opened, path)
        if status == 503 and 503 not in may:
            if self.config.small and any(text.encode() in body for text in faults.OVERLOADED):
                self.report.count("overloaded")
            else:
                self.loose("unhealthy", since, f"{path}: {body[:200]!r}")
            return False
        if status not in may:
            raise Wrong(f"{path}: {status} {body[:300]!r}")
        self.report.count("ok")
        return parse_json(body) if "json" in headers["content-type"] else True

    async def abort(self, value: dict[str, Any]) -> bool:
        """POST /abort_request on a connection of its own; whether one was to be had."""
        try:
            conn = await self.open()
        except Gone as gone:
            self.loose("refused", time.monotonic(), f"abort: {gone}")
            return False
        try:
            await conn.send(request("/abort_request", value))
            await self.get(conn, "/abort_request")
        finally:
            conn.close()
        return True

    # -- ends ------------------------------------------------------------------------

    def begin(self, scenario: str) -> None:
        """What follows is another scenario's."""
        self.doing = scenario
        self.excused = False
        self._owed = {}

    def owe(self, wanted: Wanted) -> None:
        """A request whose bytes will be sent, or a part of them."""
        self._owed[wanted.rid] = self._owed.get(wanted.rid, 0) + 1
        self.report.count(SENT)

    def _settle(self, rid: str) -> None:
        left = self._owed.get(rid, 0) - 1
        if left < 0:
            raise Wrong(f"an answer that nobody is owed: {rid}")
        self._owed[rid] = left
        if not left:
            del self._owed[rid]
        self.report.count(ANSWERED)

    def left(self, how: str) -> None:
        """The scenario left before its answer."""
        self.excused = True
        self.report.count(f"left {how}")

    def end(self, conn: Conn) -> None:
        """Close a connection whose last answer has been read: nothing may have come behind it."""
        if conn.closing or self.excused:
            conn.close()
        else:
            conn.settle()

    def over(self) -> None:
        """A scenario has ended. Wrong when an answer is owed whose lack nothing explains."""
        if self._owed and not self.excused:
            raise Wrong(f"no answer to {self._owed}")
        for count in self._owed.values():
            self.report.count(UNANSWERED, count)

    def cut(self, conn: Conn, what: str, gone: Gone, got: int) -> None:
        """The server ended the connection before its answer was complete."""
        self.loose("cut", conn.opened, f"{what}: {gone}, {got} bytes of the answer", got)

    def loose(self, kind: str, since: float, note: str, got: int = 1) -> None:
        """An end that needs a cause."""
        self.excused = True
        note = f"worker {self.index} {self.doing}: {note}"
        self.report.loose.append(faults.Loose(kind, since, time.monotonic(), got, note))
        self.report.count(kind)

    def _judge(self, outcome: Outcome, wanted: Wanted, since: float) -> None:
        """Counts what needs no cause, keeps what does; Wrong for the rest."""
        kind = outcome.kind
        if kind == OK:
            self.report.count("ok")
            self.report.count(f"ok {wanted.path}")
            return
        if wanted.may is not None and wanted.may(outcome):
            self.report.count(f"own {kind}")
            return
        message = outcome.message
        if kind == "abort" and message in ABORTS:
            name = "abort"
        elif outcome.code == 503 and faults.RESTARTED in message:
            name = "core"
        elif outcome.code == 503 and faults.SHUTDOWN in message:
            name = "shutdown"
        elif outcome.code == 503 and message.startswith(faults.OVERLOADED) and self.config.small:
            self.report.count("overloaded")
            return
        else:
            raise Wrong(f"{wanted.rid} ended as {outcome}")
        self.loose(name, since, f"{wanted.rid} ended as {outcome}")
