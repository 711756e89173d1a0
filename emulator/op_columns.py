"""Operations of all sites of a program: a sequence of Op objects that also knows itself as columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from .calendar.solver import Ints
from .card import Op


class OpColumns(Sequence[Op]):
    """What every site asks of a card, without an object for each."""

    @abstractmethod
    def use(self, number: Mapping[str, int], first: int) -> tuple[Ints, Ints]:
        """What one execution of each site takes, as `use_of` has it."""


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
