"""Operations of one rank's sites: what each asks of the card, as objects and as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from ..calendar.solver import Ints
from ..card import Op
from ..digest import digest_of
from ..op_columns import OpColumns, Power, power_of, use_of
from ..span import BOUNDS
from .flatten import ACTIONS, LINKED, Shares
from .machine import NONE, OP_COLUMNS


class Ops(OpColumns):
    """What every site of a program asks of a card; ranks in which all is equal share one such object.

    `made` is the operation of every question, and `asked` the question of every site.
    """

    def __init__(self, made: Sequence[Op], asked: Ints, shares: Shares) -> None:
        self.made, self.asked, self._shares = made, asked, shares
        self._use: tuple[Ints, Ints] | None = None

    def of(self, number: int) -> Op:
        """The operation of a question."""
        return self.made[number]

    def kind(self, site: int) -> Op:
        """An operation with the action, group and dispatch of a site's; its message may be that of another rank."""
        return self.made[int(self.asked[site])]

    def lane(self, site: int) -> int:
        """The question of a site whose message is to be had of a batch, for many ranks at once; else NONE."""
        return NONE

    @property
    def likeness(self) -> object:
        """What is equal of ranks that do the same in the same time, whomever they send to."""
        return id(self)

    @cached_property
    def course(self) -> object:
        """What is equal of operations that the calendar cannot tell apart, whatever work they stand for."""
        return digest_of(self.by_question)

    @property
    def exchanges(self) -> object:
        """What is equal of ranks whose exchanges are the same, save for the bytes of all-to-alls."""
        return id(self)

    @cached_property
    def actions(self) -> Ints:
        """What is done at each site, by its number in the order of `Action`."""
        return np.array([ACTIONS[op.action] for op in self.made], np.int64)[self.asked]

    @cached_property
    def by_question(self) -> Ints:
        """Operations as rows of the calendar's table, by question: [questions, OP_COLUMNS]."""
        distinct, of_question = self._distinct
        rows = np.array([self._row(op) for op in distinct], np.int64).reshape(-1, OP_COLUMNS)
        return rows[of_question]

    @property
    def rows(self) -> Ints:
        """Operations as rows of the calendar's table, by site: [sites, OP_COLUMNS]."""
        return self.by_question[self.asked]

    @cached_property
    def _distinct(self) -> tuple[list[Op], Ints]:
        """Every operation once, and which of them each question has."""
        numbers: dict[int, int] = {}
        of_question = [numbers.setdefault(id(op), len(numbers)) for op in self.made]
        distinct = {id(op): op for op in self.made}
        return list(distinct.values()), np.array(of_question, np.int64)

    def _row(self, op: Op) -> tuple[int, ...]:
        demand = op.demand
        own = op.action not in LINKED or op.runs_alone
        share = self._shares.of(demand) if own and demand.alone_ps else NONE
        return demand.fixed_ps, demand.alone_ps, share, BOUNDS.index(op.bound), int(op.runs_alone)

    def power(self) -> Power:
        """As `OpColumns.power`."""
        energies, fractions = self.power_by_question
        return Power(energies[self.asked], fractions[self.asked])

    @cached_property
    def power_by_question(self) -> Power:
        """The same, by question."""
        distinct, of_question = self._distinct
        energies, fractions = power_of(distinct)
        return Power(energies[of_question], fractions[of_question])

    def use(self, number: Mapping[str, int], first: int) -> tuple[Ints, Ints]:
        """As `OpColumns.use`."""
        busy, asks = self.use_by_question(number, first)
        return busy[self.asked], asks[self.asked]

    def use_by_question(self, number: Mapping[str, int], first: int) -> tuple[Ints, Ints]:
        """The same, by question; `number` and `first` are those of the cluster's cards."""
        if self._use is None:
            distinct, of_question = self._distinct
            busy, asks = use_of(distinct, number, first)
            self._use = busy[of_question], asks[of_question]
        return self._use

    def __len__(self) -> int:
        return len(self.asked)

    @overload
    def __getitem__(self, index: int) -> Op: ...
    @overload
    def __getitem__(self, index: slice) -> list[Op]: ...
    def __getitem__(self, index: int | slice) -> Op | list[Op]:
        if isinstance(index, slice):
            return [self.of(number) for number in self.asked[index].tolist()]
        return self.of(int(self.asked[index]))
