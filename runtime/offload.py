"""What a job keeps in host memory instead of its cards' own."""

from __future__ import annotations

import math

from ..isa.errors import ConfigError
from ..isa.program import Program, Space
from ..models.blocks import Graph, Moe
from .lowering.weights import WeightBuffer

FORM = "write experts=0.5 for every second expert layer, experts=1 for all"


def offload_of(text: str | None, graph: Graph) -> float:
    """The share of expert layers whose experts live in host memory; 0 where nothing was asked for."""
    if text is None:
        return 0.0
    what, _, value = (part.strip() for part in text.partition("="))
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if what != "experts" or not 0 < share <= 1:
        raise ConfigError(f"--offload {text!r} is not experts=SHARE with a share above 0 and at most 1; {FORM}")
    if not any(isinstance(layer.mlp, Moe) for layer in graph.layers):
        raise ConfigError(f"--offload {text}: {graph.name} has no experts; leave it out")
    return share


def in_host_memory(program: Program, weight: WeightBuffer) -> bool:
    """Whether a weight lives in host memory."""
    name = weight.name if weight.packed is None else f"{weight.name}.codes"
    return program.buffer[name].space is Space.HOST
