"""Costs: what every instruction of a program asks of a card, evaluated once for equal instructions on equal values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import NamedTuple

from ..isa.errors import SiltwinError
from ..isa.program import Binding, BoundShapes
from ..isa.work import Work
from .energy import operations_nj
from .site import Site
from .spec import CardSpec
from .timeline import Timeline
from .units.demand import demand
from .units.rates import UnitDemand

KEPT_BINDINGS = 256  # costs kept a form and way of reading: decoding changes lengths, and never comes back to them
KEPT_EXTENTS = 256  # what ranks that share their extents ask, kept by that object
KEPT_VALUES = 1 << 12


class Cost(NamedTuple):
    """An instruction's Work for a binding, what that asks of the card, and nanojoules that its operations take."""

    work: Work
    demand: UnitDemand
    operations_nj: int


class Reads(NamedTuple):
    """What of a binding a Work was computed from: names of extents, and of groups whose index in it was asked."""

    extents: tuple[str, ...]
    groups: tuple[str, ...]


class TracedShapes(BoundShapes):
    """Bound shapes that remember what was asked of the binding, by the block's names."""

    def __init__(self, site: Site, group_sizes: Mapping[str, int], binding: Binding) -> None:
        super().__init__(site.block, group_sizes, binding, site.extents)
        self._asked: dict[str, None] = {}
        self._groups: dict[str, None] = {}

    def extent(self, name: str) -> tuple[int, ...]:
        """The values of an extent."""
        self._asked[name] = None
        return super().extent(name)

    def group_index(self, group: str) -> int:
        """This card's place in a group."""
        self._groups[group] = None
        return super().group_index(group)

    @property
    def reads(self) -> Reads:
        """What has been asked so far."""
        return Reads(tuple(self._asked), tuple(self._groups))


class Answers(NamedTuple):
    """What questions cost under what ranks share, which is kept alive, by a rank's places in `groups`.

    `placed` are those of the questions, by their order, whose Work asked for such a place.
    """

    shared: object
    groups: tuple[str, ...]
    placed: tuple[int, ...]
    costs: dict[tuple[int | None, ...], list[Cost]]


