"""Makes the load material of a model folder. Owner: this script's one process (GIL 3.12 side).

usage: material.py MODEL_FOLDER     needs the package `tokenizers`

Writes beside tokenizer.json:
- `ids.bin`: int64 token ids of real English text (the standard library's help topics), so that
  the streamed ids are spread over the vocabulary as real output is;
- `text.txt`: the text these ids spell;
- `prompts.json`: {"stream": prompts of 5 to 60 tokens, "unary": prompts of exactly 11 tokens},
  all different.
"""

from __future__ import annotations

import json
import pydoc_data.topics
import sys
from array import array
from pathlib import Path

from tokenizers import Tokenizer

TEXT_CHARS = 400_000
STREAM_PROMPTS = 4096
UNARY_PROMPTS = 8192
UNARY_TOKENS = 11


def main(folder: str) -> None:
    out = Path(folder)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    text = " ".join(pydoc_data.topics.topics.values())[:TEXT_CHARS]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    spelled = tokenizer.decode(ids, skip_special_tokens=False)
    (out / "ids.bin").write_bytes(array("q", ids).tobytes())
    (out / "text.txt").write_text(spelled, encoding="utf-8")

    stream: dict[str, None] = {}
    unary: dict[str, None] = {}
    start = 0
    # one prime stride over the ids gives windows at every phase; re-encoding is checked because
    # a window's text need not encode back to the same ids
    while len(stream) < STREAM_PROMPTS or len(unary) < UNARY_PROMPTS:
        start = (start + 7919) % (len(ids) - 64)
        if len(stream) < STREAM_PROMPTS:
            stream[tokenizer.decode(ids[start : start + 5 + start % 56])] = None
        prompt = tokenizer.decode(ids[start : start + UNARY_TOKENS])
        if len(tokenizer.encode(prompt, add_special_tokens=False).ids) == UNARY_TOKENS:
            unary[prompt] = None
    (out / "prompts.json").write_text(json.dumps({"stream": list(stream), "unary": list(unary)}))


if __name__ == "__main__":
    main(sys.argv[1])
