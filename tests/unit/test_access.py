"""Keys and origins: where they come from, what opens what."""

from __future__ import annotations

import dataclasses
import hmac

import pytest

from tpc_server import access, config
from tpc_server.access import AccessProblem, Cors, Guard, digest, gather
from tpc_server.routes.table import ADMIN, ADMIN_OPTIONAL, KEY, OPEN

USER, CHIEF = b"user-key", b"chief-key"


def refusals(keys, admin_keys, authorization):
    """Statuses for the four classes."""
    guard = Guard([digest(k) for k in keys], [digest(k) for k in admin_keys])
    return [guard.refuses(c, authorization) for c in (OPEN, KEY, ADMIN_OPTIONAL, ADMIN)]


@pytest.mark.parametrize(
    ("keys", "admin_keys", "none", "user", "chief"),
    [  # SGLang's rules (its utils/auth.py)
        ([USER], [], [0, 401, 401, 403], [0, 0, 0, 403], [0, 401, 401, 403]),
        ([], [CHIEF], [0, 0, 401, 401], [0, 0, 401, 401], [0, 0, 0, 0]),
        ([USER], [CHIEF], [0, 401, 401, 401], [0, 0, 401, 401], [0, 401, 0, 0]),
        ([USER, b"2"], [CHIEF, USER], [0, 401, 401, 401], [0, 0, 0, 0], [0, 401, 0, 0]),
    ],
)
def test_what_a_key_opens(keys, admin_keys, none, user, chief):
    assert refusals(keys, admin_keys, None) == none
    assert refusals(keys, admin_keys, b"Bearer " + USER) == user
    assert refusals(keys, admin_keys, b"Bearer " + CHIEF) == chief


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Bearer user-key", 0),
        (b"bearer user-key", 0),
        (b"BEARER  user-key ", 0),
        (b"Bearer USER-KEY", 401),
        (b"Bearer user-ke", 401),
        (b"Bearer user-key2", 401),
        (b"Bearer", 401),
        (b"Bearer ", 401),
        (b"", 401),
        (b"user-key", 401),
        (b"Basic user-key", 401),
        (b"Bearer\tuser-key", 401),
        (b"Bearer user-key, Bearer user-key", 401),
        (b"Bearer \xff\xfe", 401),
    ],
)
def test_how_a_key_is_sent(header, status):
    assert Guard([digest(USER)], []).refuses(KEY, header) == status


def test_all_keys_are_compared_whichever_fits(monkeypatch):
    compared: list[int] = []
    real = hmac.compare_digest

    def compare(a, b):
        compared.append(len(a))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    guard = Guard([digest(k) for k in (b"a", b"bb", b"ccc")], [])
    for key in (b"a", b"ccc", b"much longer than any of them"):
        compared.clear()
        guard.refuses(KEY, b"Bearer " + key)
        assert compared == [32, 32, 32]


def test_where_keys_come_from(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\n\n two \none\n")
    names = ("TPC_API_KEY", "SGLANG_API_KEY")
    environ = {"TPC_API_KEY": "mine", "SGLANG_API_KEY": "theirs"}
    assert gather("api-key", ["zero"], [str(file)], names, environ) == ("zero", "one", "two")
    assert gather("api-key", [], [], names, environ) == ("mine",)
    assert gather("api-key", [], [], names, {"SGLANG_API_KEY": "theirs"}) == ("theirs",)
    assert gather("api-key", [], [], names, {"TPC_API_KEY": ""}) == ()


@pytest.mark.parametrize("key", ["", " secret", "secret ", "sec\nret", "sécret", "sec\tret"])
def test_a_key_that_nobody_could_send_is_refused_without_showing_it(key, tmp_path):
    with pytest.raises(AccessProblem, match=r"--api-key: ") as caught:
        gather("api-key", [key], [], ())
    assert "secret" not in str(caught.value) and "ret" not in str(caught.value)
    if key:
        with pytest.raises(AccessProblem, match="TPC_API_KEY: "):
            gather("api-key", [], [], ("TPC_API_KEY",), {"TPC_API_KEY": key})


def test_a_key_file_that_is_none(tmp_path):
    with pytest.raises(AccessProblem, match=r"--api-key-file .*/absent: No such file"):
        gather("api-key", [], [str(tmp_path / "absent")], ())
    (tmp_path / "empty").write_text("\n \n# comment\n")
    with pytest.raises(AccessProblem, match=r"/empty: no key in it"):
        gather("api-key", [], [str(tmp_path / "empty")], ())
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(AccessProblem, match=r"/bytes: not UTF-8"):
        gather("api-key", [], [str(tmp_path / "bytes")], ())


def test_comments_in_a_key_file(tmp_path):
    (tmp_path / "keys").write_text("# of the team\n k1\n\n  # another\nk#2\n")
    assert gather("api-key", [], [str(tmp_path / "keys")], ()) == ("k1", "k#2")


def test_options_show_no_key(monkeypatch):
    monkeypatch.setenv("SGLANG_API_KEY", "from-outside")
    options = config.Options(admin_api_keys=("of-the-chief",))
    assert options.api_keys == ("from-outside",)
    assert "from-outside" not in repr(options) and "of-the-chief" not in repr(options)
    assert "api_keys" in {f.name for f in dataclasses.fields(options)}


def test_origins():
    assert access.origins(None) == ("*",)
    assert access.origins(["none"]) == ()
    assert access.origins(["https://a.b:8443", "null"]) == ("https://a.b:8443", "null")
    for bad in ("a.b", "https://a.b/", "", "https://a b", "https://u@a.b"):
        with pytest.raises(AccessProblem, match="not an origin"):
            access.origins([bad])


def test_who_may_read_an_answer():
    anybody = Cors(["*"])
    assert anybody.lines(b"https://x.y") == b"Access-Control-Allow-Origin: *\r\n"
    some = Cors(["https://Good.example"])
    assert b"Allow-Origin: https://good.EXAMPLE\r\nVary: Origin" in some.lines(
        b"https://good.EXAMPLE"
    )
    for other in (b"https://good.example.evil", b"http://good.example", b"null", b"", b"*"):
        assert b"Allow-Origin" not in some.lines(other)
    asked = {b"origin": b"https://x.y", b"access-control-request-headers": b"a, b"}
    assert some.preflight(asked)[0] == 400
    status, _, lines = anybody.preflight(asked)
    assert status == 200 and b"Access-Control-Allow-Headers: a, b\r\n" in lines
