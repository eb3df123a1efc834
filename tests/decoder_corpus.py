"""Bodies for every declared request type: each field with each of many values, and JSON's corners.
Owner: tests."""

from __future__ import annotations

import json
from typing import Any

from tests.contract_corpus import all_bodies

# Values that fields are given: wrong types, bounds, nulls, lists and objects of them.
PROBES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, -2, -3, 0.5, 1.5, -0.5, 2.5, 2**31, 2**63, -(2**63) - 1,
    2**70, "", "a", "1", "x" * 129, "x" * 257, [], [1], [0, -1], ["a"], [""], ["a"] * 33, [None],
    [1.5], [True], [[1]], [[1], None], [{}], {}, {"a": 1}, {"a": "b"}, {"1": 0.5}, {"1": "b"},
    {"enabled": False}, {"enabled": True}, {"enabled": False, "more": 1}, {"a": [[1]]},
]  # fmt: skip

# A body of each type that is fine, and the names of its decoders in tests/decoder_outcomes.py.
BASES: dict[str, dict[str, Any]] = {
    "generate": {"text": "a"},
    "chat": {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5},
    "completion": {"prompt": "a"},
    "abort": {"rid": "a"},
    "tokenize": {"prompt": "a"},
    "detokenize": {"tokens": [1]},
    "parse": {"text": "a", "tool_call_parser": "json"},
    "separate": {"text": "a", "reasoning_parser": "deepseek-r1"},
    "messages": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 5,
    },
    "count": {"model": "tiny", "messages": [{"role": "user", "content": "a"}]},
    "vertex": {"instances": [{"text": "a"}]},
    "weights": {},
    "attach": {"hicache_storage_backend": "file"},
    "pause": {},
    "continue": {},
    "open": {"capacity_of_str_len": 10},
    "close": {"session_id": "a"},
    "route": {
        **dict.fromkeys(
            ("attn_tp_size", "attn_cp_size", "attn_dp_size", "pp_size", "system_dp_size",
             "page_size", "rank_port"), 1,
        ),
        **dict.fromkeys(
            ("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "system_dp_rank"), 0
        ),
        "rank_ip": "a",
    },
    "dp_rank": {"bootstrap_room": 1, "dp_rank": 0},
    "query": {"bootstrap_rooms": [1]},
}  # fmt: skip

# JSON values as bytes: forms of numbers and strings that readers have been seen to differ in.
NUMBERS: list[bytes] = [
    b"0", b"-0", b"-0.0", b"0.0", b"1.0", b"1e0", b"1E+2", b"1e-2", b"1e-400", b"1e400", b"-1e400",
    b"5e-324", b"2e-324", b"1.7976931348623157e308", b"1.7976931348623159e308", b"0.1",
    b"0.30000000000000004", b"123456789012345678", b"9007199254740993", b"9007199254740993.0",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
    b"-9223372036854775809", b"18446744073709551615", b"18446744073709551616",
    b"-18446744073709551616", b"1" * 30, b"1" * 309, b"9" * 309, b"-" + b"1" * 400, b"1" * 4299,
    b"1" * 4300, b"1" * 4301, b"-" + b"1" * 4299, b"-" + b"1" * 4300, b"0." + b"1" * 5000,
    b"1e" + b"9" * 20, b"1e-" + b"9" * 20, b"1" * 20 + b".5", b"00", b"01", b"-01", b"+1", b".5",
    b"1.", b"1.e1", b"1e", b"1e+", b"-", b"--1", b"0x1", b"1_0", b"1 2", b"1,2", b"NaN", b"nan",
    b"Infinity", b"-Infinity", b"inf", b"1f", b"1n", "٣".encode(), "１".encode(),
]  # fmt: skip
STRINGS: list[bytes] = [
    b'""', b'"\\""', b'"\\\\"', b'"\\/"', b'"\\b\\f\\n\\r\\t"', b'"\\u0000"', b'"\\u001f"',
    b'"\\u007f"', b'"\x7f"', b'"\\u00e9"', b'"\\u00E9"', b'"\\uD83D\\uDE00"', b'"\\ud83d\\ude00"',
    b'"\\ud83d"', b'"\\ude00"', b'"\\ude00\\ud83d"', b'"\\ud83d\\ud83d\\ude00"', b'"\\ud83d "',
    b'"\\ud83d\\\\ude00"', b'"\\\\ud83d"', b'"\\\\\\ud83d"', b'"\\uDBFF\\uDFFF"', b'"\\uFFFF"',
    b'"\\ufeff"', '"\ufeff"'.encode(), '"\u2028\u2029\x85"'.encode(), '"\U0010ffff"'.encode(),
    '"e\u0301 \u200d 😀"'.encode(), b'"\\a"', b'"\\x41"', b'"\\u12"', b'"\\u12g4"', b'"\\U0041"',
    b'"\\"', b'"', b"'a'", b"a", b'"a\nb"', b'"a\tb"', b'"a\x00b"', b'"a\x1fb"', b'"\xff"',
    b'"\xc0\xaf"', b'"\xc1\xbf"', b'"\xe0\x80\xaf"', b'"\xed\xa0\x80"', b'"\xed\xb0\x80"',
    b'"\xf0\x80\x80\xaf"', b'"\xf4\x90\x80\x80"', b'"\xf8\x88\x80\x80\x80"', b'"\x80"',
    b'"\xe2\x82"', b'"\xc3"', b'"' + b"a" * 70000 + b'"', b'"' + "é".encode() * 5000 + b'"',
]  # fmt: skip
OTHERS: list[bytes] = [
    b"null", b"true", b"false", b"nul", b"nulll", b"True", b"None", b"undefined", b"", b"[1,]",
    b"[,1]", b"[1 2]", b"[", b"]", b"{", b"}", b"{1:2}", b'{"a"}', b'{"a":}', b'{"a":1,}',
    b'{"a":1 "b":2}', b'{"a":1,"a":2}', b'{"\\u0061":1,"a":2}', b'{"":1}', b'{"a":{"a":{"a":1}}}',
    b"[[],{},[[]],[{}]]", b"/*x*/1", b"1//x", b"\x0b1", b"\x0c1", b"\xc2\xa01", b"\xe2\x80\x8b1",
    b" \t\r\n1 \t\r\n", b"[" * 127 + b"]" * 127, b"[" * 128 + b"]" * 128, b"[" * 900 + b"]" * 900,
    b'{"a":' * 127 + b"1" + b"}" * 127, b'{"a":' * 128 + b"1" + b"}" * 128,
    b'{"a":[' * 64 + b"1" + b"]}" * 64, b"[" * 200000, b"[]" * 200, b"[" + b"1," * 5000 + b"1]",
    b'"' + b"[" * 5000 + b'"', b'["' + b"\\\"[" * 500 + b'"]',
]  # fmt: skip
WHOLE: list[bytes] = [
    b'{"text":"a"}\x00', b'\x00{"text":"a"}', b'{"text":"a"} \x0b', b'{"text":"a"}\n\n',
    b'{"text":"a"},', b'{"text":"a"}]', b'[{"text":"a"}]', b'({"text":"a"})',
    '{"text":"a"}'.encode("utf-16"), '{"text":"a"}'.encode("utf-16-le"),
    '{"text":"a"}'.encode("utf-32-be"), b'\xef\xbb\xbf{"text":"a"}', b'\xfe\xff{"text":"a"}',
    b'{"te\\u0078t":"a"}', b'{"text":"a","TEXT":5}', b'{"text":"a","text ":5}',
    b'{"text":"a","te\x00xt":5}', b'{"text":"a","":1}', b'{"text":5,"text":"a"}',
    b'{"text":"a","text":5}', b'{"text":"a","sampling_params":{"n":2,"n":1}}',
    b'{"__proto__":1,"text":"a"}', b'{"text":"a","x":{"__class__":1}}',
]  # fmt: skip


