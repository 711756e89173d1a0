"""Operations of one rank's sites: what each asks of the card, as objects and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np

from ..calendar.solver import Ints
from ..card import Op
from ..span import BOUNDS
from .flatten import ACTIONS, LINKED, Shares
from .machine import NONE, OP_COLUMNS


class Ops(Sequence[Op]):
    """What every site of a program asks of a card; ranks in which all is equal share one such object.

    `made` is the operation of every question, and `asked` the question of every site.
    """

    def __init__(self, made: Sequence[Op], asked: Ints, shares: Shares) -> None:
        self.made, self.asked, self._shares = made, asked, shares

    @cached_property
    def actions(self) -> Ints:
        """What is done at each site, by its number in the order of `Action`."""
        return np.array([ACTIONS[op.action] for op in self.made], np.int64)[self.asked]

    @cached_property
    def rows(self) -> Ints:
        """Operations as rows of the calendar's table, by site: [sites, OP_COLUMNS]."""
        numbers: dict[int, int] = {}
        rows: list[tuple[int, ...]] = []
        for op in self.made:
            if id(op) not in numbers:
                numbers[id(op)] = len(rows)
                rows.append(self._row(op))
        distinct = np.array(rows, np.int64).reshape(-1, OP_COLUMNS)
        of_question = np.array([numbers[id(op)] for op in self.made], np.int64)
        taken: Ints = distinct[of_question[self.asked]]
        return taken

    def _row(self, op: Op) -> tuple[int, ...]:
        demand = op.demand
        own = op.action not in LINKED or op.runs_alone
        share = self._shares.of(demand) if own and demand.alone_ps else NONE
        return demand.fixed_ps, demand.alone_ps, share, BOUNDS.index(op.bound), int(op.runs_alone)

    def __len__(self) -> int:
        return len(self.asked)

    @overload
    def __getitem__(self, index: int) -> Op: ...
    @overload
    def __getitem__(self, index: slice) -> list[Op]: ...
    def __getitem__(self, index: int | slice) -> Op | list[Op]:
        if isinstance(index, slice):
            return [self.made[number] for number in self.asked[index].tolist()]
        return self.made[int(self.asked[index])]
