"""Tiny random Llama models as GGUF files, and an independent float64 reference. Owner: tests.

The weights are made in the convention of Hugging Face checkpoints (the two halves of a head rotate
together); the file gets them as converters write them (rotated pairs side by side). The reference
knows nothing of the engine: no cache, no batch, one position after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tpc_server.engines.llama.threads import thread_setter

Kind = gguf.GGMLQuantizationType

# Models as small as these gain nothing from a second thread, and on a busy machine lose much.
_set_threads = thread_setter()
if _set_threads is not None:
    _set_threads(1)


class TinyModel:
    """Random weights by their checkpoint-like names, `[outputs, inputs]`."""

    def __init__(
        self, seed: int = 0, dim: int = 32, n_layers: int = 2, n_heads: int = 4, n_kv: int = 2,
        ffn: int = 48, vocab: int = 80, context: int = 128, tied: bool = False,
        rope_base: float = 10000.0, factors: Sequence[float] | None = None, head_dim: int = 0,
    ) -> None:  # fmt: skip
        self.dim, self.n_layers, self.n_heads, self.n_kv = dim, n_layers, n_heads, n_kv
        self.ffn, self.vocab, self.context, self.tied = ffn, vocab, context, tied
        self.head_dim = head_dim or dim // n_heads
        self.rope_base = rope_base
        self.factors = None if factors is None else np.array(factors, np.float32)
        self.eps = 1e-5
        self.loaded: Any = None  # for whoever reads its file only once
        self.eos = 2
        rng = np.random.default_rng(seed)
        q, kv = self.n_heads * self.head_dim, self.n_kv * self.head_dim
        self.w: dict[str, np.ndarray[Any, Any]] = {
            "embed": rng.normal(0, 1, (vocab, dim)),
            "norm": rng.normal(1, 0.1, dim),
        }
        if not tied:
            self.w["head"] = rng.normal(0, 0.5, (vocab, dim))
        for i in range(n_layers):
            self.w[f"{i}.attn_norm"] = rng.normal(1, 0.1, dim)
            self.w[f"{i}.q"] = rng.normal(0, 1 / math.sqrt(dim), (q, dim)) * 2
            self.w[f"{i}.k"] = rng.normal(0, 1 / math.sqrt(dim), (kv, dim)) * 2
            self.w[f"{i}.v"] = rng.normal(0, 1 / math.sqrt(dim), (kv, dim))
            self.w[f"{i}.o"] = rng.normal(0, 1 / math.sqrt(q), (dim, q))
            self.w[f"{i}.ffn_norm"] = rng.normal(1, 0.1, dim)
            self.w[f"{i}.gate"] = rng.normal(0, 1 / math.sqrt(dim), (ffn, dim))
            self.w[f"{i}.up"] = rng.normal(0, 1 / math.sqrt(dim), (ffn, dim))
            self.w[f"{i}.down"] = rng.normal(0, 1 / math.sqrt(ffn), (dim, ffn))
        for name, value in self.w.items():
            self.w[name] = value.astype(np.float32)

    # -- reference ----------------------------------------------------------------------

    def logits(self, ids: Sequence[int]) -> np.ndarray[Any, Any]:
        """[positions, vocab] in float64."""
        w = {name: value.astype(np.float64) for name, value in self.w.items()}
        x = w["embed"][list(ids)]
        n, width, groups = len(ids), self.head_dim, self.n_heads // self.n_kv
        freqs = self.rope_base ** (-np.arange(0, width, 2) / width)
        if self.factors is not None:
            freqs = freqs / self.factors.astype(np.float64)
        angles = np.concatenate([np.outer(np.arange(n), freqs)] * 2, axis=1)
        for i in range(self.n_layers):
            h = self._norm(x, w[f"{i}.attn_norm"])
            q = (h @ w[f"{i}.q"].T).reshape(n, self.n_heads, width)
            k = (h @ w[f"{i}.k"].T).reshape(n, self.n_kv, width)
            v = (h @ w[f"{i}.v"].T).reshape(n, self.n_kv, width)
            q, k = self._rotate(q, angles), self._rotate(k, angles)
            out = np.zeros((n, self.n_heads, width))
            for head in range(self.n_heads):
                for at in range(n):
                    scores = k[: at + 1, head // groups] @ q[at, head] / math.sqrt(width)
                    share = np.exp(scores - scores.max())
                    out[at, head] = share / share.sum() @ v[: at + 1, head // groups]
            x = x + out.reshape(n, -1) @ w[f"{i}.o"].T
            h = self._norm(x, w[f"{i}.ffn_norm"])
            gate = h @ w[f"{i}.gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T
        head_weight = w["embed"] if self.tied else w["head"]
        found: np.ndarray[Any, Any] = self._norm(x, w["norm"]) @ head_weight.T
        return found

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The next `count` likeliest ids, each after all before it (no end at eos)."""
        known = list(ids)
        for _ in range(count):
            known.append(int(self.logits(known)[-1].argmax()))
        return known[len(ids) :]

    def _norm(self, x: Any, weight: Any) -> Any:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * weight

    @staticmethod
    def _rotate(x: Any, angles: Any) -> Any:
        half = x.shape[-1] // 2
        turned = np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
        return x * np.cos(angles)[:, None] + turned * np.sin(angles)[:, None]

    # -- file -----------------------------------------------------------------------------

    def write(
        self, path: Path, kind: Any = Kind.F32, meta: Mapping[str, Any] | None = None,
        extra: Mapping[str, np.ndarray[Any, Any]] | None = None, without: Sequence[str] = (),
        arch: str = "llama", quantize: Callable[..., Any] | None = None,
    ) -> Path:  # fmt: skip
        """Write a GGUF file; matrices in `kind` (norms stay F32), `meta` adds or replaces keys."""
        writer = gguf.GGUFWriter(path, arch)
        for key, value in self.metadata(arch, meta or {}).items():
            if value is None:
                continue
            if isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_uint32(key, value)
        for name, value in {**self.tensors(), **(extra or {})}.items():
            if name in without:
                continue
            if value.ndim == 1 or kind == Kind.F32:
                writer.add_tensor(name, value)
            else:
                make = quantize or gguf.quants.quantize
                writer.add_tensor(name, make(value, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def metadata(self, arch: str, meta: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "general.name": "tiny",
            f"{arch}.block_count": self.n_layers,
            f"{arch}.context_length": self.context,
            f"{arch}.embedding_length": self.dim,
            f"{arch}.feed_forward_length": self.ffn,
            f"{arch}.attention.head_count": self.n_heads,
            f"{arch}.attention.head_count_kv": self.n_kv,
            f"{arch}.attention.key_length": self.head_dim,
            f"{arch}.attention.value_length": self.head_dim,
            f"{arch}.rope.freq_base": self.rope_base,
            f"{arch}.attention.layer_norm_rms_epsilon": self.eps,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": self.eos,
            **meta,
        }

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """Weights by GGUF name, in GGUF's order of rows."""
        found = {"token_embd.weight": self.w["embed"], "output_norm.weight": self.w["norm"]}
        if not self.tied:
            found["output.weight"] = self.w["head"]
        if self.factors is not None:
            found["rope_freqs.weight"] = self.factors
        names = {
            "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
            "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
        }  # fmt: skip
        for i in range(self.n_layers):
            found[f"blk.{i}.attn_norm.weight"] = self.w[f"{i}.attn_norm"]
            found[f"blk.{i}.ffn_norm.weight"] = self.w[f"{i}.ffn_norm"]
            for name, long in names.items():
                value = self.w[f"{i}.{name}"]
                if name in "qk":
                    value = self._pairs(value, self.n_heads if name == "q" else self.n_kv)
                found[f"blk.{i}.{long}.weight"] = value
        return found

    def _pairs(self, value: np.ndarray[Any, Any], n_heads: int) -> np.ndarray[Any, Any]:
        """Row i of a head's first half next to row i of its second half."""
        rows = np.empty_like(value)
        half = self.head_dim // 2
        for head in range(n_heads):
            at = head * self.head_dim
            rows[at : at + self.head_dim : 2] = value[at : at + half]
            rows[at + 1 : at + self.head_dim : 2] = value[at + half : at + self.head_dim]
        return rows
