"""Communication of a run: bytes and time by collective, by axis of the layout, and by link."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ..emulator.exchange import Exchanged
from ..emulator.exchange_use import Alike, alike, asked
from ..emulator.machines import Machines
from ..emulator.usage import Usage
from .layout import Layout
from .report import AxisReport, CollectiveReport, LinkReport
from .terminal import ranges

TOLD_APART = 1024  # links; more would be a report that nobody reads


def axis_of(layout: Layout, ranks: tuple[int, ...]) -> str:
    """The axis of the layout along which these ranks communicate; axes of equal groups count as the innermost."""
    for axis, members in layout.groups(ranks[0]).items():
        if set(ranks) <= set(members):
            return axis
    raise AssertionError(f"ranks {ranks} lie along no axis of {layout}")


def link_reports(cluster: Machines, elapsed_ps: int) -> tuple[LinkReport, ...]:
    """Every directed link that bytes crossed in a job of `elapsed_ps`; unused links left out.

    Where they are more than `TOLD_APART`, links of equal use stand in one row.
    """
    used = [(number, use) for number, use in cluster.ledger.used_links() if use.num_bytes]
    alike: dict[object, list[tuple[int, Usage]]] = {}
    for number, use in used:
        alike.setdefault(number if len(used) <= TOLD_APART else use, []).append((number, use))
    return tuple(_link_report(cluster, some, elapsed_ps) for some in alike.values())


def _link_report(cluster: Machines, alike: Sequence[tuple[int, Usage]], elapsed_ps: int) -> LinkReport:
    number, use = alike[0]
    link = cluster.topology.links[number]
    return LinkReport(
        name=link.name,
        count=len(alike),
        links=ranges([number for number, _ in alike]) if len(alike) > 1 else None,
        source=link.source,
        target=link.target,
        bytes=use.num_bytes or 0,
        busy_ps=use.busy_ps,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        utilisation=use.demanded_ps / elapsed_ps if elapsed_ps else 0.0,
    )


@dataclass
class _Sum:
    """Exchanges added up: how many, their bytes on links, and the time of every rank in them."""

    count: int = 0
    num_bytes: int = 0
    time_ps: Counter[int] = field(default_factory=Counter)

    def add(self, some: Alike, num_bytes: int) -> None:
        self.count += some.number
        self.num_bytes += num_bytes
        time_ps = some.time_ps
        for rank in some.first.ranks:
            self.time_ps[rank] += time_ps


def collective_reports(
    cluster: Machines, layout: Layout, steps: Iterable[Sequence[Exchanged]]
) -> tuple[tuple[CollectiveReport, ...], tuple[AxisReport, ...]]:
    """A row for each kind of exchange along each axis, and one for each axis, from the exchanges of every step."""
    links = cluster.link_resources
    by_kind: defaultdict[tuple[str, str], _Sum] = defaultdict(_Sum)
    by_axis: defaultdict[str, _Sum] = defaultdict(_Sum)
    for some in chain.from_iterable(map(alike, steps)):
        axis = axis_of(layout, some.first.ranks)
        resources, amounts = asked(some.first.demand, some.number)
        num_bytes = int(amounts[(resources >= links.start) & (resources < links.stop)].sum())
        by_kind[axis, some.first.message.kind].add(some, num_bytes)
        by_axis[axis].add(some, num_bytes)
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
