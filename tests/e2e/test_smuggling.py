"""No request is taken out of what another reader would take for a body, nor the other way round."""

from __future__ import annotations

import pytest

from tests.e2e.parity_scheduler import by_hand
from tests.http_client import Client

POST = b"POST /generate HTTP/1.1\r\nHost: x\r\n"
HIDDEN = POST + b'Content-Length: 15\r\n\r\n{"text":"abcd"}'

#: Behind `Transfer-Encoding: chunked`.
CHUNKS = [
    b"5\nabcde\r\n0\r\n\r\n",  # bare LF, at each line
    b"5;a=b\nabcde\r\n0\r\n\r\n",
    b"5;\nabcde\r\n0\r\n\r\n",
    b"5\r\nabcde\n0\r\n\r\n",
    b"5\r\nabcde\r\n0\n\r\n",
    b"5\r\nabcde\r\n0\r\n\n",
    b"5\rabcde\r\n0\r\n\r\n",  # bare CR
    b"1x\r\na\r\n0\r\n\r\n",  # sizes that are none
    b"0x5\r\nabcde\r\n0\r\n\r\n",
    b"+5\r\nabcde\r\n0\r\n\r\n",
    b"-1\r\na\r\n0\r\n\r\n",
    b"5_0\r\nabcde\r\n0\r\n\r\n",
    b"5 \r\nabcde\r\n0\r\n\r\n",
    b" 5\r\nabcde\r\n0\r\n\r\n",
    b"\r\nabcde\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\na\r\n0\r\n\r\n",  # 413: larger than any body may be
    b"ffffffffffffffff1\r\na\r\n0\r\n\r\n",
    b"1\r\naXX\r\n0\r\n\r\n",  # junk behind the data
    b"5\r\nabcdeX0\r\n\r\n",
    b"5\r\nabcde\r\n",  # no last chunk: the next request stands where a size should
]
HEADS = [
    b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding\x0b: chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    b"Content-Length: 4, 4\r\n\r\nabcd",
    b"Content-Length: 4 4\r\n\r\nabcd",
    b"Content-Length : 4\r\n\r\nabcd",
    b"Content-Length: -1\r\n\r\n",
    b"Content-Length: +4\r\n\r\nabcd",
    b"Content-Length: 0x4\r\n\r\nabcd",
    b"Content-Length: 4_0\r\n\r\nabcd",
    b"Content-Length: 18446744073709551620\r\n\r\nabcd",
    b"Content-Length:\r\n\r\nabcd",
    b"X: a\nContent-Length: 4\r\n\r\nabcd",
    b"X: a\rContent-Length: 4\r\n\r\nabcd",
    b"Content-Length: 4\r\nX: a\n\nabcd",
    b"X: a\r\n folded\r\nContent-Length: 4\r\n\r\nabcd",
    b" X: a\r\nContent-Length: 4\r\n\r\nabcd",
    b": a\r\nContent-Length: 4\r\n\r\nabcd",
    b"no colon\r\nContent-Length: 4\r\n\r\nabcd",
    b"X: a\x00b\r\n\r\n",
    b"X\x00: a\r\nContent-Length: 4\r\n\r\nabcd",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from tests import tiny_tokenizer

    with by_hand(tiny_tokenizer.write(tmp_path_factory.mktemp("model"))) as made:
        yield made
        assert made.server.recv_requests() == []


@pytest.mark.parametrize("piece", [None, 1], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(
    "head", [*[b"Transfer-Encoding: chunked\r\n\r\n" + c for c in CHUNKS], *HEADS]
)
def test_no_smuggling(run, head, piece):
    """400 and close; what follows never runs as a request."""
    before = run.total("requests")
    raw = POST + head + HIDDEN
    with Client(run.address) as client:
        for at in range(0, len(raw), piece or len(raw)):
            try:
                client.send(raw[at : at + (piece or len(raw))])
            except OSError:  # it was refused, and the server has closed
                break
        try:
            answer = client.answer()
        except ConnectionError:  # a reset took the answer away, which is the sender's own doing
            assert piece
        else:
            assert answer.status == (413 if b"\nffffffffffffffff\r" in head else 400)
            assert answer.headers["connection"] == "close"
            assert not client.fill() and not client.buffer
    assert run.total("requests") == before
