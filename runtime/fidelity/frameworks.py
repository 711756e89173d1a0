"""Serving frameworks: how each takes prompts in between decode steps, and the time of a step that is no kernel's."""

from __future__ import annotations

from dataclasses import dataclass

from ...isa.errors import ConfigError


@dataclass(frozen=True)
class Framework:
    """What a server adds to the kernels of a step; the numbers are of servers at work and belong to no card.

    `mixes`: prompt tokens join the decode steps of others; else they have steps of their own, and decoding waits.
    `chunk_tokens` is the most prompt tokens a step, `memory_share` the share of a card's memory that it may fill,
    `fuse` the fusions of its kernels as `--fuse` takes them. `step_s` is the host's time of a step that the cards idle
    through (scheduling, launching, sampling), `sequence_s` what each running sequence adds to it (sampling,
    detokenising): both are calibrated on rows of servers and stand in a line of their own.
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
        Framework("vllm", mixes=True, fuse="dequantise-matmul", memory_share=0.9),
        Framework("trtllm", mixes=True, fuse="dequantise-matmul,rope-attention", memory_share=0.9),
        Framework("sglang", mixes=False, fuse="dequantise-matmul", memory_share=0.88),
    )
}


def framework_of(name: str) -> Framework:
    """The framework of this name; ConfigError with those there are."""
    if name not in FRAMEWORKS:
        raise ConfigError(f"backend={name!r} is no framework that is known; known: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
