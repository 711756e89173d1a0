"""Chains: bytes go from member to member along the group order, in chunks that follow one another.

With n members, c chunks, bandwidth b and latency L a whole buffer of S bytes takes (n-2+c) S/c/b + (n-1) L alone; with
one chunk every member waits for all of it, (n-1)(S/b + L). A reduce runs the same way towards the root: the sum is
((x[r+1] + x[r+2]) + ...) + x[r], counted round the group from the root r.
"""

from __future__ import annotations

import numpy as np

from .plan import Moves, MovesBuilder
from .registry import Options, algorithm


def _chunks(size: int, options: Options) -> int:
    return max(1, options.chunks)


def _chain(order: np.ndarray, chunks: int, reduces: bool) -> Moves:
    """Chunk c crosses edge e at step c + e; only the first chunk meets latencies, those behind it are on the way."""
    builder, edges = MovesBuilder(), len(order) - 1
    for step in range(edges + chunks - 1 if edges else 0):
        edge = np.arange(max(0, step - chunks + 1), min(edges, step + 1))
        builder.step((order[edge], order[edge + 1], step - edge, reduces), streamed=step >= edges)
    return builder.moves()


@algorithm("broadcast", "chain", parts=_chunks, takes=("chunks",))
def broadcast(size: int, root: int, options: Options) -> Moves:
    """Root to root+1 and on."""
    return _chain((root + np.arange(size)) % size, _chunks(size, options), reduces=False)


@algorithm("reduce", "chain", parts=_chunks, takes=("chunks",))
def reduce(size: int, root: int, options: Options) -> Moves:
    """Root+1 to root+2 and on, round to the root."""
    return _chain((root + 1 + np.arange(size)) % size, _chunks(size, options), reduces=True)
