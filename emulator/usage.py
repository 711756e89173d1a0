"""Usage: how long each unit of a card and each link was busy, and how long it would have had to be at full speed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..interconnect.link import Link
from .card import Card, Op
from .exchange import Exchanged
from .span import union_ps
from .ticket import Ticket
from .units.rates import capacities, ps_for

LINK = "link"
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
        self._busy: Counter[tuple[int, str]] = Counter()
        self._open: defaultdict[tuple[int, str], list[Interval]] = defaultdict(list)
        self._amounts: Counter[tuple[int, str]] = Counter()
        self._alone_ps: Counter[int] = Counter()
        self._links_busy: Counter[int] = Counter()
        self._links_open: defaultdict[int, list[Interval]] = defaultdict(list)
        self._link_bytes: Counter[int] = Counter()

    def add(self, ticket: Ticket) -> None:
        """Add the instructions of a submission that have ended."""
        runs = {rank: (run.ops, run.timeline.rows) for rank, run in ticket.runs.items()}
        executed: defaultdict[tuple[int, int], list[Interval]] = defaultdict(list)
        for span in ticket.spans:
            executed[span.card, runs[span.card][1][span.call][span.position]].append((span.start_ps, span.end_ps))
        for (rank, site), intervals in executed.items():
            op, card = runs[rank][0][site], self._cards[rank]
            self.add_site(rank, op, {index: unit for unit, index in card.resources.items()}, intervals)
        for exchanged in ticket.exchanged:
            self.add_exchanged(exchanged)

    def add_site(self, rank: int, op: Op, units: Mapping[int, str], intervals: Sequence[Interval]) -> None:
        """Add executions of one instruction of a card; `units` names the resources that its demand asks of."""
        for unit in op.busy:
            self._open[rank, unit].extend(intervals)
        if op.runs_alone:
            for index, amount in op.demand.amounts:
                self._amounts[rank, units[index]] += len(intervals) * amount

    def settle(self) -> None:
        """Nothing that will be added started before all that has been added ended: its intervals can be summed up."""
        for key, intervals in self._open.items():
            self._busy[key] += union_ps(intervals)
        for index, intervals in self._links_open.items():
            self._links_busy[index] += union_ps(intervals)
        self._open.clear()
        self._links_open.clear()

    def card(self, rank: int) -> dict[str, Usage]:
        """Usage of a card by unit: tensor, vector, dma0 and on, host, hbm, link."""
        card, capacity = self._cards[rank], capacities(self._cards[rank].spec)
        usage = {}
        for unit in card.resources:
            amount, clocked = self._amounts[rank, unit], unit in card.clocked
            demanded_ps = ps_for(amount, card.spec.clock_hz if clocked else capacity[unit])
            counts = (amount, None) if clocked else (None, amount)
            usage[unit] = Usage(self._busy_ps(rank, unit), demanded_ps, *counts)
        num_bytes = sum(n for index, n in self._link_bytes.items() if self._source[index] == rank)
        usage[LINK] = Usage(self._busy_ps(rank, LINK), self._alone_ps[rank], None, num_bytes)
        return usage

    def links(self) -> list[Usage]:
        """Usage of every directed link, by its id in the topology."""
        return [
            Usage(
                self._links_busy[index] + union_ps(self._links_open.get(index, ())),
                ps_for(self._link_bytes[index], link.bandwidth_bytes_per_s),
                None,
                self._link_bytes[index],
            )
            for index, link in zip(self._link_resources, self._links, strict=True)
        ]

    def _busy_ps(self, rank: int, unit: str) -> int:
        return self._busy[rank, unit] + union_ps(self._open.get((rank, unit), ()))

    def add_exchanged(self, exchanged: Exchanged) -> None:
        """Add a collective or transfer that has ended."""
        interval = (exchanged.start_ps, exchanged.end_ps)
        for rank in exchanged.ranks[:1] if exchanged.is_transfer else exchanged.ranks:
            self._alone_ps[rank] += exchanged.demand.alone_ps
        for index, amount in exchanged.demand.amounts:
            if index in self._owner:
                self._amounts[self._owner[index]] += amount
                self._open[self._owner[index]].append(interval)
            else:
                self._link_bytes[index] += amount
                self._links_open[index].append(interval)
