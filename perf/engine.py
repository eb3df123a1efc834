"""What the embedded engine generates a second. Owner: one process; the engine on its main thread.

usage: python -m perf.engine [--model PATH] [--batches 1,8] [--cpus 0,1] [--prompt N] [--tokens N]

The engine runs its own loop against a frontend that only takes the frames, so everything is
counted that it does itself: scheduling, the model, sampling, packing. Prompts differ and are of
random ids; answers are greedy and run to their full length. Per batch size: prompt tokens a second
until the last request's first token, then output tokens a second until the first request ends
(all rows decode all that time). Best and median of the rounds, as JSON on the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tpc_server.boundary import codec
from tpc_server.boundary.messages import GENERATE, SAMPLING, generate_template
from tpc_server.engines.llama.blas import prepare_blas


class Message:
    """What `recv_requests` gives out."""

    def __init__(self, header: bytes, buffers: list[tuple[str, Any]]) -> None:
        self.header = header
        self.buffers = buffers


class Sink:
    """The frontend: hands out one load, notes when each request's frames came, then stops."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.times: dict[str, list[float]] = {}
        self.over = False

    def recv_requests(self, max: int = 256) -> list[Message]:
        out, self.messages = self.messages, []
        return out

    def wait_request(self, timeout_ms: int = 1000) -> bool:
        self.over = True
        return True

    def is_set(self) -> bool:
        return self.over

    def push_decode_result_batch(self, header: Any, data_cols: Any) -> bool:
        now = time.perf_counter()
        for rid in codec.unpack(header)[0]:
            self.times.setdefault(rid, []).append(now)
        return True

    def push_control_result(self, rid: str, payload: Any) -> bool:
        return True

    def push_error(self, rid: str, message: str) -> bool:
        raise RuntimeError(f"{rid}: {message}")

    def push_health_ack(self) -> bool:
        return True


def load_of(batch: int, prompt: int, tokens: int, vocab: int, seed: int) -> list[Message]:
    import numpy as np

    rng = random.Random(seed)
    pack = codec.make_packer()
    messages = []
    for k in range(batch):
        values = generate_template()
        values[GENERATE["rid"]] = f"r{k}"
        values[GENERATE["stream"]] = True
        sampling = values[GENERATE["sampling_params"]]
        sampling[SAMPLING["top_k"]] = 1
        sampling[SAMPLING["ignore_eos"]] = True
        sampling[SAMPLING["max_new_tokens"]] = tokens
        ids = np.array([rng.randrange(vocab) for _ in range(prompt)], np.int64)
        messages.append(Message(pack(values), [("input_ids", ids)]))
    return messages


def measure(engine: Any, batch: int, prompt: int, tokens: int, seed: int) -> dict[str, float]:
    """One load, run to its end."""
    sink = Sink(load_of(batch, prompt, tokens, engine.vocab_size, seed))
    begun, cpu = time.perf_counter(), time.process_time()
    engine.run(sink, sink)
    spent = time.process_time() - cpu
    started = max(times[0] for times in sink.times.values())
    ended = min(times[-1] for times in sink.times.values())
    made = sum(1 for times in sink.times.values() for t in times if started < t <= ended)
    return {
        "prompt_tokens_per_s": batch * prompt / (started - begun),
        "tokens_per_s": made / (ended - started),
        "cpu_s": spent,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="GGUF file or folder (default: the default model)")
    parser.add_argument("--batches", default="1,8", help="batch sizes (default: %(default)s)")
    parser.add_argument("--cpus", help="CPUs of the engine and BLAS (default: all allowed)")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens a request")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens a request")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    allowed = sorted(os.sched_getaffinity(0))
    cpus = [int(c) for c in given.cpus.split(",")] if given.cpus else allowed
    prepare_blas(cpus)
    import numpy as np

    from tpc_server.bootstrap.fetch import model_path
    from tpc_server.engines.llama.engine import LlamaEngine
    from tpc_server.engines.llama.settings import LlamaSettings

    batches = [int(b) for b in given.batches.split(",")]
    settings = LlamaSettings(max_running_requests=max(batches), prefix_cache=False, cpus=cpus)
    begun = time.perf_counter()
    engine = LlamaEngine.load(given.model or model_path(), settings, lambda text, done: None)
    print(f"{engine.model_name}: loaded in {time.perf_counter() - begun:.1f} s, CPUs {cpus}")
    measure(engine, 1, 8, 8, 0)  # every page of the weights once
    results: dict[str, Any] = {}
    for batch in batches:
        rounds = [
            measure(engine, batch, given.prompt, given.tokens, seed) for seed in range(given.rounds)
        ]
        row = {
            name: {
                "best": round((min if name == "cpu_s" else max)(r[name] for r in rounds), 2),
                "median": round(statistics.median(r[name] for r in rounds), 2),
            }
            for name in rounds[0]
        }
        results[str(batch)] = row
        print(
            f"batch {batch:3}: {row['tokens_per_s']['median']:7.1f} tokens/s "
            f"(best {row['tokens_per_s']['best']:.1f}), prompts "
            f"{row['prompt_tokens_per_s']['median']:7.1f} tokens/s "
            f"(best {row['prompt_tokens_per_s']['best']:.1f})",
            flush=True,
        )
    print(
        json.dumps(
            {
                "cpus": cpus,
                "load": os.getloadavg(),
                "numpy": np.__version__,
                "python": sys.version.split()[0],
                "prompt": given.prompt,
                "tokens": given.tokens,
                "coretype": os.environ.get("OPENBLAS_CORETYPE"),
                "batches": results,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
