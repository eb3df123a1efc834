"""What the program says once it is ready: lines for people, or one of JSON. Owner: main thread."""

from __future__ import annotations

import json
import time
from typing import Any

from . import runtime

_BODY = '{"text": "The capital of France is", "stream": true}'


def banner(given: Any, server: Any, engine: Any, seconds: float) -> str:
    """`given`: the flags; `seconds` since the start."""
    if given.uds:
        address = given.uds
        curl = f"curl -N --unix-socket {given.uds} http://localhost/generate"
    else:
        host = f"[{given.host}]" if ":" in given.host else given.host
        address = f"http://{host}:{server.http_port}"
        near = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # all addresses: not one
        curl = f"curl -N http://{near}:{server.http_port}/generate"
    model, about = server.setup.info.served, engine.describe()
    cores = server.plan.describe().splitlines()
    if given.log_format == "json":
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        line = {
            "time": f"{stamp}.{int(now * 1000) % 1000:03d}", "level": "info", "message": "ready",
            "address": address, "seconds": round(seconds, 1), "model": model, "engine": about,
            "python": runtime.describe(), "cores": [line.strip() for line in cores],
        }  # fmt: skip
        return json.dumps(line)
    if given.api_keys:
        curl += " -H 'Authorization: Bearer …'"
    return "\n".join(
        (
            f"tpc_server ready in {seconds:.1f} s at {address}",
            f"  model   {model} ({about})",
            f"  python  {runtime.describe()}",
            *(f"  {line}" for line in cores),
            f"  try     {curl} -H 'Content-Type: application/json' -d '{_BODY}'",
        )
    )