def fields_of(kind: str) -> list[str]:
    """The declared names of a request type, and one it does not have."""
    from tpc_server.contract import control, registry
    from tpc_server.contract.abort import ABORT_TABLE
    from tpc_server.contract.anthropic_fields import COUNT_TABLE, MESSAGES_TABLE
    from tpc_server.contract.fields import REFUSED, REQUEST_TABLE
    from tpc_server.contract.openai_fields import CHAT_TABLE, COMPLETION_TABLE
    from tpc_server.contract.parse import PARSE_TABLE, SEPARATE_TABLE
    from tpc_server.contract.texts import DETOKENIZE_TABLE, TOKENIZE_TABLE

    tables: dict[str, Any] = {
        "generate": REQUEST_TABLE, "chat": CHAT_TABLE, "completion": COMPLETION_TABLE,
        "abort": ABORT_TABLE, "tokenize": TOKENIZE_TABLE, "detokenize": DETOKENIZE_TABLE,
        "messages": MESSAGES_TABLE, "count": COUNT_TABLE,
        "parse": PARSE_TABLE, "separate": SEPARATE_TABLE, "weights": control.WEIGHTS_TABLE,
        "attach": control.ATTACH_TABLE, "pause": control.PAUSE_TABLE,
        "continue": control.CONTINUE_TABLE, "open": control.OPEN_TABLE,
        "close": control.CLOSE_TABLE, "route": registry.ROUTE_TABLE,
        "dp_rank": registry.DP_RANK_TABLE, "query": registry.QUERY_TABLE,
    }  # fmt: skip
    if kind == "vertex":
        return ["instances", "parameters", "rid", "of_no_type"]
    names = [row.name for row in tables[kind]]
    return [*names, *(REFUSED if kind == "generate" else ()), "of_no_type"]


def corpus() -> list[tuple[str, bytes]]:
    """(request type, body) of all of them."""
    from tpc_server.contract.sampling_fields import SAMPLING_NAMES

    out = [("generate", body) for body in [*all_bodies(), *WHOLE]]
    for kind, base in BASES.items():
        out.append((kind, json.dumps(base).encode()))
        out.append((kind, b"{}"))
        for name in fields_of(kind):
            for probe in PROBES:
                out.append((kind, json.dumps({**base, name: probe}).encode()))
    for name in (*SAMPLING_NAMES, "of_no_type"):
        for probe in PROBES:
            body = {"text": "a", "sampling_params": {name: probe}}
            out.append(("generate", json.dumps(body).encode()))
    for raw in (*NUMBERS, *STRINGS, *OTHERS):
        for frame in (
            b'{"text":"a","of_no_type":%b}', b'{"text":%b}', b'{"text":"a","priority":%b}',
            b'{"text":"a","sampling_params":{"temperature":%b}}',
            b'{"text":"a","sampling_params":{"custom_params":{"k":%b}}}', b'{"input_ids":[1,%b]}',
            b'{"text":"a","custom_labels":{%b:"v"}}',
        ):  # fmt: skip
            out.append(("generate", frame % raw))
        out.append(("chat", b'{"messages":[{"role":"user","content":%b}]}' % raw))
        out.append(("completion", b'{"prompt":"a","stop":[%b]}' % raw))
    return out
