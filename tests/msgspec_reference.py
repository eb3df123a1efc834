"""What msgspec says of a message, from the same tables. Owner: tests; needs msgspec.

Run as a script it writes `data/msgspec_texts.json`: bytes, and the rid and reason that a scheduler
whose decoder is msgspec would report for them. The tests hold our own texts to that file on every
build, and to a live msgspec where there is one.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any, Literal, Optional, Union

import msgspec

from tpc_server.boundary.messages import GENERATE, SAMPLING, STRUCTS, TAGGED, generate_template
from tpc_server.boundary.schema import Field, Struct, _split_union

DATA = Path(__file__).with_name("data") / "msgspec_texts.json"


def python_type(text: str, structs: dict[str, Any]) -> Any:
    members: list[Any] = []
    for part in _split_union(text):
        if part.startswith("["):
            members.append(list[python_type(part[1:-1], structs)])  # type: ignore[misc]
        elif part.startswith("{"):
            members.append(dict[str, python_type(part[1:-1], structs)])  # type: ignore[misc]
        elif part.startswith("@"):
            members.append(structs[part[1:]])
        elif part.startswith("'"):
            members.append(Literal[tuple(word.strip("'") for word in part.split("/"))])
        else:
            plain = {"int": int, "float": float, "bool": bool, "str": str, "bytes": bytes}
            members.append(None if part == "null" else Any if part == "any" else plain[part])
    if members == [None]:
        return None
    if None in members:
        rest = [member for member in members if member is not None]
        return Optional[Union[tuple(rest)]]  # noqa: UP007, UP045 - built at run time
    return Union[tuple(members)]  # noqa: UP007 - built at run time


def struct_type(struct: Struct, structs: dict[str, Any]) -> Any:
    fields = [_field(field, structs) for field in struct.fields]
    return msgspec.defstruct(struct.name, fields, tag=struct.tag, array_like=True, kw_only=True)


def _field(field: Field, structs: dict[str, Any]) -> Any:
    kind = python_type(field.type, structs)
    return (field.name, kind) if field.default is ... else (field.name, kind, field.default)


def reference() -> Any:
    structs: dict[str, Any] = {}
    for name, struct in STRUCTS.items():
        structs[name] = struct_type(struct, structs)
    types = [struct_type(struct, structs) for struct in TAGGED.values()]
    return msgspec.msgpack.Decoder(Union[tuple(types)])  # noqa: UP007 - built at run time


def verdict(decoder: Any, data: bytes) -> tuple[str | None, str] | None:
    """(rid, reason) as a msgspec scheduler reports them, None if it takes the message."""
    try:
        decoder.decode(data)
        return None
    except Exception as error:
        reason = str(error)
    try:
        values = msgspec.msgpack.decode(data)
    except Exception:
        values = None
    if not isinstance(values, list) or not values:
        return None, reason
    rid = str(values[1]) if len(values) > 1 and values[1] is not None else None
    struct = TAGGED.get(values[0]) if isinstance(values[0], str) else None
    found = re.search(r"\$\[(\d+)\]", reason)
    if struct is not None and found and 1 <= int(found[1]) <= len(struct.fields):
        name = struct.fields[int(found[1]) - 1].name
        reason = f"{reason[: found.start()]}$.{name}{reason[found.end() :]}"
    return rid, reason


def samples(seed: int, n_flips: int) -> list[bytes]:
    """Messages of every type, each field replaced by something else, cut, extended, flipped."""
    rng = random.Random(seed)
    pack = msgspec.msgpack.encode
    whole = [_example(tag) for tag in TAGGED]
    out = [pack(message) for message in whole]
    others: list[Any] = [
        None, True, 5, -3, 1.5, "x", "last", b"raw", [], ["a"], [1], [1.5], [["a"]], [[5]], {},
        {"k": 1}, {"k": "v"}, {1: 2}, {"k": [1]}, {"k": [1.5]}, {"k": {"z": 1}}, {"k": {"z": []}},
        [None], [True],
    ]  # fmt: skip
    for message in whole:
        for at in range(len(message)):
            for other in others:
                changed = list(message)
                changed[at] = other
                out.append(pack(changed))
        for size in range(len(message)):
            out.append(pack(message[:size]))
        out.append(pack([*message, "more", 1, 2, 3, 4]))
    sampling_at = GENERATE["sampling_params"]
    for at in SAMPLING.values():
        for other in others:
            changed = _example("TokenizedGenerateReqInput")
            changed[sampling_at][at] = other
            out.append(pack(changed))
    plain: tuple[Any, ...] = ({}, [], "x", 5, None, True, 1.5, b"x", ["Q", "r1"], [5, "r"], [None],
             [["T"]], ["Q"], ["Q", None], ["Q", 7])  # fmt: skip
    out += [pack(value) for value in plain]
    short = [pack(_example("AbortReq")), pack(_example("CheckWeightsReqInput"))]
    for message_bytes in [*short, pack(generate_template())]:
        step = max(1, len(message_bytes) // 40)
        out += [message_bytes[:size] for size in range(0, len(message_bytes), step)]
        out += [message_bytes + b"\0", message_bytes[:-1] + b"\xc1"]
        for _ in range(n_flips):
            flipped = bytearray(message_bytes)
            for _ in range(rng.randint(1, 3)):
                flipped[rng.randrange(len(flipped))] = rng.randrange(256)
            out.append(bytes(flipped))
    return list(dict.fromkeys(out))


def _example(tag: str) -> list[Any]:
    if tag == "TokenizedGenerateReqInput":
        message = generate_template()
        message[1] = "r1"
        message[GENERATE["input_text"]] = ["a", ["b"]]
        message[GENERATE["session_params"]] = ["id", None, 4]
        return message
    message = [tag, "r1", None]
    for field in TAGGED[tag].fields[2:]:
        message.append("text" if field.default is ... else field.default)
    return message


def main() -> None:
    decoder = reference()
    rows = []
    for data in samples(seed=1, n_flips=60):
        found = verdict(decoder, data)
        rows.append([data.hex(), *(found if found else (None, None))])
    # Many replaced fields say the same of another place: keep the file small, evenly.
    kept = rows[:: max(1, len(rows) // 250)]
    DATA.write_text("[\n" + ",\n".join([json.dumps(row) for row in kept]) + "\n]\n")
    print(len(kept), "of", len(rows), "rows", file=sys.stderr)


if __name__ == "__main__":
    main()
