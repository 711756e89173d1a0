"""Kept lanes: the costs of ranks whose loads differ, asked for together and kept while they come again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...isa.loads import RankExtents, Table
from ...isa.program import Binding
from ..card import Card, Op
from ..costs import Cost, Costs
from ..lane_jobs import Alike, alike, in_lanes, scalars_of
from ..timeline import Timeline
from .flatten import Shares
from .lane_ops import Batch, LaneOps
from .ops import Ops

FEWEST_RANKS = 16  # that differ; fewer are costed one by one


class KeptLanes:
    """The batch of a program's latest submission, for the next one in which all that its lanes read is the same.

    Kept only where ranks turned out to be alike: what is uneven hardly comes again, and takes much room.
    """

    def __init__(self, timeline: Timeline, costs: Costs, card: Card, shares: Shares) -> None:
        self._made_of = timeline, costs, card, shares
        self._key: object = None
        self._retired: list[Batch] = []
        self._kept: tuple[Batch, list[int]] | None = None
        self._held: object = None  # whose identity is part of the key
        self._lanes: dict[frozenset[str], tuple[list[int], bool, list[str]]] = {}

    def ops(self, bindings: Sequence[Binding]) -> tuple[Batch, list[Ops], bool] | None:
        """What every rank's sites ask, made in lanes, and whether the batch is kept.

        None where too few ranks differ, or all bind tuples alone. Ranks of which all costs are equal get the same
        object.
        """
        timeline, costs, _, _ = self._made_of
        distinct = {id(binding.extents): binding for binding in bindings}
        groups = alike(list(distinct.values())) if len(distinct) >= FEWEST_RANKS else None
        if groups is None or any(own.tables.keys() != groups[0].tables.keys() for own in groups):
            return None
        numbers, plain, names = self._in_lanes(groups[0].tables)
        if not numbers:
            return None
        batch, classes = self._batch(groups, numbers, names, list(distinct.values()))
        rest = tuple(sorted({*range(len(timeline.questions))} - {*numbers}))
        places = dict(zip(distinct, classes, strict=True))
        bases: dict[tuple[int, ...], Ops] = {}
        known: dict[tuple[int, int], Ops] = {}
        found = []
        for binding in bindings:
            shared = binding.extents.common if plain and isinstance(binding.extents, RankExtents) else binding.extents
            own = costs.answers(binding, rest, shared)
            key = tuple(map(id, own))
            base = bases[key] if key in bases else bases.setdefault(key, _base(batch, rest, own))
            at = places[id(binding.extents)], id(base)
            found.append(known[at] if at in known else known.setdefault(at, LaneOps(batch, at[0], base)))
        return batch, found, self._kept is not None

    def release(self) -> None:
        """Nothing is in flight: leave the shares of batches that are no longer kept to others."""
        for batch in self._retired:
            batch.release()
        self._retired.clear()

    def _in_lanes(self, tables: Mapping[str, Table]) -> tuple[list[int], bool, list[str]]:
        """As `in_lanes`, and the extents beside tables that lanes may read."""
        questions, key = self._made_of[0].questions, frozenset(tables)
        if key not in self._lanes:
            numbers, plain = in_lanes(questions, tables)
            self._lanes[key] = numbers, plain, scalars_of([questions[number].site for number in numbers], tables)
        return self._lanes[key]

    def _batch(
        self, groups: Sequence[Alike], numbers: Sequence[int], names: Sequence[str], bindings: Sequence[Binding]
    ) -> tuple[Batch, list[int]]:
        """The lanes' costs, and for every rank the first whose are equal."""
        key = tuple(
            (id(own.tables), own.ranks.tobytes(), own.places.tobytes(), *[own.common.get(name) for name in names])
            for own in groups
        )
        if self._kept is not None and key == self._key:
            return self._kept
        batch = Batch(*self._made_of, bindings)
        batch.fill(groups, numbers)
        classes = batch.classes()
        if self._kept is not None:
            self._retired.append(self._kept[0])
        self._kept = (batch, classes) if 2 * len(set(classes)) <= len(classes) else None
        self._key, self._held = key, [own.tables for own in groups]
        return batch, classes


def _base(batch: Batch, rest: Sequence[int], costs: Sequence[Cost]) -> Ops:
    """What ranks alike ask: the costs of the rest, and for lanes an operation of the same kind."""
    questions = batch.timeline.questions
    made: list[Op | None] = [None] * len(questions)
    for number, op in zip(rest, batch.card.ops([questions[n] for n in rest], costs, ()), strict=True):
        made[number] = op
    for number in batch.lanes.tolist():
        made[number] = batch.kind_of(number)
    return Ops([op for op in made if op is not None], batch.timeline.asked, batch.shares)
