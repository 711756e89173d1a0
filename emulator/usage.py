"""Usage: how long each unit of a card and each link was busy, and how long it would have had to be at full speed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..interconnect.link import Link
from .card import Card
from .exchange import Exchanged
from .intervals import covered_ps
from .span_columns import CardColumns
from .units.rates import capacities, ps_for
from .units_used import LINK, UnitsUsed

Interval = tuple[int, int]


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
        self, cards: Sequence[Card], links: Sequence[Link], link_resources: Sequence[int], nodes: Sequence[int]
    ) -> None:
        self._cards, self._links, self._link_resources = cards, links, link_resources
        self._owner = {index: (card.rank, unit) for card in cards for unit, index in card.resources.items()}
        rank_of = {node: rank for rank, node in enumerate(nodes)}
        self._source = {index: rank_of.get(link.source) for index, link in zip(link_resources, links, strict=True)}
        self._units = UnitsUsed(cards)
        self._amounts: Counter[tuple[int, str]] = Counter()  # of exchanges
        self._alone_ps: Counter[int] = Counter()
        self._links_busy: Counter[int] = Counter()
        self._links_open: defaultdict[int, list[Interval]] = defaultdict(list)
        self._link_bytes: Counter[int] = Counter()

    def add(self, cards: Sequence[CardColumns], exchanged: Sequence[Exchanged]) -> None:
        """Add the instructions and exchanges of a submission that have ended."""
        met: defaultdict[tuple[int, str], list[Interval]] = defaultdict(list)
        for one in exchanged:
            self._add_exchanged(one, met)
        self._units.add(cards, met)

    def settle(self) -> None:
        """Nothing that will be added started before all that has been added ended: its intervals can be summed up."""
        self._units.settle()
        for index, intervals in self._links_open.items():
            self._links_busy[index] += covered_ps(intervals)
        self._links_open.clear()

    def card(self, rank: int) -> dict[str, Usage]:
        """Usage of a card by unit: tensor, vector, dma0 and on, host, hbm, link."""
        card, capacity = self._cards[rank], capacities(self._cards[rank].spec)
        busy, amounts = self._units.of(rank)
        usage = {}
        for unit in card.resources:
            amount, clocked = amounts[unit] + self._amounts[rank, unit], unit in card.clocked
            demanded_ps = ps_for(amount, card.spec.clock_hz if clocked else capacity[unit])
            counts = (amount, None) if clocked else (None, amount)
            usage[unit] = Usage(busy[unit], demanded_ps, *counts)
        num_bytes = sum(n for index, n in self._link_bytes.items() if self._source[index] == rank)
        usage[LINK] = Usage(busy[LINK], self._alone_ps[rank], None, num_bytes)
        return usage

    def links(self) -> list[Usage]:
        """Usage of every directed link, by its id in the topology."""
        return [
            Usage(
                self._links_busy[index] + covered_ps(self._links_open.get(index, ())),
                ps_for(self._link_bytes[index], link.bandwidth_bytes_per_s),
                None,
                self._link_bytes[index],
            )
            for index, link in zip(self._link_resources, self._links, strict=True)
        ]

    def _add_exchanged(self, exchanged: Exchanged, met: Mapping[tuple[int, str], list[Interval]]) -> None:
        """Add a collective or transfer; `met` gets the times in which it kept units of cards busy."""
        interval = (exchanged.start_ps, exchanged.end_ps)
        for rank in exchanged.ranks[:1] if exchanged.is_transfer else exchanged.ranks:
            self._alone_ps[rank] += exchanged.demand.alone_ps
        for index, amount in exchanged.demand.amounts:
            if index in self._owner:
                self._amounts[self._owner[index]] += amount
                met[self._owner[index]].append(interval)
            else:
                self._link_bytes[index] += amount
                self._links_open[index].append(interval)
