"""Operations of many ranks whose loads all differ: rows of the calendar's table made in lanes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...isa.errors import ProgramError
from ...isa.instruction import elements
from ...isa.link import ALL_TO_ALL
from ...isa.loads import Table, Values
from ...isa.program import Binding
from ...isa.work import Work
from ..calendar.lane_shares import lane_shares
from ..calendar.solver import Ints
from ..card import Card, Op
from ..costs import Costs
from ..digest import digest_of
from ..energy import operations_nj
from ..lane_costs import Lanes, LaneSizes, lane_work, of_lane, rows_of
from ..lane_jobs import Alike, Job, jobs_of
from ..op_columns import Power
from ..site import Site
from ..timeline import Timeline
from ..units.lanes import LaneDemand, lane_demand
from .flatten import Shares
from .machine import ADDS, ALONE, BOUND, FIXED, NONE, OP_COLUMNS, SHARE, SHARES, UNITS, USES
from .ops import Ops


class Exchanges(NamedTuple):
    """Bytes that every rank of a batch sends to each member of its group, and gets from each: [ranks, members]."""

    sent: Ints
    received: Ints


class Batch:
    """What a program's questions cost on all ranks of a submission; `lanes` are the questions that differ by rank.

    `rows` [ranks, lanes, OP_COLUMNS], `amounts` [ranks, lanes, resources] and `power`, of which each column is [ranks,
    lanes], are theirs. Shares stand in the calendar's
    tables until `release`.
    """

    def __init__(
        self, timeline: Timeline, costs: Costs, card: Card, shares: Shares, bindings: Sequence[Binding]
    ) -> None:
        self.timeline, self.costs, self.card, self.shares, self.bindings = timeline, costs, card, shares, bindings
        self.lanes: Ints = np.zeros(0, np.int64)
        self._answered: dict[int, list[tuple[Mapping[str, Values], Lanes, Ints]]] = {}
        self._exchanges: dict[int, list[tuple[Mapping[str, Values], Lanes, Ints]]] = {}
        self._leaders: dict[Hashable, int] = {}
        self._taken: list[tuple[int, int, int]] = []
        self._plain: dict[int, bool] = {}
        self._ops: dict[tuple[int, str, int], Op] = {}
        self._asked: dict[tuple[int, int], Op] = {}
        self.known_works: dict[tuple[int, int], Work] = {}  # by place and question, of those that were looked at
        self._kinds: dict[tuple[int, str], Op] = {}
        self._first = min(card.resources.values())

    def fill(self, groups: Sequence[Alike], numbers: Sequence[int]) -> None:
        """Cost the questions of these numbers."""
        self.lanes = np.array(numbers, np.int64)
        self._place = np.full(len(self.timeline.questions), NONE, np.int64)
        self._place[self.lanes] = np.arange(len(numbers))
        shape = len(self.bindings), len(numbers)
        self.rows = np.zeros((*shape, OP_COLUMNS), np.int64)
        self.amounts = np.zeros((*shape, len(self.card.resources)), np.int64)
        self.power = Power(np.zeros(shape, np.int64), np.ones(shape))
        for job in jobs_of(self.timeline.questions, numbers, groups, self.costs):
            if not self._do(job):
                self._one_by_one(job)

    def _do(self, job: Job) -> bool:
        """Cost a job in lanes; False where some lane must be looked at alone."""
        if not all(self._is_plain(table) for lanes in job.lanes for table in lanes.tables.values()):
            return False
        site, sizes = self.timeline.questions[job.question].site, [len(places) for places in job.places]
        if isinstance(site.instruction, ALL_TO_ALL):
            self._enter_exchanges(job)
            return True
        try:
            work = lane_work(site.instruction, self._sizes(site, job.scalars, job.lanes))
        except ProgramError:
            return False
        cuts = np.cumsum(sizes)[:-1]
        demand = lane_demand(work, self.card.spec, sum(sizes))
        if demand is None:
            return False
        for lanes, places, asked in zip(job.lanes, job.places, job.asked, strict=True):
            for number in asked:
                self._answered.setdefault(number, []).append((job.scalars, lanes, places))
        units = self._resources(job, demand)
        amounts = np.stack(list(demand.amounts.values()), axis=1)
        share = self._share(demand.alone_ps, units, amounts)
        if share is None:
            return False
        rows = np.empty((sum(sizes), OP_COLUMNS), np.int64)
        rows[:, FIXED], rows[:, ALONE], rows[:, SHARE] = demand.fixed_ps, demand.alone_ps, share
        rows[:, BOUND], rows[:, ADDS] = demand.bounds, 1
        taken = operations_nj(work, demand.clock_fraction, self.card.spec)
        power = [np.split(np.broadcast_to(column, len(rows)), cuts) for column in (taken, demand.clock_fraction)]
        own = zip(job.places, job.asked, np.split(rows, cuts), np.split(amounts, cuts), *power, strict=True)
        for places, asked, some, asks, energies, fractions in own:
            down, across = np.ix_(places, self._place[asked])
            self.rows[down, across] = some[:, None]
            for column, one in zip(self.power, (energies, fractions), strict=True):
                column[down, across] = one[:, None]
            for number, unit in enumerate(units):
                self.amounts[down, across, unit - self._first] = asks[:, None, number]
        return True

    def _sizes(self, site: Site, scalars: Mapping[str, Values], lanes: Sequence[Lanes]) -> LaneSizes:
        return LaneSizes(site.block, self.timeline.program.group_sizes, scalars, lanes)

    def _is_plain(self, table: Table) -> bool:
        """Whether a table holds counts, which are 0 or more."""
        if id(table) not in self._plain:
            self._plain[id(table)] = bool(table.values.min(initial=0) >= 0)
        return self._plain[id(table)]

    def _resources(self, job: Job, demand: LaneDemand) -> list[int]:
        """The resources of a demand's amounts, in their order."""
        queue = self.timeline.questions[job.question].site.queue
        names = {"dma": self.card.engine_of.get(queue, "dma0")}
        return [self.card.resources[names.get(kind, kind)] for kind in demand.amounts]

    def _share(self, alone_ps: Ints, units: Sequence[int], amounts: Ints) -> Ints | None:
        """Enter the shares of lanes that flow; their rows, NONE for others, or None where one is not well formed."""
        flows = np.flatnonzero(alone_ps)
        resources = [self.shares.resources[unit] for unit in units]
        found = lane_shares(alone_ps[flows], resources, amounts[flows])
        if found is None or any(resource.nominal_per_s is None for resource in resources):
            return None
        memory, uses = self.shares.memory, found.coefficients > 0
        index = np.broadcast_to(np.array(units), uses.shape)
        first_use = memory.append(USES, np.stack((index[uses], found.coefficients[uses], found.loads[uses]), axis=1))
        alone = [number for number, resource in enumerate(resources) if resource.exclusive]
        owned = np.sort(index[:, alone], axis=1)[amounts[flows][:, alone] > 0] if alone else np.zeros(0, np.int64)
        first_unit = memory.append(UNITS, owned)
        counts, units_each = uses.sum(axis=1), (amounts[flows][:, alone] > 0).sum(axis=1)
        rows = np.stack(
            (found.bounds, first_use + np.cumsum(counts) - counts, counts,
             first_unit + np.cumsum(units_each) - units_each, units_each), axis=1,
        )  # fmt: skip
        first = memory.append(SHARES, rows)
        self._taken += [
            (USES, first_use, int(counts.sum())),
            (UNITS, first_unit, len(owned)),
            (SHARES, first, len(rows)),
        ]
        share = np.full(len(alone_ps), NONE, np.int64)
        share[flows] = np.arange(first, first + len(rows))
        return share

    def release(self) -> None:
        """Leave the shares' rows to others."""
        for table, first, rows in self._taken:
            self.shares.memory.release(table, first, rows)
        self._taken.clear()

    def _enter_exchanges(self, job: Job) -> None:
        """Note where the bytes of all-to-alls come from; the cards' own ends of them are alike."""
        row = Ops([self.kind_of(job.question)], np.zeros(1, np.int64), self.shares).rows[0]
        for lanes, places, asked in zip(job.lanes, job.places, job.asked, strict=True):
            self.rows[np.ix_(places, self._place[asked])] = row
            for number in asked:
                self._exchanges.setdefault(number, []).append((job.scalars, lanes, places))

    def works(self, number: int, places: Ints) -> Iterator[tuple[int, Work]]:
        """The Work of a question that was costed in lanes, for some ranks of the batch, each by its place."""
        site = self.timeline.questions[number].site
        for scalars, lanes, known in self._answered.get(number, ()):
            rank_at = np.full(len(self.bindings), NONE)
            rank_at[known] = lanes.ranks
            here = places[rank_at[places] != NONE]
            if len(here):
                work = lane_work(site.instruction, self._sizes(site, scalars, [Lanes(lanes.tables, rank_at[here])]))
                yield from ((place, of_lane(work, lane)) for lane, place in enumerate(here.tolist()))

    def leader(self, number: int) -> int:
        """The first question whose all-to-all moves the same as this one's: equal layers have equal loads."""
        lanes = [(id(scalars), id(lanes)) for scalars, lanes, _ in self._exchanges[number]]
        return self._leaders.setdefault((self.timeline.questions[number].form, *lanes), number)

    def has_exchange(self, number: int) -> bool:
        """Whether a question is an all-to-all of the lanes."""
        return number in self._exchanges

    def exchange(self, number: int, places: Ints) -> Exchanges:
        """What some ranks of the batch send and get in the all-to-all of a question; ProgramError as its Work."""
        site = self.timeline.questions[number].site
        instruction = site.instruction
        assert isinstance(instruction, ALL_TO_ALL), f"{instruction} is no all-to-all"
        size = self.timeline.program.group_sizes[instruction.group]
        found = Exchanges(*(np.zeros((len(places), size), np.int64) for _ in range(2)))
        for scalars, lanes, known in self._exchanges[number]:
            rank_at = np.full(len(self.bindings), NONE)
            rank_at[known] = lanes.ranks
            here = np.flatnonzero(rank_at[places] != NONE)
            sizes = self._sizes(site, scalars, [Lanes(lanes.tables, rank_at[places[here]])])
            ends = (instruction.src, instruction.send_counts), (instruction.dst, instruction.recv_counts)
            for filled, (ref, extent) in zip(found, ends, strict=True):
                counts, shape = rows_of(sizes.extent(extent), len(here)), sizes.shape(ref)
                wrong = (counts.min(axis=1, initial=0) < 0) | (counts.sum(axis=1) > shape[0])
                for place in places[here[wrong]].tolist():
                    self.op(place, number)  # which says what is wrong
                counted: Any = counts * elements(shape[1:])
                filled[here] = sizes.type_of(ref).dtype.bytes_of(counted)
        return found

    @cached_property
    def meets_alike(self) -> bool:
        """Whether no exchange but all-to-alls differs by rank."""
        return all(self.has_exchange(lane) or self.kind_of(lane).message is None for lane in self.lanes.tolist())

    def _one_by_one(self, job: Job) -> None:
        """Cost every lane of a job by itself."""
        for places, asked in zip(job.places, job.asked, strict=True):
            for number in asked:
                ops = [self.op(place, number) for place in places.tolist()]
                at = int(self._place[number])
                alone = Ops(ops, np.arange(len(ops)), self.shares)
                self.rows[places, at] = alone.rows
                for column, own in zip(self.power, alone.power(), strict=True):
                    column[places, at] = own
                for place, op in zip(places.tolist(), ops, strict=True):
                    for unit, amount in op.demand.amounts if op.runs_alone else ():
                        self.amounts[place, at, unit - self._first] = amount

    def is_lane(self, number: int) -> bool:
        """Whether a question is one of the lanes."""
        return bool(self._place[number] != NONE)

    def kind_of(self, number: int) -> Op:
        """An operation of a question of the same form in the same queue, on the first rank."""
        form, site = self.timeline.questions[number]
        if (form, site.queue) not in self._kinds:
            self._kinds[form, site.queue] = self.op(0, number)
        return self._kinds[form, site.queue]

    def op(self, place: int, number: int) -> Op:
        """One operation as an object, the same for equal costs."""
        found = self._asked.get((place, number))
        if found is not None:
            return found
        question = self.timeline.questions[number]
        cost = self.costs.cost(number, self.bindings[place])
        key = (id(cost), question.site.queue, question.form)
        if key not in self._ops:
            self._ops[key] = self.card.ops([question], [cost], ())[0]
        made = self._asked[place, number] = self._ops[key]
        return made

    def classes(self) -> list[int]:
        """For every rank of the batch the first in whose lanes all is equal, all-to-alls included."""
        rows = self.rows.copy()
        rows[:, :, SHARE] = 0  # which follows from the amounts
        columns = zip(rows, self.amounts, self.power.operations_nj, strict=True)
        keys = [tuple([column.tobytes() for column in own]) for own in columns]
        numbers: dict[object, int] = {}
        found = [numbers.setdefault(key, place) for place, key in enumerate(keys)]
        if len(numbers) == len(found):
            return found
        met = [entry for own in self._exchanges.values() for entry in own]
        tables = {(id(t), id(lanes)): (t, lanes, places) for _, lanes, places in met for t in lanes.tables.values()}
        for table, lanes, places in tables.values():
            values = table.values[table.rows[lanes.ranks]]
            for place, row in zip(places.tolist(), values, strict=True):
                found[place] = numbers.setdefault((found[place], id(table), row.tobytes()), place)
        return found


