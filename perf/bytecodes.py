"""Bytecodes and C calls of one core per request or per row, exactly. Owner: main thread.

usage: python perf/bytecodes.py [unary|stream|cumulative] [--batch 16] [--top 40] [--calls] [--time]
                                [--body JSON] [--path /generate] [--model FOLDER] [--gate N]
                                [--metrics] [--messages 1]

Clocks say nothing on a busy machine; what the interpreter executes is the same each time. One real
`Core` with all four stages runs on this thread, over real sockets and rings. Whenever it wants to
sleep, the client and the scheduler take their turn, on this thread too, and are not counted: so
the work of a round is always cut into the same turns of the loop.

`unary`: `--batch` connections each send one request, the scheduler answers all with one frame.
`stream`, `cumulative`: `--batch` streams on the plain path, one step each round; per row.
What is printed is the mean over the rounds, less what the first rounds did for good (warm-up).
A bytecode is not a unit of time: `--time` adds the least CPU time of a round, which a busy machine
disturbs least; `--calls` lists the C functions called, system calls among them.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgpack

from tests import tiny_tokenizer
from tpc_server import MetricsConfig, ModelConfig, Options, Server, ServerArgs, mesh
from tpc_server import core as core_module
from tpc_server import reactor as reactor_module
from tpc_server.core import Core

PACKAGE = str(Path(core_module.__file__).parent)
WARM_ROUNDS = 6
PROMPT = "Request {} about the rain in Spain, please."
FINISH = {"type": "length", "length": 1}
TOOL = 2


class Stopped(BaseException):
    """Ends the core's loop: a BaseException passes its rebuilding."""


class Failed(Exception):
    """There is no figure."""


class Counts:
    """What ran between `resume` and `pause`."""

    def __init__(self) -> None:
        self.codes: Counter[Any] = Counter()
        self.calls: Counter[str] = Counter()
        self.on = self.watching = False
        self.monitoring: Any = vars(sys)["monitoring"]  # Python 3.12

    def instruction(self, code: Any, offset: int) -> None:
        if self.on and code.co_filename.startswith(PACKAGE):
            self.codes[code] += 1

    def call(self, code: Any, offset: int, function: Any, arg: Any) -> None:
        if self.on and code.co_filename.startswith(PACKAGE) and not hasattr(function, "__code__"):
            self.calls[getattr(function, "__qualname__", type(function).__name__)] += 1

    def watch(self) -> None:
        self.watching = True
        monitoring = self.monitoring
        events = monitoring.events
        monitoring.use_tool_id(TOOL, "bytecodes")
        monitoring.register_callback(TOOL, events.INSTRUCTION, self.instruction)
        monitoring.register_callback(TOOL, events.CALL, self.call)
        monitoring.set_events(TOOL, events.INSTRUCTION | events.CALL)

    def forget(self) -> None:
        self.monitoring.set_events(TOOL, 0)
        self.monitoring.free_tool_id(TOOL)


