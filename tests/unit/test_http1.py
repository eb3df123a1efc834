"""Requests out of bytes, in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    (b"POST", b"/a", b"b=c", {b"x-request-id": b"7", b"content-length": b"3"}, b"abc", True, True),
    (b"GET", b"/p", b"", {}, b"", True, False),
]


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
    parser.feed(b"POST /x HTTP/1.1\r\n")
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
        (b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101, 413),
        (b"POST / HTTP/1.1\r\nExpect: wonders\r\nContent-Length: 1\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 400),
        (b"NONSENSE\r\n\r\n", 400),
    ],
)
def test_what_is_refused(raw, status):
    parser = RequestParser(256, 100)
    with pytest.raises(HttpError) as caught:
        for at in range(0, len(raw), 50):
            parser.feed(raw[at : at + 50])
    assert caught.value.status == status


@given(st.integers(1, 300), st.integers(20, 400))
def test_the_head_limit_holds_however_it_arrives(piece, length):
    raw = b"GET / HTTP/1.1\r\n"
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
    assert heads.find(data).path == b"/4999"