class LaneOps(Ops):
    """What every site asks on one rank of a batch: in the batch's lanes what that says, elsewhere what `base` asks.

    What an all-to-all among the lanes brings, `batch.exchange` says for many ranks at once. Of lanes `base`, and so
    `made`, has but the kind: operations of another rank.
    """

    def __init__(self, batch: Batch, place: int, base: Ops) -> None:
        super().__init__(base.made, base.asked, batch.shares)
        self.batch, self.place, self.base = batch, place, base

    def of(self, number: int) -> Op:
        """As `Ops.of`, made when it is asked for."""
        return self.batch.op(self.place, number) if self.batch.is_lane(number) else self.made[number]

    def lane(self, site: int) -> int:
        """As `Ops.lane`."""
        number = int(self.asked[site])
        return self.batch.leader(number) if self.batch.has_exchange(number) else NONE

    @property
    def likeness(self) -> object:
        """As `Ops.likeness`."""
        return id(self.base), *self._told

    @cached_property
    def course(self) -> object:
        """As `Ops.course`."""
        return self.base.course, *self._told

    @cached_property
    def _told(self) -> tuple[bytes, bytes, bytes]:
        """What tells lanes apart: not the places of their shares in a table, for amounts say what they are."""
        rows = self.batch.rows[self.place].copy()
        rows[:, SHARE] = NONE
        batch, place = self.batch, self.place
        return digest_of(rows), digest_of(batch.amounts[place]), digest_of(batch.power.operations_nj[place])

    @property
    def exchanges(self) -> object:
        """As `Ops.exchanges`: ranks of a batch differ in the bytes of all-to-alls alone, or else in others' too."""
        return (id(self.batch), id(self.base)) if self.batch.meets_alike else id(self)

    @property
    def actions(self) -> Ints:
        """What is done at each site."""
        return self.base.actions

    @property
    def by_question(self) -> Ints:
        """Operations as rows of the calendar's table, by question."""
        rows = self.base.by_question.copy()
        rows[self.batch.lanes] = self.batch.rows[self.place]
        return rows

    @cached_property
    def power_by_question(self) -> Power:
        """As `Ops.power_by_question`."""
        base, own, lanes = self.base.power_by_question, self.batch.power, self.batch.lanes
        found = Power(base.operations_nj.copy(), base.clock_fraction.copy())
        found.operations_nj[lanes] = own.operations_nj[self.place]
        found.clock_fraction[lanes] = own.clock_fraction[self.place]
        return found

    def use_by_question(self, number: Mapping[str, int], first: int) -> tuple[Ints, Ints]:
        """As `Ops.use_by_question`."""
        busy, asks = (column.copy() for column in self.base.use_by_question(number, first))
        lanes, amounts = self.batch.lanes, self.batch.amounts[self.place]
        own = [number[self.base.made[lane].busy[0]] for lane in lanes.tolist()]
        asks[lanes] = busy[lanes] = 0
        asks[lanes, : amounts.shape[1]] = amounts
        busy[lanes, : amounts.shape[1]] = amounts > 0
        busy[lanes, own] = True
        return busy, asks
