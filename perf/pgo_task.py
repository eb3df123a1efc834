"""What a profile-guided build of CPython is trained with: the shape of our step loop.

Owner: each thread its own worker. Standard library only: the interpreter that runs this stands in
its build folder and has no packages. It mirrors what costs time while serving: the loop over a
step's rows (`stages/steps.py`: table look-ups, a join, a send), ring records through memoryviews
and struct, the escaping of text, dicts of requests, epoll and eventfd. Where that code changes
shape, change this too.

    python perf/pgo_task.py [STEPS]
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from typing import Any

ROWS = 64
VOCABULARY = 4096
RING_BYTES = 1 << 16
ID_MASK = VOCABULARY - 1
_RECORD = struct.Struct("<IIq")


class Writer:
    """One connection: a socket that is written to, and the end that a client reads."""

    __slots__ = ("blocked", "fd", "partials", "peer", "send", "sendmsg", "sock")

    def __init__(self) -> None:
        self.sock, self.peer = socket.socketpair()
        self.sock.setblocking(False)
        self.peer.setblocking(False)
        self.send = self.sock.send
        self.sendmsg = self.sock.sendmsg
        self.fd = self.peer.fileno()
        self.blocked = False
        self.partials = 0

    def partial(self, data: bytes, sent: int) -> None:
        """What did not fit; a real writer keeps it."""
        self.partials += 1


class Stream:
    """One generation, with the fields that the loop touches."""

    __slots__ = ("cached", "completion", "frags", "ids", "middle", "mode", "rid", "text", "writer")

    def __init__(self, rid: str, writer: Writer, frags: list[Any], mode: int) -> None:
        self.rid = rid
        self.writer = writer
        self.frags = frags
        self.mode = mode
        self.completion = 0
        self.cached = 0
        self.middle = b'],"meta_info":{"id":"%b","prompt_tokens":12,"completion_tokens":' % (
            rid.encode()
        )
        self.text = bytearray()
        self.ids = bytearray()


class Ring:
    """A byte ring over a shared buffer, the two halves on one thread."""

    __slots__ = ("head", "index", "tail", "view")

    def __init__(self) -> None:
        buffer = bytearray(RING_BYTES)
        self.view = memoryview(buffer)
        self.index = memoryview(bytearray(64)).cast("Q")
        self.head = self.tail = 0

    def push(self, key: int, payload: bytes) -> bool:
        """Copies one record in; False when there is no room."""
        size = _RECORD.size + len(payload)
        at = self.head % RING_BYTES
        if self.head + size - self.tail > RING_BYTES or at + size > RING_BYTES:
            if at + size > RING_BYTES:
                self.head += RING_BYTES - at
            return False
        _RECORD.pack_into(self.view, at, size, key & 0xFFFF, key)
        self.view[at + _RECORD.size : at + size] = payload
        self.head += size
        self.index[0] = self.head
        return True

    def pop(self) -> bytes | None:
        """Copies the oldest record out."""
        if self.tail == self.index[0]:
            return None
        at = self.tail % RING_BYTES
        size, _, _ = _RECORD.unpack_from(self.view, at)
        if not size or at + size > RING_BYTES:
            self.tail += RING_BYTES - at
            return None
        data = bytes(self.view[at + _RECORD.size : at + size])
        self.tail += size
        return data


class Worker:
    """What one core does: every object is made on the thread that runs it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rows = 0

    def run(self) -> None:
        pieces = [f"piece {n} \N{LATIN SMALL LETTER U WITH DIAERESIS}\n" for n in range(VOCABULARY)]
        escaped: list[Any] = [json.dumps(p, ensure_ascii=False)[1:-1].encode() for p in pieces]
        framed: list[Any] = [
            text + b'","output_ids":[%d' % n if n % 7 else None for n, text in enumerate(escaped)
        ]
        streams = {}
        for n in range(ROWS):
            rid = f"r{n}-{n * 7919:x}"
            streams[rid] = Stream(rid, Writer(), escaped if n % 2 else framed, n % 2)
        heads = [b"%x\r\n" % n for n in range(2048)]
        tails = [b"%d}}\n\n\r\n" % n for n in range(4096)]
        poll = select.epoll()
        for stream in streams.values():
            poll.register(stream.writer.fd, select.EPOLLIN)
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        poll.register(bell, select.EPOLLIN)
        ring = Ring()
        rids = list(streams)
        state = 1
        for step in range(self.steps):
            ids = array.array("i")
            for _ in range(ROWS):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
                ids.append(state & ID_MASK)
            if not ring.push(step, ids.tobytes()):
                continue
            os.eventfd_write(bell, 1)
            record = ring.pop()
            if record is None:
                continue
            finishes = [None] * ROWS
            self.rows += on_step(streams, rids, finishes, record, heads, tails)
            drain(poll, bell)
            if step % 50 == 0:
                admit(streams, rids, step)
        poll.close()
        os.close(bell)


