"""Communication of a run: bytes and time by collective, by axis of the layout, and by link."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..emulator.cluster import Cluster
from ..emulator.exchange import Exchanged
from .layout import Layout
from .report import CollectiveReport, LinkReport


def axis_of(layout: Layout, ranks: tuple[int, ...]) -> str:
    """The axis of the layout along which these ranks communicate."""
    for axis, members in layout.groups(ranks[0]).items():
        if set(ranks) <= set(members):
            return axis
    raise AssertionError(f"ranks {ranks} lie along no axis of {layout}")


def link_reports(cluster: Cluster) -> tuple[LinkReport, ...]:
    """Bytes that crossed every directed link, and the union of the times it was in use; unused links left out."""
    return tuple(
        LinkReport(name=link.name, source=link.source, target=link.target, bytes=use.num_bytes, busy_ps=use.busy_ps)
        for link, use in zip(cluster.topology.links, cluster.ledger.links(), strict=True)
        if use.num_bytes
    )


def collective_reports(
    cluster: Cluster, layout: Layout, exchanges: Sequence[Exchanged]
) -> tuple[CollectiveReport, ...]:
    """One row for each kind of exchange along each axis."""
    links = set(cluster.link_resources)
    count: Counter[tuple[str, str]] = Counter()
    num_bytes: Counter[tuple[str, str]] = Counter()
    time_ps: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for exchange in exchanges:
        key = (axis_of(layout, exchange.ranks), exchange.message.kind)
        count[key] += 1
        num_bytes[key] += sum(amount for resource, amount in exchange.demand.amounts if resource in links)
        for rank in exchange.ranks:
            time_ps[key][rank] += exchange.end_ps - exchange.start_ps
    return tuple(
        CollectiveReport(
            axis=axis,
            kind=kind,
            count=count[axis, kind],
            bytes=num_bytes[axis, kind],
            time_ps=max(time_ps[axis, kind].values()),
        )
        for axis, kind in sorted(count)
    )
