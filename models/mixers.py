"""What mixes the tokens of a sequence: attention of every kind with its norms, projections and ropes; delta nets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
class Temperature:
    """Queries at position p are scaled by 1 + strength * ln(1 + floor((p + 1) / step))."""

    step: float
    strength: float


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention; query head h reads kv head h // (num_heads // num_kv_heads).

    `scale` multiplies the scores, and a score s becomes cap * tanh(s / cap) under a `soft_cap` above 0; `window` is how
    many keys a query may see, its own included (0: all before it), where `chunk` is not: from its last multiple on.
    With `unit_eps` each head of q and k is brought to unit mean square after the rotation;
    `q_norm` and `k_norm` act before the rotation: on each head, or on all heads together where they are as large.
    `sinks` names a logit a head that joins the softmax and is then dropped. With `output_gate` each head's rows of the
    q projection are followed by as many of a gate, whose sigmoid scales what the head gives.
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
    sinks: str | None = None
    output_gate: bool = False
    chunk: int = 0
    soft_cap: float = 0.0
    unit_eps: float | None = None
    temperature: Temperature | None = None


@dataclass(frozen=True)
class HeadRows:
    """A head's rows of a tensor: `size` from row head // group * stride + head % group * size + offset on.

    `axis` is the tensor's axis that counts them, the first but for tensors with leading axes of one element.
    """

    tensor: str
    size: int
    offset: int = 0
    stride: int = 0
    group: int = 1
    axis: int = 0

    def start(self, head: int) -> int:
        """The head's first row."""
        return self.offset + head // self.group * (self.stride or self.size) + head % self.group * self.size


@dataclass(frozen=True)
class DeltaNet:
    """Linear attention by the gated delta rule (`isa.recurrent`): a state [key_dim, value_dim] a value head, fp32.

    q, k, v pass a causal convolution of `kernel` taps with SiLU (`convs` are their rows of [channels, 1, kernel]); the
    output is normed a head, gated (SiLU or sigmoid of the gate) and projected. `decay` has one row a head, or key_dim
    of them; it and the gate may be low-rank: rows of a product with what `decay_down` or `gate_down` makes. With
    `lower_bound` below 0 the log decay is that times a sigmoid. q and k rows are by key head, all others by value
    head; value head h uses key head h * key_heads // heads. `tensors` are the checkpoint's shapes, `out` aside.
    """

    hidden_size: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    q: HeadRows
    k: HeadRows
    v: HeadRows
    gate: HeadRows
    beta: HeadRows
    decay: HeadRows
    convs: tuple[HeadRows, HeadRows, HeadRows]
    a_log: HeadRows
    dt_bias: HeadRows
    norm: Norm
    gate_activation: Literal["silu", "sigmoid"]
    out: Projection
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    decay_down: Projection | None = None
    gate_down: Projection | None = None
    lower_bound: float = 0.0

    @property
    def num_heads(self) -> int:
        """Heads that tensor parallelism deals out."""
        return self.heads

    @property
    def num_kv_heads(self) -> int:
        """Key heads, shared out or replicated as kv heads are."""
        return self.key_heads

    @property
    def rope(self) -> Rope | None:
        """No rotation: the decay and the convolution tell tokens apart."""
        return None

    @property
    def window(self) -> int:
        """None: the state is all that is kept."""
        return 0

    @property
    def state_elements(self) -> int:
        """fp32 elements of a sequence's states."""
        return self.heads * self.key_dim * self.value_dim

    @property
    def tail_elements(self) -> int:
        """Elements of a sequence's last inputs of the convolutions, in the dtype of activations."""
        return (self.kernel - 1) * (2 * self.key_heads * self.key_dim + self.heads * self.value_dim)


@dataclass(frozen=True)
class Indexer:
    """What chooses the tokens that each query of sparse attention attends to.

    `k`, normed by `k_norm`, makes one key a token, `q` the queries of `heads` heads from the latent of the attention's
    own, `weights` a weight a head. Rope turns the first elements of each head and key. A token scores the sum over
    heads of weight * relu(query . key), times (heads * dim)^-0.5.
    """

    q: Projection
    k: Projection
    k_norm: Norm
    weights: Projection
    heads: int
    dim: int
    rope: Rope

    @property
    def scale(self) -> float:
        """What multiplies the scores."""
        return float(self.dim**-0.5 * self.heads**-0.5)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: each token leaves one latent, from which every head's keys and values are made.

    `q` makes the queries, or where `q_up` is not None a latent of theirs, normed by `q_norm`, from which `q_up` makes
    them; head h's are its `nope_dim` elements, then `rope_dim` that are rotated. `kv` makes the latent of `latent_dim`
    elements, normed by `kv_norm`, then `rope_dim` rotated elements of a key that all heads share; `kv_up` makes of the
    normed latent each head's key of `nope_dim` and its value of `v_dim`. `scale` multiplies the scores. `gate` makes as
    many elements as the heads' values, whose sigmoid scales what they give. With `top_k` a query attends to so many
    tokens alone, which `indexer` chooses, or where there is none the last layer that has one.
    """

    q: Projection
    q_norm: Norm | None
    q_up: Projection | None
    kv: Projection
    kv_norm: Norm
    kv_up: Projection
    out: Projection
    num_heads: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    latent_dim: int
    scale: float
    rope: Rope | None
    gate: Projection | None = None
    top_k: int = 0
    indexer: Indexer | None = None

    @property
    def takes_choice(self) -> bool:
        """Whether queries attend to what a layer before this one chose."""
        return self.top_k > 0 and self.indexer is None

    @property
    def num_kv_heads(self) -> int:
        """Keys and values are made for every head."""
        return self.num_heads
