"""Shape and constants of a Llama-type model, from GGUF metadata. Owner: read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .errors import EngineError

ARCHITECTURE = "llama"


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """What the computation and the frontend need to know of a model.

    Sizes are counts of elements. `eos_ids` holds every id that ends an answer (end of text, of
    turn, of message). `rope_factor` divides the rotation's frequencies (linear scaling).
    """

    name: str
    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    context_len: int
    rms_eps: float
    rope_base: float
    rope_factor: float
    bos_id: int | None
    eos_ids: tuple[int, ...]
    chat_template: str | None

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    def kv_bytes_per_token(self) -> int:
        """float32 keys and values of all layers for one position."""
        return 2 * self.n_layers * self.kv_dim * 4

    def logits_cost(self) -> float:
        """What a position costs whose logits are computed, in positions whose are not."""
        mixing = self.dim * (2 * self.q_dim + 2 * self.kv_dim)
        layers = self.n_layers * (mixing + 3 * self.dim * self.ffn_dim)
        return 1 + self.dim * self.vocab_size / layers

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LlamaConfig:
        return cls(**{**values, "eos_ids": tuple(values["eos_ids"])})

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], vocab_size: int) -> LlamaConfig:
        """Raises EngineError for another architecture, or one with parts not computed here."""
        architecture = metadata.get("general.architecture")
        if architecture != ARCHITECTURE:
            raise EngineError(
                f"architecture {architecture!r} is not supported (only {ARCHITECTURE!r} is)"
            )
        n_heads = _number(metadata, "attention.head_count")
        n_kv_heads = _number(metadata, "attention.head_count_kv", n_heads)
        dim = _number(metadata, "embedding_length")
        head_dim = _number(metadata, "attention.key_length", dim // max(n_heads, 1))
        if min(n_heads, n_kv_heads, head_dim) < 1 or n_heads % n_kv_heads or head_dim % 2:
            raise EngineError(
                f"head sizes do not fit: {n_heads} heads, {n_kv_heads} KV heads of {head_dim}"
            )
        if _number(metadata, "attention.value_length", head_dim) != head_dim:
            raise EngineError("keys and values of different length are not supported")
        if _number(metadata, "rope.dimension_count", head_dim) != head_dim:
            raise EngineError("a rotation of only a part of each head is not supported")
        if _number(metadata, "expert_count", 0):
            raise EngineError("models with experts (MoE) are not supported")
        return cls(
            name=str(metadata.get("general.name") or metadata.get("general.basename") or "llama"),
            n_layers=_number(metadata, "block_count"),
            dim=dim,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            ffn_dim=_number(metadata, "feed_forward_length"),
            vocab_size=vocab_size,
            context_len=_number(metadata, "context_length"),
            rms_eps=float(metadata.get(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-5)),
            rope_base=float(metadata.get(f"{ARCHITECTURE}.rope.freq_base", 10000.0)),
            rope_factor=_rope_factor(metadata),
            bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=_eos_ids(metadata),
            chat_template=metadata.get("tokenizer.chat_template"),
        )


def _number(metadata: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = metadata.get(f"{ARCHITECTURE}.{key}", default)
    if isinstance(value, list):  # some converters write one entry a layer
        if len(set(value)) != 1:
            raise EngineError(f"{ARCHITECTURE}.{key} differs between layers: not supported")
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool):
        raise EngineError(f"the metadata has no usable {ARCHITECTURE}.{key} ({value!r})")
    return value


def _rope_factor(metadata: Mapping[str, Any]) -> float:
    kind = metadata.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if kind == "none":
        return 1.0
    if kind == "linear":
        factor = float(metadata.get(f"{ARCHITECTURE}.rope.scaling.factor", 1.0))
        if factor > 0:
            return factor
    raise EngineError(f"RoPE scaling of type {kind!r} is not supported")


def _eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for name in ("eos", "eot", "eom"):
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(value, int):
            found[value] = None
    return tuple(found)
