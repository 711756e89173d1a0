"""Breakdown: the critical time of a phase by part of the model and by instruction, added up from columns of spans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..emulator.calendar.solver import Ints
from ..emulator.card import Op
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


@dataclass
class _Sum:
    """Instructions of a kind added up: those that held time, over all cards."""

    bounds: Ints = field(default_factory=lambda: np.zeros(len(BOUNDS), np.int64))
    executions: int = 0
    lasted_ps: int = 0
    ops: int = 0
    num_bytes: int = 0
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
        self._kinds: defaultdict[Kind, _Sum] = defaultdict(_Sum)
        self._elapsed_ps = 0
        self._parts: dict[int, tuple[Block, tuple[str, ...]]] = {}
        self._known: dict[tuple[int, int, int], tuple[Op, Kind, tuple[int, ...]]] = {}

    def add(self, found: Critical) -> None:
        """Add a stretch of time."""
        self._elapsed_ps += found.elapsed_ps
        places: defaultdict[Kind, set[tuple[int, int]]] = defaultdict(set)
        for held in found.held:
            self._add_card(held, places)
        executed = {id(card.timeline): np.bincount(card.sites).tolist() for card in found.cards if len(card)}
        runs = _runs_of_ranks(found.cards)
        for kind, sites in places.items():
            once = Counter[int]()
            for timeline, site in sites:
                once[timeline] += executed[timeline][site]
            self._kinds[kind].count += max(sum(once[timeline] * n for timeline, n in own) for own in runs)

    def _add_card(self, held: Held, places: dict[Kind, set[tuple[int, int]]]) -> None:
        card, rows = held.card, held.rows
        sites, where, executions = np.unique(card.sites[rows], return_inverse=True, return_counts=True)
        bounds = np.zeros((len(sites), len(BOUNDS)), np.int64)
        np.add.at(bounds, (where, card.bounds[rows]), held.own_ps)
        lasted = np.zeros(len(sites), np.int64)
        np.add.at(lasted, where, card.end_ps[rows] - card.start_ps[rows])
        columns = (sites.tolist(), executions.tolist(), lasted.tolist())
        for index, (site, times, lasted_ps) in enumerate(zip(*columns, strict=True)):
            op = card.ops[site]
            kind, numbers = self._kind(card.timeline.sites[site], op)
            total, work = self._kinds[kind], op.cost.work
            total.bounds += bounds[index]
            total.executions += times
            total.lasted_ps += lasted_ps
            total.ops += times * work.ops
            total.num_bytes += times * _bytes_of(op, work)
            total.spread(numbers)
            places[kind].add((id(card.timeline), site))

    def _kind(self, site: Site, op: Op) -> tuple[Kind, tuple[int, ...]]:
        key = (id(site.block), site.position, id(op.cost))
        found = self._known.get(key)
        if found is None:
            work, shape = op.cost.work, shape_text(op.cost.work)
            kind = Kind(self._part(site), site.instruction.mnemonic, shape.pattern, work.unit, work.dtype)
            found = self._known[key] = (op, kind, shape.numbers)
        return found[1:]

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
        found = [
            PartReport(part=part, time_ps=(ps := int(held.sum())), share=self._share(ps), bounds=_bounds(held))
            for part, held in parts.items()
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


def _bounds(held: Ints) -> Bounds:
    return Bounds(**dict(zip(BOUNDS, held.tolist(), strict=True)))


def _bytes_of(op: Op, work: Work) -> int:
    """Device memory traffic of an instruction, or the bytes of an exchange's message."""
    return sum(op.message.part_bytes) if op.message else work.read_bytes + work.write_bytes