class Costs:
    """The costs of one program on one kind of card.

    Instructions that are alike (`questions`) and find equal values in all that their Work reads get the very same Cost
    object, in whatever block, layer or rank they stand; so do all whose Work comes out equal. A decode step evaluates
    its attention and little else. Ranks that share their extents by identity are asked once, but for what reads a place
    in a group. A binding's extents must not be changed afterwards.
    """

    def __init__(self, timeline: Timeline, card: CardSpec) -> None:
        self._timeline, self._card = timeline, card
        # Which names a Work reads may itself depend on values, so each set of names has a table of its own: an
        # evaluation that agrees in all it would read reads the same.
        forms = 1 + max((question.form for question in timeline.questions), default=-1)
        self._memo: list[dict[Reads, dict[tuple[object, ...], Cost]]] = [{} for _ in range(forms)]
        self._by_work: dict[Work, Cost] = {}
        self._known: dict[tuple[int, tuple[int, ...] | None], Answers] = {}
        self._values: dict[tuple[int, ...], int] = {}
        self._next = count()
        self._all = range(len(timeline.questions))

    def of(self, binding: Binding) -> list[Cost]:
        """The cost of every site for a binding. ProgramError or UnsupportedError name the instruction."""
        costs = self.answers(binding)
        return [costs[number] for number in self._timeline.asked.tolist()]

    def answers(
        self, binding: Binding, asked: tuple[int, ...] | None = None, shared: object | None = None
    ) -> list[Cost]:
        """The cost of every question, or those `asked`; the same list for ranks between which no Work can tell.

        `shared` is what all ranks have in common that bind the same for these questions: its extents, unless told.
        """
        shared = binding.extents if shared is None else shared
        key, indices = (id(shared), asked), binding.group_index
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= KEPT_EXTENTS:
                self._known.clear()
            costs: list[Cost] = []
            placed = self._answer(binding, self._all if asked is None else asked, costs.append)
        else:
            found = known.costs.get(tuple([indices.get(name) for name in known.groups]))
            if found is not None:
                return found
            costs = next(iter(known.costs.values())).copy()
            changed = iter(known.placed)
            again = [number if asked is None else asked[number] for number in known.placed]
            placed = self._answer(binding, again, lambda cost: costs.__setitem__(next(changed), cost))
        groups = tuple(sorted({name for names in placed.values() for name in names}))
        if known is None:
            order = range(len(costs)) if asked is None else asked
            at = tuple(place for place, number in enumerate(order) if number in placed)
            known = self._known[key] = Answers(shared, groups, at, {})
        elif not set(groups) <= set(known.groups):
            known = self._known[key] = Answers(shared, groups, known.placed, {})
        known.costs[tuple([indices.get(name) for name in known.groups])] = costs
        return costs

    def cost(self, number: int, binding: Binding) -> Cost:
        """The cost of one question."""
        found: list[Cost] = []
        self._answer(binding, (number,), found.append)
        return found[0]

    def reads(self, number: int, binding: Binding) -> tuple[str, ...]:
        """The extents that a question's Work reads under a binding, by the block's names; errors as `of`."""
        self.cost(number, binding)
        site, program = self._timeline.questions[number].site, self._timeline.program
        shapes = TracedShapes(site, program.group_sizes, binding)
        site.instruction.work(shapes)
        return shapes.reads.extents

    def _answer(
        self, binding: Binding, asked: Iterable[int], take: Callable[[Cost], None]
    ) -> dict[int, tuple[str, ...]]:
        """Give the cost of every question asked to `take`; returns the groups in which each asked for a place."""
        numbers, indices = _Numbers(binding.extents, self._values, self._next), binding.group_index
        questions, placed = self._timeline.questions, dict[int, tuple[str, ...]]()
        for number in asked:
            form, site = questions[number]
            bound = site.extents
            for reads, table in self._memo[form].items():
                names = [bound.get(name, name) for name in reads.extents] if bound else reads.extents
                found = table.get((*[numbers[name] for name in names], *[indices.get(name) for name in reads.groups]))
                if found is not None:
                    break
            else:
                reads, found = self._evaluate(form, site, binding, numbers)
            if reads.groups:
                placed[number] = reads.groups
            take(found)
        return placed

    def _evaluate(self, form: int, site: Site, binding: Binding, numbers: _Numbers) -> tuple[Reads, Cost]:
        program = self._timeline.program
        shapes = TracedShapes(site, program.group_sizes, binding)
        try:
            work = site.instruction.work(shapes)
            cost = self._by_work.get(work)
            if cost is None:
                if len(self._by_work) >= KEPT_VALUES:
                    self._by_work.clear()
                cost = self._by_work[work] = _cost(work, self._card)
        except SiltwinError as error:
            raise type(error)(f"program {program.name}, {site}: {error}") from error
        reads, bound = shapes.reads, site.extents
        table = self._memo[form].setdefault(reads, {})
        if len(table) >= KEPT_BINDINGS:
            table.clear()
        values = [numbers[bound.get(name, name)] for name in reads.extents]
        table[*values, *[binding.group_index[name] for name in reads.groups]] = cost
        return reads, cost


def _cost(work: Work, card: CardSpec) -> Cost:
    asked = demand(work, card)
    return Cost(work, asked, operations_nj(work, asked.clock_fraction, card))


class _Numbers(dict[str, int]):
    """The values of extents as numbers, equal ones of equal values, by the program's names; -1 is not bound."""

    def __init__(self, extents: Mapping[str, tuple[int, ...]], known: dict[tuple[int, ...], int], fresh: count[int]):
        super().__init__()
        self._extents, self._known, self._fresh = extents, known, fresh
        self._seen: dict[int, tuple[int, tuple[int, ...]]] = {}  # by identity: long ones are compared once

    def __missing__(self, name: str) -> int:
        values = self._extents.get(name)
        if values is None:
            return -1
        number, _ = self._seen.get(id(values), (-1, ()))
        if number < 0:
            if len(self._known) >= KEPT_VALUES:
                self._known.clear()
            number = self._known.get(values, -1)
            if number < 0:
                number = self._known[values] = next(self._fresh)
            self._seen[id(values)] = number, values
        self[name] = number
        return number
