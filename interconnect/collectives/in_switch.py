"""In-switch reduction: members send up to a switch that adds, and it sends the sum down to all at once.

Each member's link carries the bytes once up and once down, both at the same time but for one chunk: with c chunks, S
bytes, bandwidth b and latency L to the switch an all-reduce takes (c+1)/c S/b + 2 L, where no algorithm between the
members comes below 2 (n-1)/n S/b. What meets on its way to the switch is added where it meets (switches below it
reduce too), and what parts on its way down is copied there, so that a link carries every part once.

Order of reduction: in the order of members, ((x0 + x1) + x2) + ...
"""

from __future__ import annotations

import numpy as np

from .plan import SIGNAL, Batch, Moves, MovesBuilder
from .registry import Options, algorithm

CHUNKS = 32


def _chunks(size: int, options: Options) -> int:
    return options.chunks or CHUNKS


def _transfers(size: int, options: Options) -> int:
    return 2 * size * _chunks(size, options)


def _up(size: int, part: int) -> tuple[Batch, Batch]:
    """Member 0's part is kept by the switch, the others are added one after the other."""
    return (0, size, part, False), (np.arange(1, size), size, part, True)


def _stream(ups: list[tuple[Batch, ...]], downs: list[Batch]) -> Moves:
    """Step t: part t up and part t - 1 down; latencies of the first two, for the others follow."""
    builder = MovesBuilder()
    for step in range(len(ups) + 1):
        batches: list[Batch] = list(ups[step]) if step < len(ups) else []
        batches += downs[step - 1 : step] if step else []
        builder.step(*batches, streamed=step > 1)
    return builder.moves()


def _reducing(size: int, chunks: int, targets: list[np.ndarray]) -> Moves:
    if size == 1:
        return MovesBuilder().moves()
    ups: list[tuple[Batch, ...]] = [_up(size, part) for part in range(chunks)]
    return _stream(ups, [(size, targets[part], part, False) for part in range(chunks)])


@algorithm("all_reduce", "in_switch", parts=_chunks, takes=("chunks",), uses_switch=True, transfers=_transfers)
def all_reduce(size: int, root: int, options: Options) -> Moves:
    """Chunk by chunk up to the switch and down to all."""
    chunks = _chunks(size, options)
    return _reducing(size, chunks, [np.arange(size)] * chunks)


@algorithm("reduce", "in_switch", parts=_chunks, takes=("chunks",), uses_switch=True, transfers=_transfers)
def reduce(size: int, root: int, options: Options) -> Moves:
    """Chunk by chunk up to the switch and down to the root."""
    chunks = _chunks(size, options)
    return _reducing(size, chunks, [np.array([root])] * chunks)


@algorithm("reduce_scatter", "in_switch", uses_switch=True)
def reduce_scatter(size: int, root: int, options: Options) -> Moves:
    """Part by part up to the switch and down to its owner."""
    return _reducing(size, size, [np.array([part]) for part in range(size)])


@algorithm("all_gather", "in_switch", uses_switch=True)
def all_gather(size: int, root: int, options: Options) -> Moves:
    """Part by part from its owner up to the switch and down to the others."""
    if size == 1:
        return MovesBuilder().moves()
    ups: list[tuple[Batch, ...]] = [((part, size, part, False),) for part in range(size)]
    others = [np.delete(np.arange(size), part) for part in range(size)]
    return _stream(ups, [(size, others[part], part, False) for part in range(size)])


@algorithm("broadcast", "in_switch", parts=_chunks, takes=("chunks",), uses_switch=True, transfers=_transfers)
def broadcast(size: int, root: int, options: Options) -> Moves:
    """Chunk by chunk from the root up to the switch and down to the others."""
    if size == 1:
        return MovesBuilder().moves()
    chunks, others = _chunks(size, options), np.delete(np.arange(size), root)
    ups: list[tuple[Batch, ...]] = [((root, size, part, False),) for part in range(chunks)]
    return _stream(ups, [(size, others, part, False) for part in range(chunks)])


@algorithm("barrier", "in_switch", uses_switch=True)
def barrier(size: int, root: int, options: Options) -> Moves:
    """A signal from each to the switch, and one back to all."""
    builder, members = MovesBuilder(), np.arange(size if size > 1 else 0)
    builder.step((members, size, SIGNAL, False))
    builder.step((size, members, SIGNAL, False))
    return builder.moves()
