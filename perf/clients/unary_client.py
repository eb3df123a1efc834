"""Unary load: keep-alive connections, the next request when the answer is in. Owner: one process.

usage: python -m perf.clients.unary_client --port N --conns 64 --seconds 5 …

Prints one line of JSON. Closed loop; every request has another prompt of exactly 11 tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from perf.clients.stream_client import RECV_BYTES, render
from perf.harness.stats import percentiles

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


def conversation(prompt: str, messages: int) -> list[dict[str, str]]:
    """The prompt's words dealt out to so many messages, user and assistant in turn."""
    words = prompt.split(" ")
    step = -(-len(words) // messages)
    parts = [" ".join(words[k * step : (k + 1) * step]) or "." for k in range(messages)]
    last = messages - 1
    return [
        {"role": "user" if (last - k) % 2 == 0 else "assistant", "content": part}
        for k, part in enumerate(parts)
    ]


def request_body(
    path: str, prompt: str, tokens: int, seed: int, messages: int = 1
) -> dict[str, Any]:
    if path == "/generate":
        sampling = {"temperature": 0, "max_new_tokens": tokens, "sampling_seed": seed}
        return {"text": prompt, "sampling_params": sampling | {"ignore_eos": True}}
    body: dict[str, Any] = {"model": "m", "max_tokens": tokens, "seed": seed, "temperature": 0}
    if path.endswith("/chat/completions"):
        return body | {"messages": conversation(prompt, messages)}
    return body | {"prompt": prompt}


def answer_complete(data: bytes) -> bool:
    """Whether `data` holds one whole answer with a Content-Length."""
    head = data.find(HEAD_END)
    if head < 0:
        return False
    lowered = data[:head].lower()
    at = lowered.find(LENGTH)
    if at < 0:
        raise ValueError(f"an answer without Content-Length: {data[:200]!r}")
    length = int(lowered[at + len(LENGTH) :].split(b"\r\n", 1)[0])
    return len(data) >= head + len(HEAD_END) + length


class UnaryLoad:
    """`conns` connections over `requests`, which are taken round and round."""

    def __init__(self, port: int, conns: int) -> None:
        self.port = port
        self.conns = conns
        self.latencies_ns: list[int] = []
        self.done = 0
        self.bad = 0
        self.seconds = 0.0
        self.sample = b""

    def run(self, requests: list[bytes], seconds: float, timeout_s: float) -> None:
        poller = select.epoll()
        socks: dict[int, socket.socket] = {}
        for _ in range(self.conns):
            sock = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            socks[sock.fileno()] = sock
            poller.register(sock.fileno(), select.EPOLLIN)
        receive = {fd: sock.recv for fd, sock in socks.items()}
        send = {fd: sock.send for fd, sock in socks.items()}
        clock = time.monotonic_ns
        note = self.latencies_ns.append
        sent: dict[int, int] = {}
        partial: dict[int, bytes] = {}
        n_requests = len(requests)
        following = 0
        begin = clock()
        end = begin + int(seconds * 1e9)
        deadline = end + int(timeout_s * 1e9)
        for fd in socks:
            sent[fd] = clock()
            send[fd](requests[following % n_requests])
            following += 1
        waiting = len(socks)
        now = begin
        while waiting and now < deadline:
            for fd, _mask in poller.poll(1.0):
                got = receive[fd](RECV_BYTES)
                now = clock()
                if fd in partial:
                    got = partial.pop(fd) + got
                if not got:
                    self.bad += 1
                    waiting -= 1
                    poller.unregister(fd)
                    continue
                if not answer_complete(got):
                    partial[fd] = got
                    continue
                note(now - sent[fd])
                self.done += 1
                if not got.startswith(b"HTTP/1.1 200"):
                    self.bad += 1
                if not self.sample:
                    self.sample = got
                if now < end:
                    sent[fd] = now
                    send[fd](requests[following % n_requests])
                    following += 1
                else:
                    waiting -= 1
            else:
                now = clock()
        self.bad += waiting
        self.seconds = (now - begin) / 1e9
        for sock in socks.values():
            sock.close()

    def summary(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "conns": self.conns,
            "done": self.done,
            "failed": self.bad,
            "seconds": self.seconds,
            "req_per_s": self.done / self.seconds,
            "latency_us": percentiles([each / 1e3 for each in self.latencies_ns]),
            "client_cpu_s": usage.ru_utime + usage.ru_stime,
            "sample": self.sample.decode("utf-8", "replace")[-600:],
        }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/generate")
    parser.add_argument("--conns", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--messages", type=int, default=1, help="of a chat request")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--model", type=Path, required=True, help="folder of the load material")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=60)
    options = parser.parse_args(argv)
    prompts = json.loads((options.model / "prompts.json").read_text())["unary"]
    requests = [
        render(
            options.path,
            request_body(
                options.path, prompt, options.tokens, options.first_seed + i, options.messages
            ),
        )
        for i, prompt in enumerate(prompts)
    ]
    load = UnaryLoad(options.port, options.conns)
    gc.disable()
    load.run(requests, options.seconds, options.timeout_s)
    json.dump(load.summary(), sys.stdout)
    print()


if __name__ == "__main__":
    main()
