"""What the contract check says of an SGLang that moved. Owner: a program of SGLang's environment.

`moved.py` prints as JSON: the facts of the SGLang installed; for each section what is said when all
that its facts are read from has moved; the one line of a start. SGLang's classes, functions and
texts are changed in memory, one section at a time, and put back.
"""

from __future__ import annotations

import importlib
import inspect
import json
import linecache
import struct
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from tpc_server.integrations.sglang import contract, facts, layouts, reading
from tpc_server.integrations.sglang.problem import Problem

IO = "sglang.srt.managers.io_struct"
LOADS = "sglang.srt.managers.load_snapshot"
CONN = "sglang.srt.disaggregation.common.conn"
SERVER = "sglang.srt.rust_server.server"
CONFIG = "sglang.srt.rust_server.config"
MODEL = "sglang.srt.configs.model_config"
STATE = "sglang.srt.managers.scheduler_components.internal_state"
# section -> (module, what it says, what it says then)
TEXTS: dict[str, list[tuple[str, str, str]]] = {
    "call": [
        (SERVER, "self.server.push_health_ack(", "self.server.acknowledge("),
        (SERVER, "port_offset=local_dp_rank", "offset=local_dp_rank"),
        (SERVER, "req.header", "req.head"),
        (SERVER, 'buffers.get("input_ids")', 'buffers.get("ids")'),
        (CONFIG, " weight_version=", " weights_version="),
        (CONFIG, " context_len=", " context="),
        (CONFIG, " priority_label=", " priority="),
    ],
    "module": [
        (CONFIG, "ext.DisaggregationMode.Decode", "ext.DisaggregationMode.Second"),
        (MODEL, '"min_p",', '"least_p",'),
    ],
    "registry": [
        (CONN, '"prefill_http_port"', '"http_port"'),
        (CONN, '"bootstrap_room"', '"room"'),
    ],
    "model": [(MODEL, f"self.{name} = ", f"self.{name}_ = ") for name in layouts._MODEL_FACTS],
    "state": [(STATE, f'state["{name}"] = ', 'state["other"] = ') for name in layouts._STATE],
}
# method, two names in it that change places
FRAMES = (
    ("push_generation", "payload.cached_tokens", "payload.reasoning_tokens"),
    ("push_abort", "req.cached_tokens", "req.reasoning_tokens"),
    ("push_control_output", "structs.asdict", "structs.astuple"),
)


@contextmanager
def text(module: str, old: str, new: str) -> Any:
    """A module whose text is another one, for whoever reads it."""
    file = inspect.getsourcefile(importlib.import_module(module))
    assert file is not None
    before = linecache.getlines(file)
    whole = "".join(before)
    assert old in whole, (module, old)
    changed = whole.replace(old, new)
    # Without a time it is not looked at again.
    linecache.cache[file] = (len(changed), None, changed.splitlines(keepends=True), file)
    yield
    linecache.cache[file] = (len(whole), None, before, file)


@contextmanager
def put(owner: Any, name: str, value: Any) -> Any:
    """Something else under a name."""
    had = vars(owner).get(name, put)
    setattr(owner, name, value)
    yield
    if had is put:
        delattr(owner, name)
    else:
        setattr(owner, name, had)


@contextmanager
def gone(owner: Any, name: str) -> Any:
    had = vars(owner)[name]
    delattr(owner, name)
    yield
    setattr(owner, name, had)


def owner_of(path: str) -> tuple[Any, str]:
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    *owners, name = names.split(".")
    for part in owners:
        found = getattr(found, part)
    return found, name


def other(added: Any) -> None:
    """In the place of any function."""


def less(path: str) -> Any:
    """A struct without its last field."""
    owner, name = owner_of(path)
    kind = getattr(owner, name)
    config = kind.__struct_config__
    struct_ = msgspec.defstruct(
        name, list(kind.__struct_fields__)[:-1], tag=config.tag, array_like=config.array_like
    )
    return put(owner, name, struct_)


def fewer_fields(kind: Any) -> Any:
    fields = dict(list(kind.__dataclass_fields__.items())[:-1])
    return put(kind, "__dataclass_fields__", fields)


def callables() -> list[Any]:
    return [put(*owner_of(path), other) for path in facts._CALLABLES]


def frames() -> list[Any]:
    server: Any = reading.find(f"{SERVER}:RustServer")
    found = []
    for name, one, two in FRAMES:
        method = getattr(server, name)
        source = textwrap.dedent(inspect.getsource(method))
        assert one in source, name
        changed = two.join(part.replace(two, one) for part in source.split(one))
        made: dict[str, Any] = {}
        exec(changed, method.__globals__, made)
        found.append(put(server, name, made[name]))
    return found


def arguments() -> list[Any]:
    owner, name = owner_of("sglang.srt.server_args:ServerArgs")
    kept = [n for n in reading.field_names(getattr(owner, name)) if n not in facts.FLAGS]
    return [put(owner, name, type(name, (), {"__struct_fields__": kept}))]


def snapshots() -> list[Any]:
    module = importlib.import_module(LOADS)
    plain = (("MAGIC", b"NONE"), ("VERSION", 99), ("HEADER_STRUCT", struct.Struct("<Q")),
             ("SLOT_LEN_STRUCT", struct.Struct("<Q")))  # fmt: skip
    records = [less(f"{LOADS}:{name}") for name in layouts._LOAD_RECORDS]
    return [*records, *(put(module, name, value) for name, value in plain)]


def registry() -> list[Any]:
    return [fewer_fields(reading.find(f"{CONN}:{name}"))
            for name in ("PrefillServerInfo", "PrefillRankInfo")]  # fmt: skip


def finishes() -> list[Any]:
    kinds = [reading.find(f"sglang.srt.managers.schedule_batch:{n}") for n, _ in layouts.FINISHES]
    return [put(kind, "to_json", lambda self: {"kind": "other"}) for kind in kinds]


def variables() -> list[Any]:
    return [gone(reading.find("sglang.srt.environ:Envs"), name) for name in layouts._VARIABLES]


OBJECTS: dict[str, Callable[[], list[Any]]] = {
    "callable": callables,
    "frame": frames,
    "message": lambda: [less(path) for path in facts._STRUCTS],
    "reply": lambda: [less(f"{IO}:{name}") for name in layouts.REPLIES],
    "argument": arguments,
    "snapshot": snapshots,
    "registry": registry,
    "finish": finishes,
    "variable": variables,
}


def main() -> None:
    here = facts.gather()
    said: dict[str, list[str]] = {}
    lines = []
    for section in here:
        with ExitStack() as stack:
            for change in TEXTS.get(section, ()):
                stack.enter_context(text(*change))
            for changed in OBJECTS.get(section, list)():
                stack.enter_context(changed)
            said[section] = facts.differences(facts.gather(), here)
            try:
                contract.check()
            except Problem as problem:
                lines.append(str(problem))
        assert facts.gather() == here, section
    print(json.dumps({"facts": here, "said": said, "lines": lines}))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
