"""What a collective expands into: lockstep steps of transfers between the members of a group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

SIGNAL = -1  # the `part` of a transfer that carries no bytes, only the news that its source has come so far


@dataclass(frozen=True, slots=True)
class Transfer:
    """Member `source` sends part `part` of its buffer to member `target`; both are indices in the group.

    The target overwrites its own part (send and recv), or, where `reduces`, adds to it (send and recv-reduce).
    """

    source: int
    target: int
    part: int
    reduces: bool = False


@dataclass(frozen=True)
class Step:
    """Transfers that happen at once: all of them read what was there before the step.

    Where a target is reached twice for one part, it takes the transfers in this order.
    """

    transfers: tuple[Transfer, ...]

    @cached_property
    def needs_copies(self) -> bool:
        """Whether a transfer sends what another one of this step overwrites, so that order would matter."""
        sent = {(transfer.source, transfer.part) for transfer in self.transfers}
        return any((transfer.target, transfer.part) in sent for transfer in self.transfers)


@dataclass(frozen=True)
class Plan:
    """A collective over `size` members, expanded by `algorithm`; sizes of parts come at use.

    `parts` is how many parts the buffer has. The next step of a member starts when it has ended its last one.
    """

    collective: str
    algorithm: str
    size: int
    steps: tuple[Step, ...]
    root: int = 0
    parts: int = 0

    def __hash__(self) -> int:
        # Cheap on purpose: a plan may hold millions of transfers, and caches look it up for every instruction.
        return hash((self.collective, self.algorithm, self.size, self.root, len(self.steps)))

    @property
    def name(self) -> str:
        """`ring all_reduce of 8`."""
        return f"{self.algorithm} {self.collective} of {self.size}"
