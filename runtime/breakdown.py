"""Breakdown: the critical time of a phase by part of the model and by instruction, added up from columns of spans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..emulator.calendar.solver import Ints
from ..emulator.card import Op
from ..emulator.compiled.lane_works import lane_works
from ..emulator.site import Site
from ..emulator.span import BOUNDS
from ..emulator.span_columns import CardColumns
from ..emulator.spec import CardSpec
from ..isa.dtype import DType
from ..isa.program import Block
from ..isa.work import Unit, Work
from .critical import Critical, Held
from .limiting import limits
from .model_parts import WAITING, parts_of
from .report_base import Bounds
from .report_breakdown import MOST_INSTRUCTIONS, Breakdown, InstructionReport, OverlapReport, PartReport
from .roofline import ceiling
from .shape_text import ranged, shape_text

PS_PER_S = 10**12


class Kind(NamedTuple):
    """What makes instructions one row: all but the numbers of their shapes."""

    part: str
    mnemonic: str
    pattern: str
    unit: Unit
    dtype: DType | None


class Known(NamedTuple):
    """An instruction under its Work: the number of its kind, and what one execution asks."""

    work: Work  # kept alive, since it is found by its identity
    kind: int
    ops: int
    num_bytes: int


@dataclass
class _Sum:
    """Instructions of a kind added up, those that held time, over all cards; rates need no exact operations."""

    bounds: Ints = field(default_factory=lambda: np.zeros(len(BOUNDS), np.int64))
    executions: int = 0
    lasted_ps: int = 0
    ops: float = 0.0
    num_bytes: float = 0.0
    count: int = 0
    least: tuple[int, ...] = ()
    most: tuple[int, ...] = ()

    @property
    def time_ps(self) -> int:
        return int(self.bounds.sum())

    def spread(self, numbers: tuple[int, ...]) -> None:
        """Widen the ranges of the shape's numbers."""
        self.least = tuple(map(min, self.least or numbers, numbers))
        self.most = tuple(map(max, self.most or numbers, numbers))


