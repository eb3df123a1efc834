"""What clients do: one coroutine per kind of behaviour. Owner: the load generator's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tests.stress import faults, oracle
from tests.stress.checks import ABORTS, OK, Outcome, Wanted
from tests.stress.client import GENERATE, Client
from tests.stress.openai import CHAT, COMPLETIONS
from tests.stress.wire import Conn, Gone, Wrong, request

Scenario = Callable[[Client, Conn], Awaitable[None]]
_GETS: Final = ("/health", "/model_info", "/v1/models", "/server_info", "/health_generate")
_BAD: Final = (  # bodies that are no request, each a 400
    b"{", b"[1]", b"", b"\xff\xfe", b'{"text":""}', b'{"text":"a","sampling_params":{"top_p":2}}',
    b'{"input_ids":[-1]}', b'{"text":"a","sampling_params":{"temperature":NaN}}',
    b'{"text":"a","stream":1}',
)  # fmt: skip
_JUNK: Final = (
    b"GET / HTTP/1.1\r\nBad Header\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1x\r\nab\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
)


def aborted(outcome: Outcome) -> bool:
    """What an abort of the client's own leads to."""
    return outcome.kind == "abort" and outcome.message in ABORTS


def slow(outcome: Outcome) -> bool:
    """What reading too slowly leads to."""
    return aborted(outcome) or (outcome.code == 503 and faults.SLOW in outcome.message)


def refused(outcome: Outcome) -> bool:
    """What a request that is none leads to."""
    return outcome.code == 400


async def keep_alive(client: Client, conn: Conn) -> None:
    """Some requests after each other on one connection."""
    for _ in range(client.rng.randint(1, 5)):
        if await client.exchange(conn, client.wanted()) is None or conn.closing:
            conn.close()
            return
    conn.settle()


