"""Communication of a run: bytes and time by collective, by axis of the layout, and by link."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..emulator.exchange import Exchanged
from ..emulator.machines import Machines
from .layout import Layout
from .report import AxisReport, CollectiveReport, LinkReport


def axis_of(layout: Layout, ranks: tuple[int, ...]) -> str:
    """The axis of the layout along which these ranks communicate; axes of equal groups count as the innermost."""
    for axis, members in layout.groups(ranks[0]).items():
        if set(ranks) <= set(members):
            return axis
    raise AssertionError(f"ranks {ranks} lie along no axis of {layout}")


def link_reports(cluster: Machines, elapsed_ps: int) -> tuple[LinkReport, ...]:
    """Every directed link that bytes crossed in a job of `elapsed_ps`; unused links left out."""
    return tuple(
        LinkReport(
            name=link.name,
            source=link.source,
            target=link.target,
            bytes=use.num_bytes,
            busy_ps=use.busy_ps,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            utilisation=use.demanded_ps / elapsed_ps if elapsed_ps else 0.0,
        )
        for link, use in zip(cluster.topology.links, cluster.ledger.links(), strict=True)
        if use.num_bytes
    )


@dataclass
class _Sum:
    """Exchanges added up: how many, their bytes on links, and the time of every rank in them."""

    count: int = 0
    num_bytes: int = 0
    time_ps: Counter[int] = field(default_factory=Counter)

    def add(self, exchange: Exchanged, num_bytes: int) -> None:
        self.count += 1
        self.num_bytes += num_bytes
        for rank in exchange.ranks:
            self.time_ps[rank] += exchange.end_ps - exchange.start_ps


def collective_reports(
    cluster: Machines, layout: Layout, exchanges: Sequence[Exchanged]
) -> tuple[tuple[CollectiveReport, ...], tuple[AxisReport, ...]]:
    """A row for each kind of exchange along each axis, and one for each axis."""
    links = set(cluster.link_resources)
    by_kind: defaultdict[tuple[str, str], _Sum] = defaultdict(_Sum)
    by_axis: defaultdict[str, _Sum] = defaultdict(_Sum)
    for exchange in exchanges:
        axis = axis_of(layout, exchange.ranks)
        num_bytes = sum(amount for resource, amount in exchange.demand.amounts if resource in links)
        by_kind[axis, exchange.message.kind].add(exchange, num_bytes)
        by_axis[axis].add(exchange, num_bytes)
    kinds = tuple(
        CollectiveReport(
            axis=axis, kind=kind, count=sum_.count, bytes=sum_.num_bytes, time_ps=max(sum_.time_ps.values())
        )
        for (axis, kind), sum_ in sorted(by_kind.items())
    )
    axes = tuple(
        AxisReport(
            axis=axis,
            ranks=getattr(layout, axis),
            count=sum_.count,
            bytes=sum_.num_bytes,
            time_ps=max(sum_.time_ps.values()),
        )
        for axis, sum_ in sorted(by_axis.items())
    )
    return kinds, axes
