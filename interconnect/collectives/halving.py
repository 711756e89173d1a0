"""Recursive halving and doubling: members exchange half of what they hold with ever nearer, then ever farther, peers.

With n = 2^k members, S bytes, bandwidth b and latency L where pairs do not meet: reduce-scatter and all-gather take
(n-1)/n S/b + k L, all-reduce twice that. Members beyond the largest power of two fold into one before (all they have)
and get their result from it afterwards, which costs up to two steps of S bytes more.

Order of reduction: of 2^k members, pairs at distance 2^(k-1) are added first, then sums of pairs at 2^(k-2), and so on:
with four ((x0 + x2) + (x1 + x3)). What a folded member has is added to its partner's own before all else.
"""

from __future__ import annotations

import numpy as np

from .plan import SIGNAL, Moves, MovesBuilder
from .registry import Options, algorithm


def _core(size: int, options: Options) -> int:
    """The largest power of two that is not above `size`."""
    return 1 << (size.bit_length() - 1)


class _Blocks:
    """Who answers for which parts: member i of the core for part i and, where one folds into it, for that one's."""

    def __init__(self, size: int, owned: bool) -> None:
        self.core = _core(size, Options())
        self.members = np.arange(self.core)
        self.folded = np.arange(self.core, size)
        own = [[member] for member in range(self.core)]
        if owned:
            for member in self.folded.tolist():
                own[member - self.core].append(member)
        self._own = [np.array(parts) for parts in own]
        self._owners = np.concatenate([np.full(len(parts), i) for i, parts in enumerate(own)])
        self._parts = np.concatenate(self._own)
        self.all_parts = np.sort(self._parts)

    def pairs(self, distance: int, reduces: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
        """Every member of the core sends its peer at `distance` a block: the peer's own (reducing), or its own."""
        held = self._owners // distance  # the block that a part belongs to
        kept = self.members // distance
        wanted = (self.members ^ distance) // distance if reduces else kept
        counts = np.bincount(held, minlength=self.core // distance)
        sources = np.repeat(self.members, counts[wanted])
        starts = np.searchsorted(held, wanted)
        offset = np.arange(len(sources)) - np.repeat(np.cumsum(counts[wanted]) - counts[wanted], counts[wanted])
        return sources, sources ^ distance, self._parts[np.repeat(starts, counts[wanted]) + offset], reduces

    def halve(self, builder: MovesBuilder) -> None:
        """Fold, then reduce-scatter within the core."""
        folded = self.folded[:, None]
        builder.step((folded, folded - self.core, self.all_parts, True))
        distance = self.core // 2
        while distance:
            builder.step(self.pairs(distance, reduces=True))
            distance //= 2

    def double(self, builder: MovesBuilder) -> None:
        """All-gather within the core, then let the folded ones know."""
        distance = 1
        while distance < self.core:
            builder.step(self.pairs(distance, reduces=False))
            distance *= 2


@algorithm("all_reduce", "halving_doubling", parts=_core)
def all_reduce(size: int, root: int, options: Options) -> Moves:
    """Halving, then doubling, over as many parts as the largest power of two."""
    builder, blocks = MovesBuilder(), _Blocks(size, owned=False)
    blocks.halve(builder)
    blocks.double(builder)
    folded = blocks.folded[:, None]
    builder.step((folded - blocks.core, folded, blocks.all_parts, False))
    return builder.moves()


@algorithm("reduce_scatter", "halving_doubling")
def reduce_scatter(size: int, root: int, options: Options) -> Moves:
    """Halving; a folded member gets its part from its partner at last."""
    builder, blocks = MovesBuilder(), _Blocks(size, owned=True)
    blocks.halve(builder)
    builder.step((blocks.folded - blocks.core, blocks.folded, blocks.folded, False))
    return builder.moves()


@algorithm("all_gather", "halving_doubling")
def all_gather(size: int, root: int, options: Options) -> Moves:
    """Doubling; a folded member hands its part to its partner first, and gets all others from it at last."""
    builder, blocks = MovesBuilder(), _Blocks(size, owned=True)
    builder.step((blocks.folded, blocks.folded - blocks.core, blocks.folded, False))
    blocks.double(builder)
    member, part = np.meshgrid(blocks.folded, blocks.all_parts, indexing="ij")
    builder.step((member[member != part] - blocks.core, member[member != part], part[member != part], False))
    return builder.moves()


def _log(size: int, options: Options) -> int:
    return size * size.bit_length()


@algorithm("barrier", "dissemination", transfers=_log)
def barrier(size: int, root: int, options: Options) -> Moves:
    """ceil(log2 n) steps of signals: in step k to the member 2^k further on."""
    builder, members, distance = MovesBuilder(), np.arange(size), 1
    while distance < size:
        builder.step((members, (members + distance) % size, SIGNAL, False))
        distance *= 2
    return builder.moves()