def on_step(
    streams: dict[str, Stream],
    rids: list[str],
    finishes: list[Any],
    record: bytes,
    heads: list[bytes],
    tails: list[bytes],
) -> int:
    """The rows of one step, as the step loop does them."""
    find = streams.get
    join = b"".join
    ids = memoryview(record).cast("i").tolist()
    sent_bytes = rows = at = 0
    now_ns = time.monotonic_ns()
    if min(ids) < 0 or max(ids) >= VOCABULARY:
        return 0
    for rid, finish, token in zip(rids, finishes, ids, strict=True):
        stream = find(rid)
        if stream is None or finish is not None:
            continue
        writer = stream.writer
        fragment = stream.frags[token]
        if not fragment:
            fragment = stream.frags[token] = b"piece"
        if writer.blocked or stream.cached:
            continue
        done = stream.completion = stream.completion + 1
        tail = tails[done & 4095]
        if stream.mode:
            if len(stream.text) > 2000:
                stream.text.clear()
                stream.ids.clear()
            text, shown = stream.text, stream.ids
            text += fragment
            shown += b",%d" % token
            buffers = (heads[len(text) & 2047], text, b'","output_ids":[', shown, tail)
            try:
                sent = writer.sendmsg(buffers)
            except (BlockingIOError, InterruptedError):
                writer.partial(join(buffers), 0)
                continue
        else:
            data = join((heads[len(fragment)], fragment, stream.middle, tail))
            try:
                sent = writer.send(data)
            except (BlockingIOError, InterruptedError):
                writer.partial(data, 0)
                continue
            if sent != len(data):
                writer.partial(data, sent)
        sent_bytes += sent
        at += 1
        rows += 1
    return rows if sent_bytes and now_ns else 0


def drain(poll: select.epoll, bell: int) -> None:
    """The readers' ends, and the doorbell."""
    for fd, _ in poll.poll(0, 256):
        if fd == bell:
            os.eventfd_read(bell)
        else:
            os.read(fd, 65536)


def admit(streams: dict[str, Stream], rids: list[str], step: int) -> None:
    """A request comes, is parsed and answered whole; its predecessor goes."""
    body = {"text": f"prompt {step} " * 20, "sampling_params": {"temperature": 0.5, "n": step}}
    read = json.loads(json.dumps(body))
    text = read["text"].encode().replace(b"\r", b" ").split(b" ")
    rid = rids[step % ROWS]
    old = streams.pop(rid)
    fresh = Stream(rid, old.writer, old.frags, old.mode)
    fresh.cached = 0 if len(text) > 1 else 1
    streams[rid] = fresh


def main(argv: list[str]) -> int:
    steps = int(argv[1]) if len(argv) > 1 else 4000
    began = time.monotonic()
    workers = [Worker(steps), Worker(steps // 4)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    # One after the other for most of it, together for the rest: the counters of the profile are
    # not atomic, and serving cores share nothing either.
    for thread in threads:
        thread.start()
        thread.join()
    together = [threading.Thread(target=Worker(steps // 8).run) for _ in range(2)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    rows = sum(worker.rows for worker in workers)
    took = time.monotonic() - began
    print(f"{rows} rows in {took:.1f} s")
    return 0 if rows else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
