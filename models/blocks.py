"""The block vocabulary: what a decoder is made of, in shapes and tensor names, knowing no card and no layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh"]
RopeRule = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True)
class Norm:
    """A row-wise normalisation over `size` elements; `plus_one` scales by 1 + weight instead of by weight."""

    kind: Literal["rms", "layer"]
    size: int
    weight: str
    bias: str | None
    eps: float
    plus_one: bool = False


@dataclass(frozen=True)
class Projection:
    """Matrices that share one input: y_i = x @ weights[i].T + biases[i], weights[i] is [out_features[i], in_features].

    q, k, v are one Projection and gate, up another, so that a lowering may run them as one product. `biases` is
    empty when there is none.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    out_features: tuple[int, ...]
    in_features: int


@dataclass(frozen=True)
class RopeScaling:
    """A rule that bends the rope frequencies, and its numbers; one the rule does not use keeps its default.

    `max_position_embeddings` is the model's own limit: dynamic and longrope compare a job's length with it or with
    `original_max_position_embeddings`. `attention_factor` None means "derive it as the rule says".
    """

    rule: RopeRule = "default"
    factor: float = 1.0
    max_position_embeddings: int = 0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True)
class Rope:
    """Rotation of a head's first `rotary_dim` elements: neighbours pair if `interleaved`, else half with half."""

    theta: float
    rotary_dim: int
    interleaved: bool
    scaling: RopeScaling


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention; query head h reads kv head h // (num_heads // num_kv_heads).

    `scale` multiplies the scores; `window` is how many keys a query may see, its own included (0: all before it);
    `q_norm` and `k_norm` act on each head before the rotation.
    """

    qkv: Projection
    out: Projection
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int
    q_norm: Norm | None
    k_norm: Norm | None


@dataclass(frozen=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x))."""

    gate_up: Projection
    down: Projection
    activation: Activation
    intermediate_size: int


@dataclass(frozen=True)
class DecoderLayer:
    """x += attention(input_norm(x)); x += mlp(post_attention_norm(x))."""

    index: int
    input_norm: Norm
    attention: Attention
    post_attention_norm: Norm
    mlp: GatedMlp


@dataclass(frozen=True)
class Graph:
    """A whole decoder, from token ids to logits; tensor names are those of the published checkpoint.

    `embedding` is [vocab_size, hidden_size], as is `lm_head`, which is the same tensor when `tied`.
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    embedding: str
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm
    lm_head: str
    tied: bool
