"""Serving frameworks: how each takes prompts in between decode steps, and the time of a step that is no kernel's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...interconnect.cluster import ClusterSpec
from ...interconnect.specfile import validated
from ...isa.errors import ConfigError

OWN_BYTES = 8 << 20  # up to which the frameworks sum over NVLink by kernels of their own, beyond by NCCL
OWN_PROTOCOL = "framework"
_ASSUMED = "frameworks' own all-reduce: every card reads its part from all peers, then all sums; general knowledge"


@dataclass(frozen=True)
class Framework:
    """What a server adds to the kernels of a step; the numbers are of servers at work and belong to no card.

    `mixes`: prompt tokens join the decode steps of others; else they have steps of their own, and decoding waits.
    `chunk_tokens` is the most prompt tokens a step, `memory_share` the share of a card's memory that it may fill,
    `fuse` the fusions of its kernels as `--fuse` takes them. `step_s` is the host's time of a step that the cards idle
    through (scheduling, launching, sampling), `sequence_s` what each running sequence adds to it (sampling,
    detokenising): both are calibrated by benchmarks/fit_serving.py on servers of H100 and H200 cards, and stand in a
    line of their own.
    """

    name: str
    mixes: bool
    fuse: str
    memory_share: float
    step_s: float = 0.0
    sequence_s: float = 0.0
    chunk_tokens: int = 8192


FRAMEWORKS = {
    own.name: own
    for own in (
        Framework("vllm", mixes=True, fuse="dequantise-matmul", memory_share=0.9, step_s=0.3e-3, sequence_s=18e-6),
        Framework(
            "trtllm",
            mixes=True,
            fuse="dequantise-matmul,rope-attention",
            memory_share=0.9,
            step_s=0.1e-3,
            sequence_s=16e-6,
        ),
        Framework("sglang", mixes=False, fuse="dequantise-matmul", memory_share=0.88, step_s=0.0, sequence_s=15e-6),
    )
}


def framework_of(name: str) -> Framework:
    """The framework of this name; ConfigError with those there are."""
    if name not in FRAMEWORKS:
        raise ConfigError(f"backend={name!r} is no framework that is known; known: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


def with_own_all_reduce(cluster: ClusterSpec) -> ClusterSpec:
    """The node with all-reduces of few bytes done by a kernel of the framework, in two steps, beside the library's."""
    if cluster.kind != "switch":
        return cluster
    protocol = {
        name: {"value": value, "evidence": "assumed", "source": _ASSUMED}
        for name, value in (("start_ps", 3_000_000), ("step_ps", 500_000), ("bandwidth_ppm", 750_000))
    }
    choice = {
        "collective": "all_reduce", "algorithm": "direct", "protocol": OWN_PROTOCOL, "up_to_bytes": OWN_BYTES
    }  # fmt: skip
    content: dict[str, Any] = {name: getattr(cluster, name) for name in ClusterSpec.model_fields}
    content["protocols"] = {**cluster.protocols, OWN_PROTOCOL: protocol}
    content["choices"] = (choice, *cluster.choices)
    return validated(ClusterSpec, content, cluster.name)
