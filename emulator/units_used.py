"""Units used: how long each unit of every card was busy and what was asked of it, counted over columns of spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .calendar.solver import Ints
from .card import Card, Op
from .intervals import covered_ps, gained_ps
from .op_columns import power_of, use_of
from .span_columns import CardColumns, alike_all_along

LINK = "link"
Met = Mapping[tuple[int, str], Ints]


class SiteUse(NamedTuple):
    """What one execution of each site takes: `busy[site, unit]` whether it keeps a unit busy, `asks` how much of it.

    `operations_nj` are the nanojoules of its operations.
    """

    ops: Sequence[Op]  # kept alive, since it is found by its identity
    busy: Ints
    asks: Ints
    operations_nj: Ints


class Together(NamedTuple):
    """A submission that others may be in flight with: what its cards did, and when exchanges kept their units busy."""

    cards: Mapping[int, CardColumns]  # by every rank that one stands for
    met: Met


class UnitsUsed:
    """Busy times and amounts of all cards by unit; cards that did the same all along are counted once."""

    def __init__(self, cards: Sequence[Card]) -> None:
        self.units = (*cards[0].resources, LINK)
        self._number = {unit: number for number, unit in enumerate(self.units)}
        self._first = min(cards[0].resources.values())
        self._busy_ps = np.zeros((len(cards), len(self.units)), np.int64)
        self._amounts = np.zeros_like(self._busy_ps)
        self._operations_nj = np.zeros(len(cards), np.int64)
        self._open: list[Together] = []
        self._uses: dict[int, SiteUse] = {}

    def add(self, cards: Sequence[CardColumns], met: Met) -> None:
        """Add what a submission's cards did; `met` are the times of its exchanges by (rank, unit)."""
        for card in cards:
            use = self._use(card.ops)
            counts = np.bincount(card.sites, minlength=len(card.ops))
            self._amounts[list(card.ranks)] += counts @ use.asks
            self._operations_nj[list(card.ranks)] += counts @ use.operations_nj
        self._open.append(Together({rank: card for card in cards for rank in card.ranks}, met))

    def settle(self) -> None:
        """Sum up the times of all that has been added; nothing of it is in flight any more."""
        for ranks, _ in alike_all_along([one.cards.values() for one in self._open], len(self._busy_ps)):
            self._busy_ps[ranks] += self._open_ps(ranks[0])
        self._open.clear()
        self._uses.clear()

    def of(self, rank: int) -> tuple[dict[str, int], dict[str, int]]:
        """Busy picoseconds and amounts of a card by unit; of "link" there is no amount."""
        busy = self._busy_ps[rank] + self._open_ps(rank)
        return dict(zip(self.units, busy.tolist(), strict=True)), dict(
            zip(self.units, self._amounts[rank].tolist(), strict=True)
        )

    def drawn(self) -> tuple[Ints, Ints]:
        """Of every card the nanojoules of its operations, and the bytes of HBM that these asked by themselves."""
        return self._operations_nj, self._amounts[:, self._number["hbm"]]

    def alone(self, ops: Sequence[Op]) -> tuple[Ints, Ints]:
        """The same of one execution of each site."""
        asks = use_of(ops, self._number, self._first)[1]
        return power_of(ops).operations_nj, asks[:, self._number["hbm"]]

    def _open_ps(self, rank: int) -> Ints:
        """How long each unit of a card was busy in what is not summed up yet."""
        total = np.zeros(len(self.units), np.int64)
        parts = [(one.cards[rank], one.met) for one in self._open if rank in one.cards and len(one.cards[rank])]
        if not parts:
            return total
        times = np.concatenate([np.stack((card.start_ps, card.end_ps), 1) for card, _ in parts])
        busy = np.concatenate([self._use(card.ops).busy[card.sites] for card, _ in parts])
        order = np.argsort(times[:, 0], kind="stable")
        times, busy = times[order], busy[order]
        for number, unit in enumerate(self.units):
            own = times[busy[:, number]]
            others = [met[key] for card, met in parts if (key := (card.rank, unit)) in met]
            if others:
                total[number] = covered_ps(np.concatenate((own, *others)))
            elif len(own):
                total[number] = gained_ps(own[:, 0], own[:, 1], int(own[0, 0])).sum()
        return total

    def _use(self, ops: Sequence[Op]) -> SiteUse:
        found = self._uses.get(id(ops))
        if found is None:
            found = self._uses[id(ops)] = SiteUse(
                ops, *use_of(ops, self._number, self._first), power_of(ops).operations_nj
            )
        return found
