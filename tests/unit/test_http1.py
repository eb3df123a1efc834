"""Requests out of bytes, in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_server.body import Pieces, whole
from tpc_server.http1 import HttpError, KnownHeads, RequestParser

RAW = (
    b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nX-Request-ID: 7\r\nContent-Length: 3\r\n\r\nabc"
    b"GET http://h/p HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
)


def shown(request):
    return (
        request.method, request.path, request.query, request.headers, request.body,
        request.http11, request.keep_alive,
    )  # fmt: skip


EXPECTED = [
    (
        b"POST", b"/a", b"b=c", {b"host": b"x", b"x-request-id": b"7", b"content-length": b"3"},
        b"abc", True, True,
    ),
    (b"GET", b"/p", b"", {b"host": b"h"}, b"", True, False),
]  # fmt: skip
POST = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@given(st.lists(st.integers(0, len(RAW)), max_size=8))
def test_any_pieces_give_the_same_requests(cuts):
    parser = RequestParser(4096, 4096)
    at = 0
    for cut in [*sorted(cuts), len(RAW)]:
        if cut > at:
            parser.feed(RAW[at:cut])
            at = cut
    assert [shown(r) for r in parser.ready] == EXPECTED
    assert not parser.started


def test_state_while_a_request_arrives():
    parser = RequestParser(4096, 4096)
    parser.feed(POST)
    assert parser.started and not parser.in_body
    parser.feed(b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert parser.in_body and parser.wants_continue and parser.target == b"/x"
    parser.feed(b"a")
    assert not parser.wants_continue
    parser.feed(b"b")
    assert parser.ready[0].body == b"ab" and not parser.started


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 300 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 300, 431),
        (b"GET /" + b"a" * 300 + b" HTTP/1.1\r\n\r\n", 431),
        (POST + b"Content-Length: 101\r\n\r\n", 413),
        (CHUNKED + b"\r\n32\r\n" + b"x" * 50 + b"\r\n33\r\n", 413),
        (CHUNKED + b"\r\n65\r\n", 413),
        (CHUNKED + b"\r\n00000000000000000000000065;a=b\r\n", 413),
        (CHUNKED + b"\r\nfffffffffffffffff\r\n", 400),
        (CHUNKED + b"\r\n1;" + b"a" * 400, 431),
        (CHUNKED + b"\r\n1\r\na\r\n0\r\nX: " + b"a" * 400, 431),
        (CHUNKED + b"\r\n1\r\na\r\n0\r\n" + b"X: a\r\n" * 60, 431),
        (CHUNKED + b"\r\n1\r\na\r\n0\r\nContent-Length: 3\r\n\r\n", 400),
        (CHUNKED.replace(b": c", b": gzip, c") + b"\r\n", 501),
        (CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n", 400),
        (CHUNKED.replace(b"chunked", b"gzip") + b"\r\n", 400),
        (CHUNKED.replace(b"1.1", b"1.0") + b"\r\n", 400),
        (POST + b"Expect: wonders\r\nContent-Length: 1\r\n\r\n", 417),
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400),
        (POST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400),
        *[
            (b"GET / HTTP/1.%d\r\nHost: %b\r\n\r\n" % (minor, host), 400)
            for minor in (0, 1)
            for host in (
                b"a b",
                b"a/b",
                b"u:p@a",
                b"[::1",
                b"::1",
                b"a:b",
                b"a:65536",
                b"\xff",
                b"a:80:80",
                b"http://a",
                b"a?",
                b"[]",
            )
        ],
        *[
            (b"GET http://%b/live HTTP/1.1\r\nHost: x\r\n\r\n" % host, 400)
            for host in (b"[::1", b"a:b@x:99999", b"a@x", b"", b":80", b"x:99999", b"a[b]")
        ],
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
    ],
)
@pytest.mark.parametrize("piece", [50, 1, 7, 10_000])
def test_what_is_refused(raw, status, piece):
    parser = RequestParser(256, 100)
    with pytest.raises(HttpError) as caught:
        for at in range(0, len(raw), piece):
            parser.feed(raw[at : at + piece])
        assert piece == 10_000 and status == 431  # a read is one piece: bounded by its size
        for _ in range(3):
            parser.feed(b"")
            parser.feed(b"a" * 300)
    assert caught.value.status == status


@given(st.data())
def test_a_chunk_that_does_not_fit_is_refused_when_its_size_has_come(data):
    """Whatever the pieces and the body look like, and no body that fits is refused."""
    sizes = data.draw(st.lists(st.integers(1, 40), max_size=4))
    filler = data.draw(st.sampled_from([b"a", b"0", b"\r\n\r\nff\r\n", b"f\n"]))
    body = [(filler * 40)[:size] for size in sizes]
    over = data.draw(st.booleans())
    size_lines = st.sampled_from([b"%x", b"%X", b"000%x", b"%x;a=b", b'%x;a="q"'])
    raw = data.draw(st.sampled_from([b"", b"\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"]))
    after = len(raw) if raw[:1] == b"G" else 0  # sent apart: where the body starts is known
    raw += CHUNKED + b"\r\n"
    for piece in body:
        raw += data.draw(size_lines) % len(piece) + b"\r\n" + piece + b"\r\n"
    raw += b"%x\r\n" % (1001 - sum(sizes)) if over else b"0\r\nX: y\r\n\r\n"
    parser = RequestParser(4096, 1000)
    cuts = data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=6))
    at = 0
    try:
        for cut in [*sorted({*cuts, after} - {0}), len(raw)]:
            parser.feed(raw[at:cut])
            at = cut
        assert not over
    except HttpError as error:
        assert over and error.status == 413 and at + len(raw[at:cut]) == len(raw)
    else:
        assert parser.ready[-1].body == b"".join(body) and not parser.started


def test_trailers_are_no_headers():
    parser = RequestParser(4096, 4096)
    trailers = b"Authorization: x\r\nHost: y\r\nX-Request-Id: 2\r\nExpect: z\r\n"
    parser.feed(CHUNKED + b"X-Request-Id: 1\r\n\r\n1\r\na\r\n")
    assert parser.headers[b"x-request-id"] == b"1"
    parser.feed(b"0\r\n" + trailers + b"\r\n")
    parser.feed(POST + b"\r\n")
    first, second = parser.ready
    assert first.body == b"a"
    assert first.headers == {
        b"host": b"x", b"transfer-encoding": b"chunked", b"x-request-id": b"1",
    }  # fmt: skip
    assert second.headers == {b"host": b"x"}


UPGRADES = (
    b"GET /a HTTP/1.1\r\nHost: x\r\n" + UPGRADE + b"\r\n"
    + POST + UPGRADE + b"Content-Length: 3\r\nX-Request-Id: 7\r\n\r\nabc"
    + CHUNKED + UPGRADE + b"\r\n3\r\ndef\r\n0\r\n\r\n"
    + POST + UPGRADE.replace(b"Upgrade,", b"close, Upgrade,") + b"Content-Length: 1\r\n\r\ng"
)  # fmt: skip


@given(st.lists(st.integers(1, len(UPGRADES)), max_size=8))
def test_upgrades_are_ignored(cuts):
    parser = RequestParser(4096, 4096)
    at = 0
    for cut in [*sorted(set(cuts)), len(UPGRADES)]:
        if cut > at:
            parser.feed(UPGRADES[at:cut])
            at = cut
    assert [r.body for r in parser.ready] == [b"", b"abc", b"def", b"g"]
    assert [r.method for r in parser.ready] == [b"GET", b"POST", b"POST", b"POST"]
    assert [r.keep_alive for r in parser.ready] == [True, True, True, False]
    assert parser.ready[1].headers[b"x-request-id"] == b"7"
    assert not parser.started


def test_an_upgrade_that_waits_for_its_100():
    parser = RequestParser(4096, 4096)
    parser.feed(POST + UPGRADE + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert parser.wants_continue and parser.target == b"/x" and not parser.ready


def test_what_follows_connect_is_no_request():
    parser = RequestParser(4096, 4096)
    parser.feed(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + POST + b"\r\n")
    assert [(r.method, r.keep_alive) for r in parser.ready] == [(b"CONNECT", False)]


@pytest.mark.parametrize(
    ("raw", "head"),
    [
        (b"HEAD / HTTP/1.1\r\nBad Header\r\n\r\n", True),
        (b"HEAD /" + b"a" * 5000, True),
        (b"HEAD / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nNONSENSE\r\n\r\n", False),
    ],
)
def test_the_method_of_malformed_input(raw, head):
    parser = RequestParser(4096, 4096)
    with pytest.raises(HttpError):
        parser.feed(raw)
    assert parser.head_only is head


@given(st.data())
def test_damaged_input_is_refused_in_words(data):
    """Whatever is broken: HttpError or requests, never anything else."""
    raw = bytearray(
        data.draw(st.sampled_from([RAW, UPGRADES, CHUNKED + b"\r\n3;a=b\r\nabc\r\n0\r\n\r\n"]))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        with_ = data.draw(
            st.sampled_from([b"", b"\r\n", b"\n", b"\0", b" ", b":", b"\xff", b"9", b"HEAD"])
        )
        raw[at : at + data.draw(st.integers(0, 3))] = with_
    parser = RequestParser(1024, 64)
    size = data.draw(st.integers(1, 60))
    for at in range(0, len(raw), size):
        try:
            parser.feed(bytes(raw[at : at + size]))
        except HttpError as error:
            assert error.status in (400, 413, 417, 431, 501, 505) and error.message
            assert parser.head_only in (True, False) and type(parser.headers) is dict
            break
        assert type(parser.target) is bytes and type(parser.method) is bytes


@given(st.integers(1, 300), st.integers(20, 400))
def test_the_head_limit_holds_however_it_arrives(piece, length):
    raw = b"GET / HTTP/1.1\r\nHost: x\r\n"
    while len(raw) < length:
        raw += b"A%d: b\r\n" % len(raw)
    raw += b"\r\n"
    parser = RequestParser(200, 100)
    try:
        for at in range(0, len(raw), piece):
            parser.feed(raw[at : at + piece])
        accepted = True
    except HttpError as error:
        assert error.status == 431
        accepted = False
    # The request line's method and version are not counted, a little more may be.
    if len(raw) <= 200:
        assert accepted
    if len(raw) > 200 + 60:
        assert not accepted


def test_a_large_body_is_not_joined_here():
    data = bytes(range(256)) * 2000
    parser = RequestParser(4096, 1 << 20)
    parser.feed(POST + b"Content-Length: %d\r\n\r\n" % len(data))
    for at in range(0, len(data), 60_000):
        parser.feed(data[at : at + 60_000])
    body = parser.ready[0].body
    assert type(body) is Pieces and len(body) == len(data) and whole(body) == data
    for size in (0, 1, 100_000):
        parser.ready.clear()
        parser.feed(POST + b"Content-Length: %d\r\n\r\n" % size)
        for at in range(0, size, 60_000):
            parser.feed(data[at : min(at + 60_000, size)])
        assert parser.ready[0].body == data[:size]


def test_pipelined_requests_do_not_count_for_the_next_head():
    one = b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"b" * 60 + b"\r\n\r\n"
    raw = one * 50
    parser = RequestParser(200, 100)
    for at in range(0, len(raw), 190):
        parser.feed(raw[at : at + 190])
    assert len(parser.ready) == 50


HEAD = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"


def learned(data):
    """Heads after one read between two requests."""
    heads, parser = KnownHeads(), RequestParser(4096, 4096)
    parser.feed(data)
    heads.learn(data, parser.ready[0])
    return heads


def test_a_head_that_came_before_means_the_same_with_another_body():
    heads = learned(HEAD + b"abc")
    again = RequestParser(4096, 4096)
    again.feed(HEAD + b"x\r\n")
    assert shown(heads.find(HEAD + b"x\r\n")) == shown(again.ready[0])


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"ab", HEAD + b"abcd", HEAD + b"abc" + HEAD + b"abc", HEAD[:-2], b"\r\n" + HEAD,
        HEAD.replace(b"x", b"y") + b"abc", HEAD.lower() + b"abc", b"abc", HEAD[5:] + b"abc",
    ],
)  # fmt: skip
def test_anything_but_a_known_head_with_its_whole_body_is_the_parsers(data):
    assert learned(HEAD + b"abc").find(data) is None


@pytest.mark.parametrize(
    "data",
    [
        HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"abc",
        HEAD.replace(b"1.1", b"1.0") + b"abc",
        HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") + b"abc",
        HEAD.replace(b"Content-Length: 3", b"Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\n\r\n",
        HEAD.replace(b"Host: x", b"Host: " + b"x" * 2048) + b"abc",
        b"\r\n\r\n" + HEAD + b"abc",
    ],
)
def test_unusual_heads_are_not_remembered(data):
    assert learned(data).find(data) is None


def test_heads_are_bounded():
    heads = KnownHeads()
    for n in range(5000):
        parser = RequestParser(4096, 4096)
        data = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n
        parser.feed(data)
        heads.learn(data, parser.ready[0])
    assert len(heads._heads) <= 512
    last = heads.find(data)
    assert last is not None and last.path == b"/4999"


@pytest.mark.parametrize(
    "host",
    [b"", b"x", b"a.b_c-d~e:8080", b"[::1]", b"[fe80::1%25eth0]:80", b"127.0.0.1:0", b"x:",
     b"%2Frun", b"x:65535"],
)  # fmt: skip
def test_hosts_that_there_are(host):
    parser = RequestParser(1000, 1000)
    parser.feed(b"GET /a HTTP/1.1\r\nHost: %b \r\n\r\n" % host)
    assert parser.ready.pop().path == b"/a"
    if host:
        parser.feed(b"GET http://%b/a?b HTTP/1.1\r\nHost: y\r\n\r\n" % host)
        assert parser.ready.pop().path == b"/a"
    for target in (b"*", b"ftp://x/a", b"http://x"):
        parser.feed(b"OPTIONS %b HTTP/1.1\r\nHost: y\r\n\r\n" % target)
        assert parser.ready.pop().path in (target, b"/")
