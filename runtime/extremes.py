"""Extremes: sequences and activations at the edge of what a model may be given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..isa.dtype import FP32
from ..models.changed_store import changed
from ..models.checkpoint import Checkpoint

LONGEST, REPEATED = 512, 48  # tokens of a longest prompt, where the model takes more, and of the others
LARGE, LONGEST_PROMPT = "large activations", "longest prompt"
_LARGEST = 4096.0  # what the largest element of the embedding is brought to: its square is beyond fp16's range


@dataclass(frozen=True)
class Extreme:
    """One sequence and what is extreme about it."""

    name: str
    ids: tuple[int, ...]


def extremes(checkpoint: Checkpoint, new_tokens: int, seed: int) -> list[Extreme]:
    """The sequences, each short enough to generate `new_tokens` after it."""
    vocab, limit = checkpoint.graph.vocab_size, checkpoint.graph.max_position_embeddings
    room = max(1, limit - new_tokens + 1)
    length, longest = min(REPEATED, room), min(LONGEST, room)
    draw = np.random.default_rng(seed)
    one = int(draw.integers(0, vocab))
    ends = tuple((0, vocab - 1)[place % 2] for place in range(length))
    long = tuple(map(int, draw.integers(0, vocab, longest)))
    stop = checkpoint.config.eos_ids[:1]
    found = [
        Extreme(f"{LONGEST_PROMPT} ({longest} tokens)", long),
        Extreme("one token", (one,)),
        Extreme("one token again and again", (one,) * length),
        Extreme("both ends of the vocabulary", ends),
    ]
    return found + [Extreme("end of sequence again and again", (token,) * length) for token in stop if token < vocab]


def ordinary(found: Sequence[Extreme]) -> tuple[int, ...]:
    """A sequence with nothing extreme about it: the beginning of the longest prompt."""
    return found[0].ids[:REPEATED]


def enlarged(checkpoint: Checkpoint) -> tuple[Checkpoint, float]:
    """The checkpoint with its embedding times a power of two, and that factor: residuals far above what is learnt.

    Where the embedding is the output head too, logits grow with it.
    """
    name = checkpoint.graph.embedding
    largest = float(np.abs(checkpoint.load(name, FP32)).max())
    factor = 2.0 ** max(0, math.floor(math.log2(_LARGEST / largest))) if largest > 0 else 1.0
    return changed(checkpoint, {name: lambda values: values * np.float32(factor)}, f"embedding x {factor:g}"), factor
