"""A model that answers: thinks, says something, and ends. Owner: one process a lock.

SGLang's dummy weights say two words for ever. These make a table of it: every token has a class,
and the class of the last token says which token is next; all layers add nothing. Where a grammar
forbids that one, a rank decides, so that JSON ends. Greedy answers are as short as kits want them.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

from tests.sglang.prepare import CHAT_TEMPLATE, CONFIG, Prepared
from tpc_server.bootstrap.cache import build_once, sub
from tpc_server.bootstrap.locks import digest

WIDTH: Final = 64
#: Where every token is alike: the ranks are read there.
COMMON: Final = WIDTH - 1
#: What follows what. The first is also what follows all tokens that are not named.
LOOP: Final = ("Ġthe", "Ġcat", "Ġand", "Ġdog", ".", "Ċ")
ANSWER: Final = (":", "<think>", "ĠOkay", "</think>", "Five", "and", "more", "!", "ĊĊ")
END: Final = "<｜end▁of▁sentence｜>"
#: Where what follows is forbidden: the first that is not, what ends a thing before what goes on.
RANKS: Final = ("}", '"', END, "Ġsuccessfully", "a", ":", ",", "0", "{")
#: As Qwen's: a conversation without thinking begins its answer behind an empty block of it.
TEMPLATE: Final = CHAT_TEMPLATE.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% endif %}"
)
#: Between one rank and the next; at a temperature of 0.5 no other token of 100,000 comes instead.
STEP: Final = 3.0
SURE: Final = STEP * (len(RANKS) + 4)


def answering(prepared: Prepared) -> Path:
    """The model's folder, made if missing."""
    key = digest(Path(__file__).read_text("utf-8"), json.dumps(CONFIG), prepared.model.name)
    return build_once(
        sub("sglang"), f"answering-{key}", "making the model that answers",
        lambda target: _make(prepared.model, target),
    )  # fmt: skip


def _make(base: Path, target: Path) -> None:
    raw = (base / "tokenizer.json").read_bytes()
    tokenizer = json.loads(raw)
    ids = {**tokenizer["model"]["vocab"]}
    ids.update({token["content"]: token["id"] for token in tokenizer["added_tokens"]})
    config = json.loads((base / "config.json").read_text("utf-8"))
    config["num_hidden_layers"] = 1
    config["max_position_embeddings"] = 1 << 17  # kits ask for answers of 100,000 tokens
    settings = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    settings["chat_template"] = TEMPLATE
    (target / "tokenizer.json").write_bytes(raw)
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write(target / "model.safetensors", _weights(ids, config))


def _weights(ids: dict[str, int], config: dict[str, Any]) -> dict[str, tuple[list[int], bytes]]:
    """Shape and bytes of each tensor."""
    after = {token: LOOP[(k + 1) % len(LOOP)] for k, token in enumerate(LOOP)}
    after.update(zip(ANSWER, (*ANSWER[1:], END), strict=True))
    after["a"] = '"'
    kinds = {token: k + 1 for k, token in enumerate(after)}  # 0: all others
    row = struct.Struct(f"<{WIDTH}f")

    def packed(*ones: tuple[int, float]) -> bytes:
        values = [0.0] * WIDTH
        for at, value in ones:
            values[at] += value
        return row.pack(*values)

    rows = config["vocab_size"]
    embedding = bytearray(packed((0, 1.0), (COMMON, 1.0)) * rows)
    for token, kind in kinds.items():
        at = ids[token] * row.size
        embedding[at : at + row.size] = packed((kind, 1.0), (COMMON, 1.0))
    wanted: dict[str, list[tuple[int, float]]] = {LOOP[0]: [(0, SURE)]}
    for token, follows in after.items():
        wanted.setdefault(follows, []).append((kinds[token], SURE))
    for k, token in enumerate(RANKS):
        wanted.setdefault(token, []).append((COMMON, STEP * (len(RANKS) - k)))
    head = bytearray(row.size * rows)
    for token, ones in wanted.items():
        at = ids[token] * row.size
        head[at : at + row.size] = packed(*ones)
    width, inner = config["hidden_size"], config["intermediate_size"]
    layer = "model.layers.0."
    shapes = {
        **{f"{layer}self_attn.{name}_proj.weight": [width, width] for name in "qkvo"},
        f"{layer}mlp.gate_proj.weight": [inner, width],
        f"{layer}mlp.up_proj.weight": [inner, width],
        f"{layer}mlp.down_proj.weight": [width, inner],
    }
    out = {name: (shape, bytes(4 * shape[0] * shape[1])) for name, shape in shapes.items()}
    ones = struct.pack("<f", 1.0) * width
    for name in (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm"):
        out[f"{name}.weight"] = [width], ones
    out["model.embed_tokens.weight"] = [rows, width], bytes(embedding)
    out["lm_head.weight"] = [rows, width], bytes(head)
    return out


def _write(path: Path, tensors: dict[str, tuple[list[int], bytes]]) -> None:
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)
