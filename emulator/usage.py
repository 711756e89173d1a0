"""Usage: how long each unit of a card and each link was busy, and how long it would have had to be at full speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..interconnect.topology import Topology
from .calendar.activity import Demand
from .calendar.solver import Ints
from .card import Card, Op
from .energy import Drawn
from .exchange import Exchanged
from .exchange_use import Times, alike, asked
from .intervals import covered_ps
from .span_columns import CardColumns
from .units.rates import capacities, ps_for
from .units_used import LINK, UnitsUsed

NOBODY = -1


class Usage(NamedTuple):
    """`busy_ps`: at least one instruction that uses it was under way. `demanded_ps`: its amounts at full capacity.

    `cycles` is of a unit at the card's clock, `num_bytes` of HBM, the host link or wires; the other one is None. A
    card's link unit is demanded for the time that its collectives and sends take alone once their latencies are over,
    and its bytes are those on the links that leave the card. `demanded_ps` over elapsed time is utilisation.
    """

    busy_ps: int
    demanded_ps: int
    cycles: int | None
    num_bytes: int | None


class Ledger:
    """What submissions used of cards and links, added up."""

    def __init__(
        self, cards: Sequence[Card], topology: Topology, link_resources: range, nodes: Sequence[int], resources: int
    ) -> None:
        self._cards, self._topology, self._link_resources = cards, topology, link_resources
        self._hbm = np.array([card.resources["hbm"] for card in cards])
        self._owner = {index: (card.rank, unit) for card in cards for unit, index in card.resources.items()}
        rank_of = np.full(topology.nodes, NOBODY)
        rank_of[list(nodes)] = np.arange(len(nodes))
        self._source = rank_of[topology.columns.source]
        self._units = UnitsUsed(cards)
        self._amounts = np.zeros(resources, np.int64)  # of exchanges
        self._alone_ps = np.zeros(len(cards), np.int64)
        self._links_busy_ps = np.zeros(len(link_resources), np.int64)
        self._links_open = Times()

    def add(self, cards: Sequence[CardColumns], exchanged: Sequence[Exchanged]) -> None:
        """Add the instructions and exchanges of a submission that have ended."""
        met = Times()
        for one in alike(exchanged):
            ranks, demand = list(one.first.ranks), one.first.demand
            self._alone_ps[ranks[:1] if one.first.is_transfer else ranks] += demand.alone_ps * one.number
            resources, amounts = asked(demand, one.number)
            self._amounts[resources] += amounts
            first, last = self._link_resources.start, self._link_resources.stop
            on_links = (resources >= first) & (resources < last)
            self._links_open.add(resources[on_links] - first, one.times)
            met.add(resources[~on_links], one.times)
        self._units.add(cards, {self._owner[index]: times for indices, times in met.groups() for index in indices})

    def settle(self) -> None:
        """Nothing that will be added started before all that has been added ended: its intervals can be summed up."""
        self._units.settle()
        self._links_busy_ps += self._links_open_ps()
        self._links_open.clear()

    def _links_open_ps(self) -> Ints:
        """How long each link was busy in what is not summed up yet."""
        busy_ps = np.zeros(len(self._link_resources), np.int64)
        for links, times in self._links_open.groups():
            busy_ps[links] = covered_ps(times)
        return busy_ps

    def card(self, rank: int) -> dict[str, Usage]:
        """Usage of a card by unit: tensor, vector, dma0 and on, host, hbm, link."""
        card, capacity = self._cards[rank], capacities(self._cards[rank].spec)
        busy, amounts = self._units.of(rank)
        usage = {}
        for unit in card.resources:
            amount, clocked = amounts[unit] + int(self._amounts[card.resources[unit]]), unit in card.clocked
            demanded_ps = ps_for(amount, card.spec.clock_hz if clocked else capacity[unit])
            counts = (amount, None) if clocked else (None, amount)
            usage[unit] = Usage(busy[unit], demanded_ps, *counts)
        num_bytes = int(self._link_bytes[self._source == rank].sum())
        usage[LINK] = Usage(busy[LINK], int(self._alone_ps[rank]), None, num_bytes)
        return usage

    def drawn(self) -> Drawn:
        """What operations and bytes took of every card in all that has been added."""
        operations_nj, alone = self._units.drawn()
        return Drawn(operations_nj.copy(), alone + self._amounts[self._hbm], self._leaving(self._link_bytes))

    def alone(self, ops: Sequence[Op]) -> tuple[Ints, Ints]:
        """Nanojoules of each site's operations, and the bytes of HBM that it asks by itself."""
        return self._units.alone(ops)

    def moved(self, demand: Demand) -> Drawn:
        """The same of one exchange, of which only bytes are told."""
        resources, amounts = asked(demand, 1)
        all_of = np.zeros_like(self._amounts)
        np.add.at(all_of, resources, amounts)
        links = all_of[self._link_resources.start : self._link_resources.stop]
        return Drawn(np.zeros(len(self._cards), np.int64), all_of[self._hbm], self._leaving(links))

    def _leaving(self, link_bytes: Ints) -> Ints:
        """Bytes on the links that leave each card, [cards], from those of every link."""
        found = np.zeros(len(self._cards), np.int64)
        np.add.at(found, self._source[self._source != NOBODY], link_bytes[self._source != NOBODY])
        return found

    @property
    def _link_bytes(self) -> Ints:
        return self._amounts[self._link_resources.start : self._link_resources.stop]

    def links(self) -> list[Usage]:
        """Usage of every directed link, by its id in the topology."""
        return self._usage_of(np.arange(len(self._link_resources)))

    def used_links(self) -> Iterator[tuple[int, Usage]]:
        """Ids and usage of the directed links that bytes crossed."""
        used = np.flatnonzero(self._link_bytes)
        return zip(used.tolist(), self._usage_of(used), strict=True)

    def _usage_of(self, links: Ints) -> list[Usage]:
        busy_ps = (self._links_busy_ps + self._links_open_ps())[links].tolist()
        per_s = self._topology.columns.bandwidth_bytes_per_s[links].tolist()
        columns = zip(busy_ps, self._link_bytes[links].tolist(), per_s, strict=True)
        return [Usage(busy, ps_for(num_bytes, rate), None, num_bytes) for busy, num_bytes, rate in columns]
