"""What a job keeps in host memory instead of its cards' own."""

from __future__ import annotations

import math

from ..isa.errors import ConfigError, NotYetError
from ..isa.program import Program, Space
from ..models.blocks import Attention, Graph, LatentAttention, Moe
from .job import Job
from .layout import Layout
from .lowering.passes.offload import Offload
from .lowering.weights import WeightBuffer

KINDS = {"experts": "experts", "kv": "caches"}
FORM = "write experts=0.5 for every second expert layer, kv=1 for the caches of all layers, or experts=0.5,kv=1"


def offload_of(job: Job, graph: Graph, layout: Layout) -> Offload:
    """The shares of layers whose experts and whose caches live in host memory; 0 where nothing was asked for."""
    if (text := job.offload) is None:
        return Offload()
    shares: dict[str, float] = {}
    for entry in text.split(","):
        what, _, value = (part.strip() for part in entry.partition("="))
        try:
            share = float(value)
        except ValueError:
            share = math.nan
        if what not in KINDS or what in shares or not 0 < share <= 1:
            allowed = "experts=SHARE, kv=SHARE or both, each once, with a share above 0 and at most 1"
            raise ConfigError(f"--offload {text!r} is not {allowed}; {FORM}")
        shares[what] = share
    if "experts" in shares and not any(isinstance(layer.mlp, Moe) for layer in graph.layers):
        raise ConfigError(f"--offload {text}: {graph.name} has no experts; leave them out")
    if "kv" in shares:
        _check_caches(job, graph, layout)
    return Offload(**{KINDS[what]: share for what, share in shares.items()})


def _check_caches(job: Job, graph: Graph, layout: Layout) -> None:
    """Refuse what caches in host memory do not go with."""
    if not has_caches(graph):
        raise ConfigError(
            f"--offload {job.offload}: no layer of {graph.name} has keys and values in a cache; leave kv out"
        )
    others = {
        f"cp={layout.cp}": (layout.cp > 1, "take cp=1"),
        "--kv-pages ideal": (job.kv_pages == "ideal", "leave it unified"),
        "--overlap": (job.overlap, "leave it out"),
    }
    for other, (is_there, instead) in others.items():
        if is_there:
            text = f"--offload {job.offload} with {other} comes with a later version"
            raise NotYetError(f"{text}; {instead}, or leave kv out")


def has_caches(graph: Graph) -> bool:
    """Whether some layer keeps keys and values, or latents, of every token."""
    return any(isinstance(layer.attention, Attention | LatentAttention) for layer in graph.layers)


def in_host_memory(program: Program, weight: WeightBuffer) -> bool:
    """Whether a weight lives in host memory."""
    name = weight.name if weight.packed is None else f"{weight.name}.codes"
    return program.buffer[name].space is Space.HOST
