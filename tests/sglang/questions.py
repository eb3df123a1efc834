"""SGLang's `GenerateSampler` asks 50 small sums; prints its answers as JSON. Owner: a process.

usage: python questions.py URL      on SGLang's Python
"""

from __future__ import annotations

import json
import os
import sys

STORIES = (
    "{a} has {x} apples and buys {y} more. How many apples does {a} have now?",
    "A train has {x} wagons with {y} seats each. How many seats does the train have?",
    "{a} had {x} marbles and gave {y} of them to a friend. How many are left?",
    "A baker sells {x} loaves on Monday and {y} on Tuesday. How many loaves is that?",
    "{a} reads {y} pages a day. How many days does a book of {x} pages take?",
)
NAMES = ("Ada", "Bela", "Chidi", "Dora", "Emre", "Fatima", "Goro", "Hanna", "Ines", "Jiro")


def main(url: str) -> int:
    from sglang.test.simple_eval_common import GenerateSampler

    sampler = GenerateSampler(f"{url}/v1", max_tokens=24, stop=["\n\n", "Question"])
    answers = []
    for k in range(50):
        story = STORIES[k % 5].format(a=NAMES[k // 5], x=10 + 7 * k, y=2 + k % 9)
        content = f"Question: {story}\nAnswer:"
        answers.append(sampler([{"role": "user", "content": content}]))
    print("\n" + json.dumps(answers))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