class PhaseTime:
    """Where the time of a phase went; stretches of it are added one after the other."""

    def __init__(self, card: CardSpec) -> None:
        self._card = card
        self._numbers: dict[Kind, int] = {}
        self._sums: list[_Sum] = []
        self._elapsed_ps = 0
        self._parts: dict[int, tuple[Block, tuple[str, ...]]] = {}
        self._known: dict[tuple[int, int, int], Known] = {}

    def add(self, found: Critical) -> None:
        """Add a stretch of time."""
        self._elapsed_ps += found.elapsed_ps
        places: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
        asked = [(held, np.unique(held.card.sites[held.rows]).tolist()) for held in found.held]
        works = lane_works((held.card.ops, sites) for held, sites in asked)
        for held, sites in asked:
            own = [works.get((id(held.card.ops), site)) for site in sites]
            self._add_card(held, sites, own, places)
        executed = {id(card.timeline): np.bincount(card.sites).tolist() for card in found.cards if len(card)}
        runs = _runs_of_ranks(found.cards)
        for kind, sites in places.items():
            once = Counter[int]()
            for timeline, site in sites:
                once[timeline] += executed[timeline][site]
            self._sums[kind].count += max(sum(once[timeline] * n for timeline, n in own) for own in runs)

    def _add_card(
        self, held: Held, sites: list[int], works: list[Work | None], places: dict[int, set[tuple[int, int]]]
    ) -> None:
        """Add a card's part; `works` are those of its sites that are known without their operations."""
        card, rows = held.card, held.rows
        where = np.searchsorted(sites, card.sites[rows])
        asked, timeline = card.timeline.sites, id(card.timeline)
        known = [
            self._instruction_of(asked[site], work, None) if work else self._of_op(asked[site], card.ops[site])
            for site, work in zip(sites, works, strict=True)
        ]
        for site, one in zip(sites, known, strict=True):
            places[one.kind].add((timeline, site))
        of_site = np.array([one.kind for one in known])
        kinds, numbers = np.unique(of_site, return_inverse=True)
        numbers = numbers[where]
        bounds = np.zeros((len(kinds), len(BOUNDS)), np.int64)
        np.add.at(bounds, (numbers, card.bounds[rows]), held.own_ps)
        lasted = np.zeros(len(kinds), np.int64)
        np.add.at(lasted, numbers, card.end_ps[rows] - card.start_ps[rows])
        asks = np.array([(1, one.ops, one.num_bytes) for one in known], float)[where]
        sums = [np.bincount(numbers, asks[:, column], len(kinds)) for column in range(3)]
        columns = (kinds.tolist(), bounds, lasted.tolist(), *(column.tolist() for column in sums))
        for kind, held_ps, lasted_ps, times, ops, num_bytes in zip(*columns, strict=True):
            total = self._sums[kind]
            total.bounds += held_ps
            total.executions += int(times)
            total.lasted_ps += lasted_ps
            total.ops += ops
            total.num_bytes += num_bytes

    def _of_op(self, site: Site, op: Op) -> Known:
        return self._instruction_of(site, op.cost.work, op)

    def _instruction_of(self, site: Site, work: Work, op: Op | None) -> Known:
        key = (id(site.block), site.position, id(work))
        found = self._known.get(key)
        if found is None:
            mnemonic = site.instruction.mnemonic
            shape = shape_text(work, mnemonic)
            kind = Kind(self._part(site), mnemonic, shape.pattern, work.unit, work.dtype)
            number = self._numbers.setdefault(kind, len(self._numbers))
            if number == len(self._sums):
                self._sums.append(_Sum())
            self._sums[number].spread(shape.numbers)
            found = self._known[key] = Known(work, number, work.ops, _bytes_of(op, work))
        return found

    @property
    def _kinds(self) -> dict[Kind, _Sum]:
        return dict(zip(self._numbers, self._sums, strict=True))

    def _part(self, site: Site) -> str:
        block = site.block
        if id(block) not in self._parts:
            self._parts[id(block)] = (block, parts_of(block))
        return self._parts[id(block)][1][site.position]

    def report(self, overlap: tuple[OverlapReport, ...]) -> Breakdown:
        """The whole phase: all parts, the instructions that held most, and what limits it."""
        ordered = sorted(self._kinds.items(), key=lambda item: (-item[1].time_ps, item[0][:3]))
        parts = self._part_reports()
        shown = tuple(self._instruction(kind, total) for kind, total in ordered[:MOST_INSTRUCTIONS])
        left_out = max(0, len(ordered) - MOST_INSTRUCTIONS)
        return Breakdown(
            parts=parts,
            instructions=shown,
            left_out=left_out,
            overlap=overlap,
            limits=limits(parts, shown, overlap, self._elapsed_ps),
        )

    def _part_reports(self) -> tuple[PartReport, ...]:
        parts: defaultdict[str, Ints] = defaultdict(lambda: np.zeros(len(BOUNDS), np.int64))
        for kind, total in self._kinds.items():
            parts[kind.part] += total.bounds
        waited = self._elapsed_ps - sum(int(bounds.sum()) for bounds in parts.values())
        if waited:
            parts[WAITING][BOUNDS.index("dependency")] += waited
        bounds = {part: Bounds.of(held.tolist()) for part, held in parts.items()}
        found = [
            PartReport(part=part, time_ps=held.total_ps, share=self._share(held.total_ps), bounds=held)
            for part, held in bounds.items()
        ]
        return tuple(sorted(found, key=lambda part: (-part.time_ps, part.part)))

    def _share(self, time_ps: int) -> float:
        return time_ps / self._elapsed_ps if self._elapsed_ps else 0.0

    def _instruction(self, kind: Kind, total: _Sum) -> InstructionReport:
        computes, lasted_s = kind.unit is not Unit.LINK, total.lasted_ps / PS_PER_S
        top = ceiling(self._card, kind.unit, kind.dtype, total.ops, total.num_bytes)
        return InstructionReport(
            mnemonic=kind.mnemonic,
            shape=ranged(kind.pattern, total.least, total.most),
            part=kind.part,
            count=total.count,
            time_ps=total.time_ps,
            share=self._share(total.time_ps),
            mean_ps=total.lasted_ps // total.executions,
            bound=BOUNDS[int(total.bounds.argmax())],
            ops_per_byte=total.ops / total.num_bytes if computes and total.ops and total.num_bytes else None,
            ops_per_s=total.ops / lasted_s if computes and total.ops else None,
            attainable_ops_per_s=top.ops_per_s if top and total.ops else None,
            bytes_per_s=total.num_bytes / lasted_s if total.num_bytes else None,
            attainable_bytes_per_s=top.bytes_per_s if top and top.bytes_per_s else None,
        )


def _runs_of_ranks(cards: Sequence[CardColumns]) -> set[tuple[tuple[int, int], ...]]:
    """What any rank ran: programs, by the identity of their timelines, and how often."""
    by_rank: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for card in cards:
        by_rank[card.rank][id(card.timeline)] += 1
    return {tuple(sorted(own.items())) for own in by_rank.values()}


def _bytes_of(op: Op | None, work: Work) -> int:
    """Device memory traffic of an instruction, or the bytes of an exchange's message."""
    return sum(op.message.part_bytes) if op and op.message else work.read_bytes + work.write_bytes
