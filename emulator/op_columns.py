"""Operations of all sites of a program: a sequence of Op objects that also knows itself as columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .calendar.solver import Ints
from .card import Op

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Power(NamedTuple):
    """Nanojoules of the operations of each site, and the fraction of the card's clock that it sustains."""

    operations_nj: Ints
    clock_fraction: Floats


class OpColumns(Sequence[Op]):
    """What every site asks of a card, without an object for each."""

    @abstractmethod
    def power(self) -> Power:
        """What one execution of each site takes, as `power_of` has it."""

    @abstractmethod
    def use(self, number: Mapping[str, int], first: int) -> tuple[Ints, Ints]:
        """What one execution of each site takes, as `use_of` has it."""


def power_of(ops: Sequence[Op]) -> Power:
    """What one execution of each operation takes beside what it moves."""
    if isinstance(ops, OpColumns):
        return ops.power()
    costs = [op.cost for op in ops]
    energies = np.array([cost.operations_nj for cost in costs], np.int64)
    return Power(energies, np.array([cost.demand.clock_fraction for cost in costs], np.float64))


def use_of(ops: Sequence[Op], number: Mapping[str, int], first: int) -> tuple[Ints, Ints]:
    """(whether each operation keeps a unit busy, how much it asks of it in an activity of its own), [ops, units].

    `number` is the place of each unit, the link's last; the card's resources begin with the one of index `first`.
    """
    if isinstance(ops, OpColumns):
        return ops.use(number, first)
    busy = np.zeros((len(ops), len(number)), bool)
    asks = np.zeros((len(ops), len(number)), np.int64)
    for site, op in enumerate(ops):
        busy[site, [number[unit] for unit in op.busy]] = True
        if op.runs_alone:
            for resource, amount in op.demand.amounts:
                asks[site, (resource - first) % (len(number) - 1)] = amount
    return busy, asks
