"""The block vocabulary: what a decoder is made of, in shapes and tensor names, knowing no card and no layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Situ:
    """Kimi K3's gate: beta * tanh(gate / beta) * sigmoid(gate) * linear_beta * tanh(up / linear_beta)."""

    beta: float
    linear_beta: float

    def __str__(self) -> str:
        return "situ"


Activation = Literal["silu", "gelu", "gelu_tanh", "swiglu_oai"] | Situ
Scoring = Literal["softmax", "sigmoid", "selected_softmax", "selected_sigmoid"]
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


@dataclass(frozen=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x))."""

    gate_up: Projection
    down: Projection
    activation: Activation
    intermediate_size: int


@dataclass(frozen=True)
class Router:
    """Which experts a token takes, and how much each counts: `projection` makes a logit an expert, in fp32.

    Scores are the softmax or the sigmoid of the logits, or the softmax over the chosen alone. `correction` names a bias
    that chooses and never weighs. With `groups` above 1 only experts of the `top_groups` best groups may be chosen, by
    the sum of each group's `group_best` best (biased) scores. Weights are divided by their sum + eps if `renormalise`,
    then times `scale`. They scale what experts give, or what they are given if `scales_input`.
    """

    projection: Projection
    correction: str | None
    top_k: int
    scoring: Scoring
    renormalise: bool
    eps: float
    scale: float
    groups: int
    top_groups: int
    group_best: int
    scales_input: bool = False


@dataclass(frozen=True)
class Experts:
    """`count` gated feed-forwards of one width.

    A name with {} is that of one expert's tensor, [out, in], gate and up apart. A name without is that of one tensor
    for all: [count, in, out], gate and up columns `alternating` or all gates before all ups, biases [count, out].
    """

    count: int
    hidden_size: int
    intermediate_size: int
    activation: Activation
    gate_up: tuple[str, ...]
    down: str
    gate_up_bias: str | None = None
    down_bias: str | None = None
    alternating: bool = True

    @property
    def is_fused(self) -> bool:
        """Whether one tensor holds all experts."""
        return "{}" not in self.down


@dataclass(frozen=True)
class LatentExperts:
    """Experts of a narrower stream: `down` makes it of a token, `up` makes the layer's output of the (normed) sum."""

    down: Projection
    norm: Norm | None
    up: Projection


@dataclass(frozen=True)
class Moe:
    """The weighted sum of each token's experts, plus the shared expert where there is one.

    `shared_gate` makes a number a token whose sigmoid scales what the shared expert gives. Under `latent` the routed
    experts take and give latents; the router and the shared expert keep the whole width.
    """

    router: Router
    experts: Experts
    shared: GatedMlp | None = None
    shared_gate: Projection | None = None
    latent: LatentExperts | None = None


@dataclass(frozen=True)
class ResidualMix:
    """The sum of a token's states weighted by a softmax: scores are the normed states' products with `query`."""

    norm: Norm
    query: str


@dataclass(frozen=True)
class AttentionResiduals:
    """A layer's part in attention residuals: attention and feed-forward read a mix of snapshots and the running sum.

    `snapshots` have been taken before this layer; if it `takes` one, that is the running sum before its attention,
    which then starts anew from the attention's output. Without a snapshot the running sum itself is read.
    """

    attention: ResidualMix
    mlp: ResidualMix
    snapshots: int
    takes: bool

    @property
    def snapshots_after(self) -> int:
        """Snapshots that stand after this layer."""
        return self.snapshots + self.takes


@dataclass(frozen=True)
class DecoderLayer:
    """x += attention(input_norm(x)); x += mlp(post_attention_norm(x)), or with `residuals` as those say.

    What attention and feed-forward give passes `attention_out_norm` and `mlp_out_norm` first, where there are such.
    """

    index: int
    input_norm: Norm
    attention: Attention | LatentAttention | DeltaNet
    post_attention_norm: Norm
    mlp: GatedMlp | Moe
    residuals: AttentionResiduals | None = None
    attention_out_norm: Norm | None = None
    mlp_out_norm: Norm | None = None


@dataclass(frozen=True)
class Graph:
    """A whole decoder, from token ids to logits; tensor names are those of the published checkpoint.

    `embedding` is [vocab_size, hidden_size], as is `lm_head`, which is the same tensor when `tied`. Embeddings are
    scaled by `embedding_scale`, rounded to the dtype that they are in; a `logit_cap` above 0 is the logits' soft cap.
    `final_mix` comes before the final norm where layers have attention residuals. `counts_buffers` says that the
    published size counts every stored tensor, the corrections of routers too.
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
    final_mix: ResidualMix | None = None
    counts_buffers: bool = False
    embedding_scale: float = 1.0
    logit_cap: float = 0.0
