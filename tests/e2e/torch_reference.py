"""Greedy answers and logits of a GGUF model by transformers on torch. Owner: a process of its own.

usage: python torch_reference.py MODEL.gguf PROMPTS.json OUT.npz COUNT

Runs in an environment that has torch and transformers, and nothing of this project. Writes, for
prompt k: `logits{k}` [positions, vocab] and `ids{k}`, the COUNT likeliest ids that follow.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main(model: Path, prompts: Path, out: Path, count: int) -> None:
    torch.set_num_threads(1)  # two would wait for each other on a busy machine
    computed = AutoModelForCausalLM.from_pretrained(
        str(model.parent), gguf_file=model.name, dtype=torch.float32
    ).eval()
    found = {}
    with torch.inference_mode():
        for k, ids in enumerate(json.loads(prompts.read_text())):
            known = list(ids)
            for step in range(count):
                # No cache: every answer is computed from the whole text before it.
                logits = computed(torch.tensor([known])).logits[0]
                if step == 0:
                    found[f"logits{k}"] = logits.numpy()
                known.append(int(logits[-1].argmax()))
            found[f"ids{k}"] = np.array(known[len(ids) :])
    np.savez(out, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
