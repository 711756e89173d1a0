"""Usage: how long each unit of a card and each link was busy, and how long it would have had to be at full speed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from .calendar.activity import Demand
from .card import Action, Op
from .cluster import Cluster
from .exchange import Exchanged
from .span import union_ps
from .ticket import CardRun, Ticket
from .units.rates import ps_for

LINK = "link"


class Usage(NamedTuple):
    """`busy_ps`: at least one instruction that uses it was under way. `demanded_ps`: its amounts at full capacity.

    `amount` is cycles of a unit, bytes of HBM, host link or a directed link. A card's link unit is demanded
    for the time its collectives and sends take alone once their latencies are over, and its amount is the bytes on the
    links that leave the card. `demanded_ps` over elapsed time is utilisation.
    """

    busy_ps: int
    demanded_ps: int
    amount: int


class _Account:
    """Usage under construction: intervals, amounts and the link's times, by (rank, unit)."""

    def __init__(self) -> None:
        self.intervals: defaultdict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        self.amounts: Counter[tuple[int, str]] = Counter()
        self.alone_ps: Counter[tuple[int, str]] = Counter()


def card_usage(cluster: Cluster, tickets: Iterable[Ticket]) -> dict[tuple[int, str], Usage]:
    """Usage of every unit of every card by (rank, unit): tensor, vector, dma0 and on, host, hbm, link.

    Counts the instructions that have ended; those of all tickets together, where they overlap.
    """
    account = _Account()
    owner = {index: (card.rank, unit) for card in cluster.cards for unit, index in card.resources.items()}
    source = {index: link.source for index, link in zip(cluster.link_resources, cluster.topology.links, strict=True)}
    for ticket in tickets:
        _add_spans(account, cluster, ticket, owner)
        for exchanged in ticket.exchanged:
            _add_exchanged(account, exchanged, owner, source)
    usage = {}
    for card in cluster.cards:
        for unit in (*card.resources, LINK):
            key = (card.rank, unit)
            amount, demanded_ps = account.amounts[key], account.alone_ps[key]
            if unit != LINK:
                capacity = cluster.calendar.resources[card.resources[unit]].nominal_per_s
                assert capacity is not None
                demanded_ps = ps_for(amount, capacity)
            usage[key] = Usage(union_ps(account.intervals[key]), demanded_ps, amount)
    return usage


def link_usage(cluster: Cluster, tickets: Iterable[Ticket]) -> list[Usage]:
    """Usage of every directed link, by its id in the topology."""
    intervals: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    amounts: Counter[int] = Counter()
    for ticket in tickets:
        for exchanged in ticket.exchanged:
            for index, amount in exchanged.demand.amounts:
                intervals[index].append((exchanged.start_ps, exchanged.end_ps))
                amounts[index] += amount
    return [
        Usage(union_ps(intervals[index]), ps_for(amounts[index], link.bandwidth_bytes_per_s), amounts[index])
        for index, link in zip(cluster.link_resources, cluster.topology.links, strict=True)
    ]


def _add_spans(account: _Account, cluster: Cluster, ticket: Ticket, owner: dict[int, tuple[int, str]]) -> None:
    uses = {rank: _uses(cluster, run, owner) for rank, run in ticket.runs.items()}
    bases = {rank: run.timeline.bases for rank, run in ticket.runs.items()}
    executed: Counter[tuple[int, int]] = Counter()
    for span in ticket.spans:
        site = bases[span.card][span.call] + span.position
        executed[span.card, site] += 1
        for key in uses[span.card][site]:
            account.intervals[key].append((span.start_ps, span.end_ps))
    for (rank, site), times in executed.items():
        for index, amount in _own_demand(ticket.runs[rank].ops[site], cluster).amounts:
            account.amounts[owner[index]] += times * amount


def _uses(cluster: Cluster, run: CardRun, owner: dict[int, tuple[int, str]]) -> list[set[tuple[int, str]]]:
    """For every site the units that its instruction keeps busy; instructions of control keep none."""
    card = cluster.cards[run.rank]
    found = []
    for site, op in zip(run.timeline.sites, run.ops, strict=True):
        units = {owner[index] for index, _ in _own_demand(op, cluster).amounts}
        unit = card.unit_of(site)
        found.append(units | {(run.rank, unit)} if unit != "control" else units)
    return found


def _own_demand(op: Op, cluster: Cluster) -> Demand:
    """What an instruction demands in an activity of its own; the rest is in what the cards exchanged."""
    adds_eager = (
        op.action is Action.RECEIVE
        and op.message is not None
        and op.message.kind == "send_recv_reduce"
        and op.message.part_bytes[0] <= cluster.spec.link.eager_bytes
    )
    return op.demand if op.action is Action.FLOW or adds_eager else Demand(0, 0, ())


def _add_exchanged(
    account: _Account, exchanged: Exchanged, owner: dict[int, tuple[int, str]], source: dict[int, int]
) -> None:
    interval = (exchanged.start_ps, exchanged.end_ps)
    sends_only = exchanged.message.kind in ("send_recv", "send_recv_reduce")
    for rank in exchanged.ranks[:1] if sends_only else exchanged.ranks:
        account.alone_ps[rank, LINK] += exchanged.demand.alone_ps
    for index, amount in exchanged.demand.amounts:
        if index in owner:
            account.amounts[owner[index]] += amount
            account.intervals[owner[index]].append(interval)
        else:
            account.amounts[source[index], LINK] += amount
