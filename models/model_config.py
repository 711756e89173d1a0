"""ModelConfig: what a config.json says, once read, in siltwin's own words."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ..isa.dtype import DType
from .blocks import Activation, Rope, Temperature
from .latent import LatentConfig
from .linear import LinearConfig
from .moe import MoeConfig
from .packs.plan import QuantPlan


class Form(TypedDict, total=False):
    """How a family's blocks depart from the common form, each as the field of `ModelConfig` says it."""

    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    full_qk_norm: bool
    sinks: bool
    moe: MoeConfig | None
    plus_one: bool
    output_gate: bool
    linear: LinearConfig | None
    residual_block: int
    local_rope: Rope | None
    turned: tuple[bool, ...] | None
    chunked: bool
    unit_norm: bool
    temperature: Temperature | None
    score_scale: float | None
    soft_cap: float
    logit_cap: float
    embedding_scale: float
    out_norms: bool
    mlp_name: str


@dataclass(frozen=True)
class ModelConfig:
    """One decoder; `moe` None means that every feed-forward is dense, `latent` None that attention caches keys and
    values. `quantization` says how a checkpoint packs its weights (None: not at all) and is no part of `to_hf`.

    Sizes are in elements; `windows` has one entry a layer (0: full attention). `qk_norm` norms each head of q and k, or
    all heads together if `full_qk_norm`; norms scale by 1 + weight if `plus_one`; q carries an output gate's rows if
    `output_gate`; `linear` are the layers of linear attention, None where there are none; each `residual_block` layers
    (0: none) the residual stream leaves a snapshot that later layers mix in. Windows are chunks if `chunked`; layers
    that have one turn by `local_rope` if there is such, and only `turned` layers turn at all (None: all), by whose
    heads' `unit_norm` and the others' `temperature` see `blocks.Attention`. `score_scale` None is head_dim ** -0.5.
    What attention and feed-forward give is normed again if `out_norms`. `resolved` holds every key that was read, in
    transformers 5 spelling, at the value that counts (family defaults filled in); `raw` is the file as it was, for
    display. `assumed` names values the file left out and the family's published defaults supplied.
    """

    name: str
    family: str
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    activation: Activation
    rope: Rope
    windows: tuple[int, ...]
    tied: bool
    dtype: DType
    bos_id: int | None
    eos_ids: tuple[int, ...]
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    full_qk_norm: bool = False
    sinks: bool = False
    moe: MoeConfig | None = None
    plus_one: bool = False
    output_gate: bool = False
    linear: LinearConfig | None = None
    local_rope: Rope | None = None
    turned: tuple[bool, ...] | None = None
    chunked: bool = False
    unit_norm: bool = False
    temperature: Temperature | None = None
    score_scale: float | None = None
    soft_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    out_norms: bool = False
    mlp_name: str = "mlp"
    latent: LatentConfig | None = None
    residual_block: int = 0
    quantization: QuantPlan | None = field(default=None, compare=False, repr=False)
    assumed: tuple[str, ...] = field(default=(), compare=False)
    source: str = field(default="", compare=False)
    resolved: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_hf(self) -> dict[str, Any]:
        """The config as a transformers 5 config.json; reading it back gives an equal ModelConfig."""
        return copy.deepcopy(dict(self.resolved))