class Bench:
    """One core, its client and its scheduler, taking turns on this thread."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.counts = Counts()
        self.best_ns = 1 << 62
        folder = options.model
        if folder is None:
            self.scratch = tempfile.TemporaryDirectory(prefix="tpc-bytecodes-")
            folder = tiny_tokenizer.write(Path(self.scratch.name))
        args = ServerArgs(
            model_path=str(folder), served_model_name="tiny", port=0, log_level="error",
            skip_server_warmup=True, incremental_streaming_output=options.what != "cumulative",
            model_config=ModelConfig(context_len=1 << 20, vocab_size=options.vocab_size),
            metrics=MetricsConfig(labels={"model_name": "tiny"}) if options.metrics else None,
        )  # fmt: skip
        started, Server._start = Server._start, _not_started  # its cores are run by hand
        try:
            self.server = Server(args, options=Options(manage_gc=False))
        finally:
            Server._start = started
        self.server._words[mesh.READY] = 1
        self.core = Core(0, self.server._mesh, self.server.setup, self.server._bound.groups[0])
        self.clients: list[socket.socket] = []
        self.script = self._script()
        self.units = 1
        self.took = 0  # CPU time since the turn before
        self.last_ns = 0
        self.error: BaseException | None = None  # of the script
        self.ended = False  # the script came to its end

    def run(self) -> None:
        bench = self

        class TakingTurns(reactor_module.Reactor):
            __slots__ = ()

            def poll(self, timeout_s: float) -> tuple[int, bool]:
                if timeout_s > 0:
                    bench.turn()
                return super().poll(0)

        vars(core_module)["Reactor"] = TakingTurns
        self.server.command(core_module.CMD_ACCEPT)
        gc.disable()  # as while serving (ADR 4)
        try:
            self.core.run()
        except Stopped:
            pass
        finally:
            vars(core_module)["Reactor"] = reactor_module.Reactor
            if self.counts.watching:
                self.counts.forget()
        if self.error is not None:
            raise Failed(f"{type(self.error).__name__}: {self.error}") from self.error
        # Whatever a rebuilt core did is not what is measured.
        if self.core.counters.resets or not self.ended:
            raise Failed("the core died in its run, see above")

    def turn(self) -> None:
        """The core wants to sleep: client and scheduler do what comes next."""
        took = time.thread_time_ns() - self.last_ns
        self.took = took
        self.counts.on = False
        if self.core.counters.resets:
            raise Stopped
        try:
            phase = next(self.script, None)
        except Exception as error:  # the core would take it for its own
            self.error = error
            raise Stopped from None
        if phase is None:
            self.ended = True
            raise Stopped
        self.counts.on = phase == "count"
        self.last_ns = time.thread_time_ns()

    # -- what happens besides ----------------------------------------------------------

    def _script(self) -> Iterator[str]:
        if self.options.what == "unary":
            yield from self._unary()
        else:
            yield from self._stream()

    def _connect(self) -> Iterator[str]:
        for _ in range(self.options.batch):
            client = socket.create_connection(("127.0.0.1", self.server.http_port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.clients.append(client)
        yield "skip"
        yield "skip"

    def _unary(self) -> Iterator[str]:
        yield from self._connect()
        rounds = self.options.rounds
        for number in range(WARM_ROUNDS + rounds):
            counted = number >= WARM_ROUNDS
            if number == WARM_ROUNDS and not self.options.time:
                self.counts.watch()
            for k, client in enumerate(self.clients):
                client.sendall(self._request(number * self.options.batch + k))
            spent = 0
            yield "count" if counted else "skip"
            spent += self.took
            requests = self.server.recv_requests(4 * self.options.batch)
            assert len(requests) == self.options.batch, len(requests)
            rids = [msgpack.unpackb(r.header, strict_map_key=False)[1] for r in requests]
            self._push(rids, [FINISH] * len(rids), [64 + number % 26] * len(rids), 11)
            yield "count" if counted else "skip"
            spent += self.took
            if counted:
                self.best_ns = min(self.best_ns, spent)
            for client in self.clients:
                answer = client.recv(65536)
                assert answer.startswith(b"HTTP/1.1 200"), answer
        self.units = rounds * self.options.batch

    def _stream(self) -> Iterator[str]:
        yield from self._connect()
        for k, client in enumerate(self.clients):
            client.sendall(self._request(k, stream=True))
        yield "skip"
        requests = self.server.recv_requests(4 * self.options.batch)
        rids = [msgpack.unpackb(r.header, strict_map_key=False)[1] for r in requests]
        rounds = self.options.rounds
        none = [None] * len(rids)
        for number in range(WARM_ROUNDS + 26 + rounds):
            counted = number >= WARM_ROUNDS + 26
            if number == WARM_ROUNDS + 26 and not self.options.time:
                self.counts.watch()
            ids = [65 + (number + k) % 26 for k in range(len(rids))]
            self._push(rids, none, ids, 11)
            yield "count" if counted else "skip"
            if counted:
                self.best_ns = min(self.best_ns, self.took)
            for client in self.clients:
                assert client.recv(1 << 20)
        self.units = rounds * self.options.batch

    def _request(self, number: int, stream: bool = False) -> bytes:
        if self.options.body:
            body = json.loads(self.options.body)
        elif self.options.path == "/generate":
            sampling = {"temperature": 0, "max_new_tokens": 1 << 16 if stream else 1,
                        "sampling_seed": number, "ignore_eos": True}  # fmt: skip
            body = {"text": PROMPT.format(number), "sampling_params": sampling}
        else:
            body = {"model": "m", "max_tokens": 1 << 16 if stream else 1, "seed": number,
                    "temperature": 0}  # fmt: skip
            if self.options.path.endswith("/chat/completions"):
                body["messages"] = messages(self.options.messages, number)
            else:
                body["prompt"] = PROMPT.format(number)
        if stream:
            body["stream"] = True
        data = json.dumps(body).encode()
        return (
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (self.options.path.encode(), len(data), data)
        )

    def _push(self, rids: list[str], reasons: list[Any], ids: list[int], prompt: int) -> None:
        n = len(rids)
        header = msgpack.packb([rids, reasons, [prompt] * n, [1] * n, [0] * n, [0] * n])
        self.server.push_decode_result_batch(header, [array("q", ids).tobytes()])


def messages(count: int, number: int) -> list[dict[str, str]]:
    """A conversation of that many messages, none of which is in another number's."""
    return [
        {"role": ("user", "assistant")[k % 2], "content": PROMPT.format(number * count + k)}
        for k in range(count)
    ]


