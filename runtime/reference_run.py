"""What every reference gives back of a sequence, and what it computes in to show rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..isa.instruction import Array
from .routes import Routes

# What to compute in to see the rounding of a dtype: the dtype itself, and for float32 the exact side of it.
ROUNDED = {"fp32": "float64", "bf16": "bfloat16", "fp16": "float16"}
NOTHING: Mapping[int, Array] = MappingProxyType({})


@dataclass(frozen=True)
class ReferenceRun:
    """One sequence through the reference: the residual stream after each layer, and the logits of every position.

    `layers` starts with the embedding; all arrays are float32, [tokens, hidden] and [tokens, vocab]. `routes` holds
    what the router of each expert layer would choose for itself, and `keys` the indexer of each layer that has one.
    """

    layers: list[Array]
    logits: Array
    routes: Mapping[int, Routes] = field(default_factory=dict)
    keys: Mapping[int, Array] = field(default_factory=dict)
