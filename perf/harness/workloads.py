"""What is asked of the peers, and which CPU does what. Owner: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass

STRIDE = 7919  # prime: neighbouring requests read far apart in the text


def text_offset(seed: int, n_ids: int) -> int:
    """Where in the ids of the real text the request with this seed starts to read."""
    return seed * STRIDE % n_ids


@dataclass(frozen=True)
class Workload:
    """`kind` stream or unary. `tick_ms` 0: the scheduler steps as fast as it can."""

    name: str
    kind: str
    streams: int
    tick_ms: float
    duration_s: float
    path: str = "/generate"
    cumulative: bool = False
    messages: int = 1  # of a unary chat request
    churn_tokens: int = 0  # streams of about so many tokens, one after another: join and leave

    @property
    def steps(self) -> int:
        """Steps the load lasts; a saturated run gets as many as a 5 ms tick would give."""
        return max(10, round(self.duration_s * 1000 / (self.tick_ms or 5.0)))

    @property
    def tokens(self) -> int:
        """Tokens of one stream, on average."""
        return self.churn_tokens or self.steps

    @property
    def rounds(self) -> int:
        """Streams of one connection, one after another."""
        return max(1, self.steps // self.tokens)

    @property
    def title(self) -> str:
        if self.kind == "unary":
            chat = f", {self.messages} messages" if self.messages > 1 else ""
            return f"unary, {self.streams} connections, {self.path}{chat}"
        pace = f"{self.tick_ms:g} ms steps" if self.tick_ms else "as fast as it can"
        text = ", cumulative text" if self.cumulative else ""
        length = f"{self.tokens} tokens each"
        if self.churn_tokens:
            length = f"about {self.tokens} tokens each, {self.rounds} in turn, joining and leaving"
        return f"{self.streams} streams, {pace}, {length}, {self.path}{text}"


@dataclass(frozen=True)
class Layout:
    """CPUs of one run. `scheduler_cpu` None: the scheduler stays on the server's CPUs."""

    io_cores: int
    server_cpus: tuple[int, ...]
    client_cpu: int
    scheduler_cpu: int | None
    shared: bool  # the client's CPU is one of the server's: figures mean little

    @property
    def note(self) -> str:
        where = "server's" if self.scheduler_cpu is None else str(self.scheduler_cpu)
        text = f"server {self.server_cpus}, client {self.client_cpu}, scheduler {where}"
        return text + (" (client shares a CPU with the server)" if self.shared else "")


def make_layout(allowed: list[int], io_cores: int, kind: str, scheduler: str) -> Layout:
    """Server on the first CPUs, client on the next.

    `scheduler`: "server", "client", or "auto": on the server's CPU for streams (its work per
    token is small there), on the client's for unary (its work per request is not, and would be
    taken for the server's limit).
    """
    if len(allowed) < 2:
        raise ValueError("two CPUs are needed: one for the server, one for the client")
    server = tuple(allowed[: min(io_cores, len(allowed))])
    rest = [cpu for cpu in allowed if cpu not in server]
    client = rest[0] if rest else allowed[-1]
    if scheduler == "auto":
        scheduler = "client" if kind == "unary" else "server"
    scheduler_cpu: int | None = None
    if scheduler == "client":
        scheduler_cpu = rest[1] if len(rest) > 1 else client
    return Layout(io_cores, server, client, scheduler_cpu, shared=not rest)