async def pipeline(client: Client, conn: Conn) -> None:
    """Requests of all kinds at once, in pieces of any size; answers in order."""
    rng = client.rng
    asked: list[tuple[str, object]] = []
    data = b""
    for _ in range(rng.randint(2, 7)):
        kind = rng.random()
        if kind < 0.7:
            wanted = client.wanted(most=30)
            asked.append(("generate", wanted))
            data += client.encode(wanted)
        elif kind < 0.85:
            asked.append(("get", rng.choice(_GETS)))
            data += request(str(asked[-1][1]), method="GET")
        else:
            asked.append(("bad", 400))
            data += request(rng.choice((GENERATE, COMPLETIONS, CHAT)), rng.choice(_BAD))
    half_close = rng.random() < 0.4
    since = time.monotonic()
    if rng.random() < 0.5:
        at = 0
        while at < len(data):
            size = rng.randint(1, 1 + len(data) // 3)
            await conn.send(data[at : at + size])
            at += size
            await asyncio.sleep(rng.random() * 0.01)
    else:
        await conn.send(data)
    if half_close:
        await _half_close(client, conn)
    for k, (kind, what) in enumerate(asked):
        last = half_close and k == len(asked) - 1
        if kind == "generate":
            if await client.read(conn, what, since, may_close=last) is None:  # type: ignore[arg-type]
                break
        else:
            may = (200,) if kind == "get" else (400,)
            if await client.get(conn, str(what), may, may_close=last) is None:
                break
        if conn.closing and not last:
            break
    else:
        if half_close and not await conn.at_end():
            raise Wrong("a half-closed connection was kept after its last answer")
        conn.settle()
        return
    conn.close()


async def deep(client: Client, conn: Conn) -> None:
    """More requests in one write than the server takes in at once."""
    paths = client.rng.choices(("/v1/models", "/model_info", "/nothing"), k=150)
    await conn.send(b"".join([request(path, method="GET") for path in paths]))
    if client.rng.random() < 0.3:
        await _half_close(client, conn)
    for k, path in enumerate(paths):
        may = (404,) if path == "/nothing" else (200,)
        if await client.get(conn, path, may, may_close=k == len(paths) - 1) is None:
            break
        if conn.closing:
            break
    conn.close()


async def _half_close(client: Client, conn: Conn) -> None:
    try:
        conn.half_close()
    except Gone:
        pass  # the server was faster: reading will tell


async def abort_one(client: Client, conn: Conn) -> None:
    """End a request, or a batch, by its id, or try to by one that is not quite it."""
    rng = client.rng
    wanted = client.wanted(least=80, most=400, plain=True)
    missed = rng.random() < 0.2
    if not missed:
        wanted.may = aborted
    since = time.monotonic()
    value: dict[str, object] = {"rid": wanted.rid}
    if missed:
        value = rng.choice(
            [{"rid": wanted.rid[:-1]}, {"rid": ""}, {}, {"rid": []}, {"rid": wanted.rid + "x"}]
        )
    elif rng.random() < 0.3:
        value = {"rid": ["no such", wanted.rid]}
    await conn.send(client.encode(wanted))
    await asyncio.sleep(rng.choice((0.0, 0.0, 0.01, 0.05, 0.3)))
    reading = asyncio.ensure_future(client.read(conn, wanted, since))
    await client.abort(value)
    if await reading is None or conn.closing:
        conn.close()
        return
    conn.settle()


async def twins(client: Client, conn: Conn) -> None:
    """Two requests of one name at once: each gets its own answer."""
    one, two = client.wanted(batch=False), client.wanted(batch=False)
    two.rid = two.body["rid"] = one.rid
    two.ids = list(one.ids)
    try:
        other = await client.open()
    except Gone as gone:
        client.loose("refused", time.monotonic(), str(gone))
        conn.close()
        return
    try:
        await asyncio.gather(client.exchange(conn, one), client.exchange(other, two))
    finally:
        conn.close()
        other.close()


async def reset(client: Client, conn: Conn) -> None:
    """Leave at any point, with RST or FIN."""
    rng = client.rng
    wanted = client.wanted(stream=True, least=50, most=300)
    data = client.encode(wanted)
    phase = rng.randint(0, 8)
    head = data.index(b"\r\n\r\n") + 4
    cuts = (0, rng.randint(1, head - 1), head, rng.randint(head, len(data) - 1))
    await conn.send(data[: cuts[phase]] if phase < 4 else data)
    try:
        if phase == 4 and rng.random() < 0.5:  # another one behind it
            await conn.send(client.encode(client.wanted()))
        elif phase >= 6:
            check = client.check(wanted)
            status, headers = await conn.head()
            if status == 200 and phase == 6:
                left = rng.randint(1, 10)
                async for event in conn.events(headers):
                    check.feed(event)
                    left -= 1
                    if not left:
                        break
            elif phase == 7:
                try:
                    async with asyncio.timeout(0.5):  # all of it may have come with the head
                        await conn.fill(rng.randint(1, 200))
                except TimeoutError:
                    pass
        elif phase == 5:
            await asyncio.sleep(rng.random() * 0.1)
    except Gone as gone:
        client.cut(conn, wanted.rid, gone, conn.read_bytes)
    (conn.reset if rng.random() < 0.7 else conn.close)()
    client.left(f"in phase {phase}")


async def stop_reading(client: Client, conn: Conn) -> None:
    """Take nothing for a while; then read on, be aborted, or leave."""
    rng = client.rng
    conn.close()
    conn = await client.open(rcvbuf=2048)
    wanted = client.wanted(stream=True, least=200, most=600, batch=False, plain=True)
    wanted.may = slow
    since = time.monotonic()
    await conn.send(client.encode(wanted))
    await asyncio.sleep(rng.choice((0.05, 0.3, 1.2)))
    choice = rng.random()
    if choice < 0.25:
        conn.reset()
        client.left("unread")
        return
    if choice < 0.5:
        await client.abort({"rid": wanted.rid})
        await asyncio.sleep(rng.choice((0.0, 0.2)))
    if await client.read(conn, wanted, since) is None or conn.closing:
        conn.close()
        return
    conn.settle()


async def half_sent(client: Client, conn: Conn) -> None:
    """A request that stops in the middle: it times out, goes on, or its client leaves."""
    rng = client.rng
    wanted = client.wanted()
    data = client.encode(wanted)
    at = rng.randint(1, len(data) - 1)
    await conn.send(data[:at])
    choice = rng.random()
    if choice < 0.15:
        # Only a head that does not end has the short time-out.
        conn.close()
        conn = await client.open()
        await conn.send(data[: rng.randint(1, data.index(b"\r\n\r\n"))])
        if await client.get(conn, "half a head", (408,), may_close=True):
            if not await conn.at_end():
                raise Wrong("a connection was kept after 408")
            client.report.count("408")
        client.left("half-sent")
        conn.close()
    elif choice < 0.8:
        await asyncio.sleep(rng.random() * 0.1)
        since = time.monotonic()
        await conn.send(data[at:])
        await client.read(conn, wanted, since)
        client.end(conn)
    else:
        await asyncio.sleep(rng.random() * 0.2)
        (conn.reset if rng.random() < 0.5 else conn.close)()
        client.left("half-sent")


async def half_close(client: Client, conn: Conn) -> None:
    """FIN right after the request: the answer comes all the same, then the end."""
    wanted = client.wanted()
    since = time.monotonic()
    await conn.send(client.encode(wanted))
    if client.rng.random() < 0.5:
        await asyncio.sleep(client.rng.random() * 0.05)
    await _half_close(client, conn)
    answered = await client.read(conn, wanted, since, may_close=True) is not None
    if answered and not await conn.at_end():
        raise Wrong("a half-closed connection was kept after its last answer")
    conn.close()


async def churn(client: Client, conn: Conn) -> None:
    """Connections for next to nothing."""
    rng = client.rng
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if kind < 0.2:
            (conn.reset if rng.random() < 0.5 else conn.close)()
        elif kind < 0.6:
            path = rng.choice(_GETS)
            await conn.send(request(path, method="GET", Connection="close"))
            value = await client.get(conn, path, may_close=True)
            if path == "/server_info" and value and value["frontend"] != "tpc":
                raise Wrong(f"server_info: {value}")
            conn.close()
        elif kind < 0.8:
            await conn.send(rng.choice(_JUNK))
            answered = await client.get(conn, "junk", (400,), may_close=True)
            if answered and not await conn.at_end():
                raise Wrong("a connection was kept after bytes that are no request")
            conn.close()
        else:
            wanted = client.wanted()
            since = time.monotonic()
            client.owe(wanted)
            await conn.send(request(wanted.path, wanted.body, version="1.0"))
            await client.read(conn, wanted, since, may_close=True)
            client.end(conn)
        conn = await client.open()
    conn.close()


async def expect(client: Client, conn: Conn) -> None:
    """Expect: 100-continue, waited for or not."""
    wanted = client.wanted()
    data = client.encode(wanted, Expect="100-continue")
    head = data.index(b"\r\n\r\n") + 4
    since = time.monotonic()
    await conn.send(data[:head])
    if client.rng.random() < 0.5:
        try:
            told = await conn.until(b"\r\n\r\n")
        except Gone as gone:
            client.cut(conn, wanted.rid, gone, 0)
            conn.close()
            return
        if not told.startswith(b"HTTP/1.1 100 "):
            raise Wrong(f"no 100 but {told!r}")
    await conn.send(data[head:])
    await client.read(conn, wanted, since)
    client.end(conn)


async def large(client: Client, conn: Conn) -> None:
    """Prompts that are encoded beside the loop, or are too long; sometimes nobody waits."""
    rng = client.rng
    rid = client.rid()
    too_long = rng.random() < 0.2
    text = rid + "lorem ipsum " * (6000 if too_long else rng.randint(700, 2500))
    params = {"max_new_tokens": rng.randint(0, 9)}
    expected = oracle.answer(text.encode(), params, client.config.at_random)
    body = {"rid": rid, "text": text, "sampling_params": params, "stream": rng.random() < 0.5}
    wanted = Wanted(rid, body, [expected], [rid], False)
    if too_long:
        wanted.may = refused
    since = time.monotonic()
    await conn.send(client.encode(wanted))
    if rng.random() < 0.3:
        (conn.reset if rng.random() < 0.5 else conn.close)()
        client.left("large")
        return
    if not too_long and rng.random() < 0.3:  # maybe while it is being encoded
        wanted.may = aborted
        await client.abort({"rid": rid})
    outcome = await client.read(conn, wanted, since)
    if too_long and outcome is not None and outcome.kind == OK:
        raise Wrong(f"{len(text)} tokens in a context of 65536")
    client.end(conn)


async def faulty(client: Client, conn: Conn) -> None:
    """Ask the scheduler to fail."""
    rng = client.rng
    fault = rng.choice(faults.RID_FAULTS)
    if fault.name == "wide" and rng.random() < 0.5:
        fault = faults.BY_NAME["late"]
    wanted = client.wanted(
        client.rid(f"f-{fault.name}-"), rng.choice(fault.streams), fault.least, 40, False, True
    )
    faults.apply(fault, wanted)
    since = time.monotonic()
    await conn.send(client.encode(wanted))
    if fault.name == "mute":
        await asyncio.sleep(rng.random() * 0.2)
        if rng.random() < 0.5:
            (conn.reset if rng.random() < 0.5 else conn.close)()
            client.left("mute")
            return
        await client.abort({"rid": wanted.rid})
        # The abort may have overtaken its request: say it until it is heard. Nobody else ends
        # this request: where no connection is to be had any more (a drain), its client leaves,
        # or the drain would take all of its time.
        reading = asyncio.ensure_future(client.read(conn, wanted, since))
        while not (await asyncio.wait([reading], timeout=1.0))[0]:
            if await client.abort({"rid": wanted.rid}):
                continue
            reading.cancel()
            await asyncio.wait([reading])
            conn.close()
            client.left("mute")
            return
        await reading
    else:
        await client.read(conn, wanted, since)
    client.end(conn)


SCENARIOS: Final[dict[Scenario, int]] = {
    keep_alive: 22,
    pipeline: 12,
    deep: 2,
    abort_one: 12,
    twins: 3,
    reset: 18,
    stop_reading: 8,
    half_sent: 7,
    half_close: 6,
    churn: 8,
    expect: 3,
    large: 3,
    faulty: 18,
}
