"""SGLang's multi-turn run (`cache_hit_kit`): prints what each round had and found cached.
Owner: a process.

usage: python cache_hits.py URL MODEL_FOLDER      on SGLang's Python
"""

from __future__ import annotations

import json
import os
import random
import sys
from types import SimpleNamespace
from typing import Any

from tests.sglang.absent import stand_in


def main(url: str, model: str) -> int:
    stand_in()
    from sglang.test.kits import cache_hit_kit as kit

    rng = random.Random(5)

    def sampled(input_len: int, num_prompts: int, **rest: Any) -> list[Any]:
        """In the place of texts from the network."""
        return [
            SimpleNamespace(prompt=[rng.randrange(1, 30_000) for _ in range(input_len)])
            for _ in range(num_prompts)
        ]

    kit.sample_random_requests = sampled
    found = kit.run_multiturn_cache_hit_test(
        url, model, num_clients=4, num_rounds=3, request_length=64, output_length=8,
    )  # fmt: skip
    rounds = [
        [one["total_prompt_tokens"], one["total_cached_tokens"]] for one in found["rounds"].values()
    ]
    print("\n" + json.dumps(rounds))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
