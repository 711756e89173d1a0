"""All-to-all: part i * n + j is what member i has for member j, and parts may be of any sizes."""

from __future__ import annotations

import numpy as np

from .plan import Moves, MovesBuilder
from .registry import Options, algorithm, shape_of


@algorithm("all_to_all", "direct")
def direct(size: int, root: int, options: Options) -> Moves:
    """One step: all send to all at once, S/n/b + L in a full mesh; ports and links that are shared add up."""
    builder, members = MovesBuilder(), np.arange(size)
    peers = (members + np.arange(1, size)[:, None]) % size
    builder.step((members, peers, members * size + peers, False))
    return builder.moves()


@algorithm("all_to_all", "pairwise")
def pairwise(size: int, root: int, options: Options) -> Moves:
    """n-1 steps: in step d everyone sends to the member d further on, so that no port hears two at once."""
    builder, members = MovesBuilder(), np.arange(size)
    for distance in range(1, size):
        peers = (members + distance) % size
        builder.step((members, peers, members * size + peers, False))
    return builder.moves()


def _levels(size: int, options: Options) -> int:
    return size * size * max(1, len(options.shape))


@algorithm("all_to_all", "hierarchical", takes=("shape",), transfers=_levels)
def hierarchical(size: int, root: int, options: Options) -> Moves:
    """A step a level, innermost first: bytes move to the member that stands there as their target does elsewhere.

    So messages across nodes run between members of equal place (on one rail), each with the bytes of a whole node.
    """
    if size == 1:
        return MovesBuilder().moves()
    shape = shape_of(size, options, "hierarchical all_to_all")
    builder = MovesBuilder()
    source, target = (side.reshape(-1) for side in np.divmod(np.arange(size * size), size))
    parts, inner = np.arange(size * size), 1
    for side in reversed(shape):
        before = source // inner * inner + target % inner
        after = source // (inner * side) * (inner * side) + target % (inner * side)
        moved = before != after
        builder.step((before[moved], after[moved], parts[moved], False))
        inner *= side
    return builder.moves()
