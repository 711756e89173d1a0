"""Costs: what every instruction of a program asks of a card, evaluated once a site and kept while its extents last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..isa.errors import SiltwinError
from ..isa.program import Binding, BoundShapes
from ..isa.work import Work
from .spec import CardSpec
from .timeline import Site, Timeline
from .units.demand import demand
from .units.rates import UnitDemand

KEPT_BINDINGS = 64  # costs kept a site: decoding changes lengths at every step, and never comes back to them


class Cost(NamedTuple):
    """An instruction's Work for a binding, and what that asks of the card."""

    work: Work
    demand: UnitDemand


class Reads(NamedTuple):
    """What of a binding a Work was computed from: names of extents, and of groups whose index in it was asked."""

    extents: tuple[str, ...]
    groups: tuple[str, ...]


class TracedShapes(BoundShapes):
    """Bound shapes that remember what was asked of the binding."""

    def __init__(self, site: Site, group_sizes: Mapping[str, int], binding: Binding) -> None:
        super().__init__(site.block, group_sizes, binding, site.extents)
        self._extents: dict[str, None] = {}
        self._groups: dict[str, None] = {}

    def extent(self, name: str) -> tuple[int, ...]:
        """The values of an extent, remembered by the program's name for it."""
        self._extents[self.extents.get(name, name)] = None
        return super().extent(name)

    def group_index(self, group: str) -> int:
        """This card's place in a group."""
        self._groups[group] = None
        return super().group_index(group)

    @property
    def reads(self) -> Reads:
        """What has been asked so far."""
        return Reads(tuple(self._extents), tuple(self._groups))


class Costs:
    """The costs of one program on one kind of card.

    A binding that agrees with an earlier one in all that an instruction's Work read gets the very same Cost object;
    equal layers share a site. So a decode step evaluates its attention and little else.
    """

    def __init__(self, timeline: Timeline, card: CardSpec) -> None:
        self._timeline, self._card = timeline, card
        # Which names a Work reads may itself depend on values, so each set of names has a table of its own: an
        # evaluation that agrees in all it would read reads the same.
        self._memo: list[dict[Reads, dict[tuple[object, ...], Cost]]] = [{} for _ in timeline.sites]

    def of(self, binding: Binding) -> list[Cost]:
        """The cost of every site for a binding. ProgramError or UnsupportedError name the instruction."""
        extents, indices = binding.extents, binding.group_index
        costs = []
        for n, tables in enumerate(self._memo):
            for reads, table in tables.items():
                key = (*[extents.get(name) for name in reads.extents], *[indices.get(name) for name in reads.groups])
                found = table.get(key)
                if found is not None:
                    break
            else:
                found = self._evaluate(n, binding)
            costs.append(found)
        return costs

    def _evaluate(self, index: int, binding: Binding) -> Cost:
        site, program = self._timeline.sites[index], self._timeline.program
        shapes = TracedShapes(site, program.group_sizes, binding)
        try:
            work = site.instruction.work(shapes)
            cost = Cost(work, demand(work, self._card))
        except SiltwinError as error:
            raise type(error)(f"program {program.name}, {site}: {error}") from error
        reads = shapes.reads
        table = self._memo[index].setdefault(reads, {})
        if len(table) >= KEPT_BINDINGS:
            table.clear()
        key = (*[binding.extents[name] for name in reads.extents], *[binding.group_index[n] for n in reads.groups])
        table[key] = cost
        return cost
