"""Which algorithm and protocol a collective runs by, as a cluster is told: what its file's table says, or the usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..interconnect.choices import Choice
from ..interconnect.collectives.registry import algorithms_for
from ..isa.dtype import DType

# (collective, group size, ranks, bytes of all its parts, their element type)
Choose = Callable[[str, int, Sequence[int], int, DType | None], Choice]


def default_choice(
    collective: str, size: int, ranks: Sequence[int], num_bytes: int, dtype: DType | None = None
) -> Choice:
    """The collective's usual algorithm, whatever the size, by a library that costs nothing."""
    return Choice(algorithms_for(collective)[0])
