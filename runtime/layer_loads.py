"""Loads of one expert layer: what its experts got, and the rows that ranks send, receive and compute because of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..isa.instruction import split_even
from ..isa.loads import Table
from .layout import Layout

Loads = np.ndarray[Any, np.dtype[Any]]  # [holders, parts, experts]: choices of each expert by the tokens of each part


def senders(layout: Layout) -> int:
    """Parts of holders, one after the other, whose tokens go to one copy of the experts."""
    return layout.exchange if layout.experts_travel else 1


@dataclass(frozen=True, eq=False)
class LayerLoads:
    """The loads of one layer's experts, or of their slots, and what follows from them on all ranks of a stage at once.

    Sender s, a part of a holder, is the (s % senders)-th of those whose tokens go to copy s // senders of the experts.
    Where the cuts of an expert span holders, each cut gets the same rows.
    """

    layout: Layout
    loads: Loads

    @cached_property
    def by_card(self) -> Loads:
        """Rows of every sender for every card of its copy, int32 [copies, senders, ep]."""
        flat, starts = self.loads.reshape(-1, self.loads.shape[-1]), [first for first, _ in self._shares]
        rows: Loads = np.add.reduceat(flat, starts, axis=1, dtype=np.int32)
        return rows.reshape(-1, senders(self.layout), self.layout.ep)

    @cached_property
    def arriving(self) -> Loads:
        """Rows that arrive at every card, [copies, ep]."""
        rows: Loads = self.by_card.sum(axis=1)
        return rows

    @cached_property
    def skew(self) -> tuple[float, float]:
        """What the busiest card and the busiest expert (or slot) get over the mean; 0 where nothing is routed."""
        experts = self.totals.sum(axis=0)
        if not experts.any():
            return 0.0, 0.0
        return float(self.arriving.max() / self.arriving.mean()), float(experts.max() / experts.mean())

    @property
    def _shares(self) -> list[tuple[int, int]]:
        return split_even(self.loads.shape[-1], self.layout.ep)

    @cached_property
    def of_holders(self) -> Table:
        """The loads that every rank's holder routes."""
        ranks = np.arange(self.layout.cards)
        return Table(self.loads.reshape(len(self.loads), -1), ranks // self.layout.tp % self.layout.holders)

    @cached_property
    def of_cuts(self) -> Table:
        """As `of_holders`, of every cut of every expert, card after card and there cut after cut."""
        cuts = self.layout.cuts
        order = [first + turn for first, size in self._shares for _ in range(cuts) for turn in range(size)]
        return Table(self.of_holders.values[:, order], self.of_holders.rows)

    @cached_property
    def sent(self) -> Table:
        """Rows that every rank sends to each member of its group."""
        layout, place = self.layout, self._places
        values = np.repeat(self.by_card.reshape(-1, layout.ep), layout.cuts, axis=1)
        return Table(values, place // layout.tp * layout.expert_parts + place % layout.tp // layout.etp)

    @cached_property
    def received(self) -> Table:
        """Rows that every rank gets from each member of its group."""
        return Table(self.by_card.transpose(0, 2, 1).reshape(-1, self.by_card.shape[1]), self._homes)

    @cached_property
    def totals(self) -> Loads:
        """Rows of every expert of every copy, int32 [copies, experts]."""
        rows: Loads = self.loads.reshape(len(self.by_card), -1, self.loads.shape[-1]).sum(axis=1, dtype=np.int32)
        return rows

    @cached_property
    def local(self) -> dict[int, Table]:
        """Rows of every expert that a rank has, by how many that are."""
        found = {}
        for width in {size for _, size in self._shares}:
            columns = np.array([np.arange(width) + (first if size == width else 0) for first, size in self._shares])
            found[width] = Table(self.totals[:, columns].reshape(-1, width), self._homes)
        return found

    @property
    def _places(self) -> Loads:
        """The place of every rank in its stage."""
        return np.arange(self.layout.cards) % self.layout.stage_cards

    @property
    def _homes(self) -> Loads:
        """The number of the card, copy after copy, whose experts every rank has."""
        layout, place = self.layout, self._places
        homes: Loads = place // (layout.etp * layout.ep) * layout.ep + place // layout.etp % layout.ep
        return homes


def loads_of(
    routed: Mapping[str, Loads], layout: Layout, kept: dict[int, LayerLoads] | None = None
) -> dict[str, LayerLoads]:
    """A step's loads by extent, one object for layers of equal loads (by identity).

    `kept` has those of earlier steps, which come again.
    """
    known = {} if kept is None else kept
    return {name: known.setdefault(id(loads), LayerLoads(layout, loads)) for name, loads in routed.items()}
