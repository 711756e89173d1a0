"""Chain algorithms: what the root has goes from member to member along the group order, each waiting for all of it."""

from __future__ import annotations

from .plan import Step, Transfer
from .registry import algorithm


@algorithm("broadcast", "chain")
def broadcast(size: int, root: int) -> tuple[Step, ...]:
    """n-1 steps of the whole buffer, root to root+1 and on: (n-1)(S/b + L) alone."""
    members = [(root + offset) % size for offset in range(size)]
    return tuple(Step((Transfer(members[k], members[k + 1], 0),)) for k in range(size - 1))
