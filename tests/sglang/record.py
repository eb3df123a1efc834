"""What SGLang's own frontends do with the same: writes tests/data/sglang/. Owner: a person.

usage: python -m tests.sglang.record [requests] [python] [rust] [kits] [kits:SERVER…]

Minutes each, `kits` many; needs nothing else running. What is not named stays as it is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.http_client import Client
from tests.sglang import generated, kits, programs
from tests.sglang.answering import answering
from tests.sglang.prepare import prepare
from tests.sglang.serving import SGLang
from tests.stream_rules import parse_event

DATA: Final = Path(__file__).parents[1] / "data" / "sglang"
# Their own answers, and nothing that differs from one run to the next.
META: Final = (
    "id",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "input_token_logprobs",
    "output_token_logprobs",
    "input_top_logprobs",
    "output_top_logprobs",
    "input_token_ids_logprobs",
    "output_token_ids_logprobs",
)


def ask(address: Any, body: dict[str, Any], ours: bool = True) -> dict[str, Any]:
    """Status and what counts of the answers to one request; of a stream its last frame."""
    with Client(address, timeout=120, ruled=ours) as client:
        # Theirs insist on the type.
        answer = client.call("POST", "/generate", body, **{"Content-Type": "application/json"})
    if answer.status != 200:
        return {"status": answer.status}
    if body.get("stream"):
        events = [parse_event(part) for part in answer.body.split(b"\n\n") if part]
        assert events.pop() == "[DONE]"
        return {"status": 200, "answers": [_short(events[-1])]}
    found = answer.json()
    rows = found if isinstance(found, list) else [found]
    return {"status": 200, "answers": [_short(row) for row in rows]}


def _short(answer: dict[str, Any]) -> dict[str, Any]:
    meta = answer["meta_info"]
    return {
        "text": answer["text"],
        "output_ids": answer.get("output_ids", []),
        **{name: meta[name] for name in META if name in meta},
    }


def answers(sglang: SGLang, ours: bool = True) -> list[dict[str, Any]]:
    """To all generated requests, one after the other."""
    with Client(sglang.address, timeout=60) as client:
        client.call("POST", "/flush_cache")
    return [ask(sglang.address, body, ours) for body in generated.generated()]


def main(words: list[str]) -> int:
    DATA.mkdir(exist_ok=True)
    if "requests" in words:
        _write(generated.REQUESTS, generated.draw())
        return 0
    for frontend in [word for word in words if not word.startswith("kits")]:
        with (
            tempfile.TemporaryDirectory() as temp,
            SGLang(prepare(), Path(temp) / "log", frontend) as sglang,
        ):
            sglang.wait()
            found = _read(frontend)
            found["generated"] = answers(sglang, ours=False)
            found["sampler"] = programs.answers_of_sampler(sglang)
            found["cache_hits"] = programs.cache_hits(sglang)
            _write(DATA / f"{frontend}.json", found)
        print(frontend, "written", flush=True)
    servers = [word.removeprefix("kits:") for word in words if word.startswith("kits:")]
    if "kits" in words or servers:
        _kits(servers or list(kits.SERVERS))
    return 0


def _kits(servers: list[str]) -> None:
    """Of SGLang's Python frontend, each on the server it wants."""
    prepared = prepare()
    folder = kits.tests_in(programs.kits_folder(prepared))
    modules = {test: module for module, tests in folder.items() for test in tests}
    results: dict[str, str] = {}
    for server in servers:
        wanted = kits.SERVERS[server]
        names = [t for t in modules if t not in kits.NOT_RUN and kits.server_of(t) == server]
        model = answering(prepared) if wanted.model == "answering" else prepared.model
        with tempfile.TemporaryDirectory() as temp:
            log, env = Path(temp) / "log", dict(wanted.env)
            there = prepared._replace(model=model)
            with SGLang(there, log, "python", wanted.flags, env) as sglang:
                sglang.wait()
                results.update(programs.kits(sglang, Path(temp), *names))
        print("kits on", server, "done", flush=True)
    found = _read("python")
    kept = {name: how for name, how in found["kits"].items() if name in modules}
    found["kits"] = {**kept, **{name: how[:100] for name, how in results.items()}}
    found["kit_modules"] = modules
    _write(DATA / "python.json", found)


def _read(frontend: str) -> dict[str, Any]:
    path = DATA / f"{frontend}.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def _write(path: Path, found: Any) -> None:
    lines = json.dumps(found, ensure_ascii=False, indent=0, sort_keys=True)
    path.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
