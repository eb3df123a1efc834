"""A scheduler's process with a GIL, as a program: `gil_scheduler.py ROOT MODEL`. Owner: its tests.

It reads one line of JSON a command from its standard input and answers with one line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any


def main(root: str, model: str) -> None:
    """Serve commands until the input ends."""
    sys.path.insert(0, root)
    from tests.fake_scheduler import FakeScheduler
    from tpc_server import ModelConfig, Server, ServerArgs

    server: Any = Server(
        ServerArgs(
            model_path=model, served_model_name="tiny", port=0, log_level="error",
            model_config=ModelConfig(context_len=4096, vocab_size=258),
        )
    )  # fmt: skip
    threads = [thread.name for thread in threading.enumerate()]
    scheduler = FakeScheduler(server)
    say({"port": server.http_port, "pids": server.processes(), "threads": threads,
         "mode": type(server).__name__, "modules": sorted(sys.modules),
         "python": "{}.{}".format(*sys.version_info)})  # fmt: skip
    for line in sys.stdin:
        command = json.loads(line)
        if command == "large":
            say(large_push(server))
        elif command == "pids":
            say({"pids": server.processes()})
        elif command == "stop":
            scheduler.stop()
            server.shutdown()
            say({"stopped": True})


def large_push(server: Any) -> dict[str, Any]:
    """64 MB of columns; how often another thread got the GIL meanwhile."""
    counted = 0
    stop = False

    def count() -> None:
        nonlocal counted
        while not stop:
            counted += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # nobody asks for the GIL: it is only let go of
    thread = threading.Thread(target=count)
    thread.start()
    data = bytes(64 << 20)
    before = counted
    taken = server.push_batch(b"\x96" + b"\x90" * 6, [data])
    after = counted
    stop = True
    thread.join()
    sys.setswitchinterval(interval)
    return {"taken": taken, "counted": after - before}


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    os.environ.pop("TPC_MODE", None)
    main(sys.argv[1], sys.argv[2])