def _not_started(self: Any, listeners: Any) -> None:
    """In place of `Server._start`."""
    self.cores, self._threads = [], []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("what", nargs="?", choices=("unary", "stream", "cumulative"), default="unary")
    add("--batch", type=int, default=16, help="connections (default 16)")
    add("--rounds", type=int, default=20)
    add("--top", type=int, default=40)
    add("--calls", action="store_true", help="C functions called, too")
    add("--time", action="store_true", help="least CPU time instead of counts")
    add("--body", help="JSON of the request instead of the usual one")
    add("--path", default="/generate")
    add("--messages", type=int, default=1, help="of a conversation")
    add("--model", help="folder of another tokenizer than the smallest one (for --time)")
    add("--vocab-size", type=int, default=tiny_tokenizer.VOCAB)
    add("--metrics", action="store_true", help="with metrics on (see metrics_cost.py)")
    add("--gate", type=float, help="fail when more bytecodes than this are executed")
    options = parser.parse_args()
    bench = Bench(options)
    try:
        bench.run()
    except Failed as failed:
        print(f"bytecodes: {failed}", file=sys.stderr)
        return 1
    unit = "request" if options.what == "unary" else "row"
    if options.time:
        print(f"{bench.best_ns / options.batch / 1e3:.2f} us of CPU per {unit}, at best")
        return 0
    counts = bench.counts
    whole = sum(counts.codes.values()) / bench.units
    print(f"**{options.what}**, {options.batch} at a time: {whole:.1f} bytecodes per {unit}\n")
    modules: Counter[str] = Counter()
    for code, count in counts.codes.items():
        modules[code.co_filename[len(PACKAGE) + 1 :]] += count
    print("| module | bytecodes |\n|---|---|")
    for name, count in modules.most_common(12):
        print(f"| {name} | {count / bench.units:.1f} |")
    print("\n| function | bytecodes |\n|---|---|")
    for code, count in counts.codes.most_common(options.top):
        place = code.co_filename[len(PACKAGE) + 1 :]
        print(f"| {place} {code.co_qualname} | {count / bench.units:.1f} |")
    print(f"\n{sum(counts.calls.values()) / bench.units:.1f} calls of C functions per {unit}")
    if options.calls:
        print("\n| C function | calls |\n|---|---|")
        for name, count in counts.calls.most_common(options.top):
            print(f"| {name} | {count / bench.units:.2f} |")
    return 1 if options.gate and whole > options.gate else 0


if __name__ == "__main__":
    sys.exit(main())
