"""The block vocabulary: what a decoder is made of, in shapes and tensor names, knowing no card and no layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .mixers import (
    Attention,
    DeltaNet,
    HeadRows,
    Indexer,
    LatentAttention,
    Norm,
    Projection,
    Rope,
    RopeRule,
    RopeScaling,
    Temperature,
)

__all__ = [
    "Activation",
    "Attention",
    "AttentionResiduals",
    "DecoderLayer",
    "DeltaNet",
    "Experts",
    "GatedMlp",
    "Graph",
    "HeadRows",
    "Indexer",
    "LatentAttention",
    "LatentExperts",
    "Moe",
    "Norm",
    "Projection",
    "ResidualMix",
    "Rope",
    "RopeRule",
    "RopeScaling",
    "Router",
    "Scoring",
    "Situ",
    "Temperature",
]


@dataclass(frozen=True)
class Situ:
    """Kimi K3's gate: beta * tanh(gate / beta) * sigmoid(gate) * linear_beta * tanh(up / linear_beta)."""

    beta: float
    linear_beta: float

    def __str__(self) -> str:
        return "situ"


Activation = Literal["silu", "gelu", "gelu_tanh", "swiglu_oai"] | Situ
Scoring = Literal["softmax", "sigmoid", "selected_softmax", "selected_sigmoid"]


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
