"""Energy: what instructions and bytes take of a card beside what it draws idle, by what its file says of power."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..isa.work import FusedShape, GroupedShape, MatmulShape, Unit, Work
from .spec import CardSpec
from .units.tensor import tuning_of

NJ_PER_J = 10**9
PS_PER_S = 10**12


class Drawn(NamedTuple):
    """What was done: nanojoules of operations, bytes of HBM and bytes out of links; numbers, or arrays of cards.

    Whole numbers, so that what is added up in any order is the same.
    """

    operations_nj: Any
    hbm_bytes: Any
    link_bytes: Any


class Joules(NamedTuple):
    """Energy by what took it: all that runs all the time, operations, bytes of HBM, bytes on links; arrays of cards."""

    idle: Any
    operations: Any
    hbm: Any
    links: Any

    @property
    def total(self) -> Any:
        """All of it."""
        return self.idle + self.operations + self.hbm + self.links


def unstated(card: CardSpec, cards: int) -> tuple[str, ...]:
    """The numbers that energy on so many cards would need and the card's file does not state, by dotted path."""
    return tuple(_unstated(card, cards))


def _unstated(card: CardSpec, cards: int) -> Iterator[str]:
    power = card.power
    needed = ["idle_w", "energy_j_per_vector_op", "energy_j_per_hbm_byte", *["energy_j_per_link_byte"] * (cards > 1)]
    yield from (f"power.{name}" for name in needed if getattr(power, name) is None)
    yield from (f"power.energy_j_per_op.{name}" for name in card.tensor.rate if name not in power.energy_j_per_op)


def operations_nj(work: Work, clock_fraction: Any, card: CardSpec) -> Any:
    """Nanojoules of an instruction's operations at a fraction of the clock; arrays for a Work in lanes.

    0 where the card does not state what its operations take; products take the share of it that their tuning says.
    """
    if isinstance(work.shape, FusedShape):
        return sum(operations_nj(part, clock_fraction, card) for part in work.shape.parts)
    power, joules = card.power, None
    if work.unit is Unit.TENSOR and work.dtype is not None:
        joules = power.energy_j_per_op.get(work.dtype.name, 0.0)
        if isinstance(work.shape, MatmulShape | GroupedShape):
            joules *= tuning_of(card, work.shape).power
    elif work.unit is Unit.VECTOR:
        joules = power.energy_j_per_vector_op
    taken = np.rint(np.multiply(work.ops, (joules or 0.0) * NJ_PER_J * clock_fraction ** (power.voltage_exponent or 0)))
    return int(taken) if np.ndim(taken) == 0 else taken.astype(np.int64)


def joules_of(card: CardSpec, idle_ps: int, taken: Drawn) -> Joules:
    """The energy of so many picoseconds and what was done in them, on a card that states all of it."""
    power = card.power
    return Joules(
        (power.idle_w or 0.0) * idle_ps / PS_PER_S,
        taken.operations_nj / NJ_PER_J,
        (power.energy_j_per_hbm_byte or 0.0) * taken.hbm_bytes,
        (power.energy_j_per_link_byte or 0.0) * taken.link_bytes,
    )
