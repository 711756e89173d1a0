"""Lane jobs: which questions of which ranks can be costed in one go, because only the values of their tables differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..isa.loads import RankExtents, Table, Values
from ..isa.operands import NameKind
from ..isa.program import Binding
from .calendar.solver import Ints
from .costs import Costs
from .lane_costs import IN_LANES, Lanes
from .questions import Question
from .site import Site

MOST_VALUES = 1 << 22  # table entries that one job reads


class Alike(NamedTuple):
    """Ranks that share their common extents and their tables: places in the batch, ranks, and the first's binding."""

    common: Mapping[str, Values]
    tables: Mapping[str, Table]
    places: Ints
    ranks: Ints
    binding: Binding


class Job(NamedTuple):
    """Lanes of one form under equal scalars; `asked[i]` are the questions that lanes[i] answer for `places[i]`."""

    question: int
    scalars: Mapping[str, Values]
    lanes: list[Lanes]
    places: list[Ints]
    asked: list[list[int]]


def alike(bindings: Sequence[Binding]) -> list[Alike] | None:
    """The ranks of a submission by what they share; None where one of them binds no tables."""
    members: dict[tuple[int, int], list[int]] = {}
    for place, binding in enumerate(bindings):
        extents = binding.extents
        if not isinstance(extents, RankExtents):
            return None
        members.setdefault((id(extents.common), id(extents.tables)), []).append(place)
    found = []
    for places in members.values():
        own = [bindings[place].extents for place in places]
        first = own[0]
        assert isinstance(first, RankExtents)
        ranks = np.array([extents.rank for extents in own if isinstance(extents, RankExtents)], np.int64)
        found.append(Alike(first.common, first.tables, np.array(places, np.int64), ranks, bindings[places[0]]))
    return found


def in_lanes(questions: Sequence[Question], tables: Mapping[str, Table]) -> tuple[list[int], bool]:
    """The questions that can be costed in lanes, and whether all others read no table."""
    names: dict[int, tuple[list[str], list[str]]] = {}
    numbers, rest_plain = [], True
    for number, (form, site) in enumerate(questions):
        if form not in names:
            names[form] = _names(site)
        bound = site.extents
        named, sizes = ([bound.get(name, name) for name in own] for own in names[form])
        if any(name in tables for name in sizes):
            rest_plain = False
        elif any(name in tables for name in named):
            if isinstance(site.instruction, IN_LANES):
                numbers.append(number)
            else:
                rest_plain = False
    return numbers, rest_plain


def scalars_of(sites: Sequence[Site], tables: Mapping[str, Table]) -> list[str]:
    """The program's extents beside tables that instructions of some sites may read."""
    names: dict[str, None] = {}
    for site in sites:
        named, sizes = _names(site)
        names |= dict.fromkeys(site.extents.get(name, name) for name in (*named, *sizes))
    return [name for name in names if name not in tables]


def _names(site: Site) -> tuple[list[str], list[str]]:
    """The vector extents that an instruction reads, and the scalar ones that it may need, by the block's names."""
    instruction, types = site.instruction, site.block.types
    by_kind = [(kind.names, getattr(instruction, name)) for name, kind in instruction.operands.items()]
    named = [name for kind, name in by_kind if kind is NameKind.EXTENT]
    sizes = [dim for ref, _ in instruction.refs() for dim in types[ref.buffer].shape if isinstance(dim, str)]
    sizes += [value for kind, value in by_kind if kind is NameKind.NUMBER and isinstance(value, str)]
    return list(dict.fromkeys(named)), list(dict.fromkeys(sizes))


def jobs_of(questions: Sequence[Question], numbers: Sequence[int], groups: Sequence[Alike], costs: Costs) -> list[Job]:
    """Jobs that together cost the questions of these numbers for all ranks."""
    by_form: dict[int, list[int]] = {}
    for number in numbers:
        by_form.setdefault(questions[number].form, []).append(number)
    return [job for own in by_form.values() for job in _jobs_of_form(questions, own, groups, costs)]


def _jobs_of_form(
    questions: Sequence[Question], numbers: list[int], groups: Sequence[Alike], costs: Costs
) -> Iterator[Job]:
    reads = costs.reads(numbers[0], groups[0].binding)
    known: dict[tuple[object, ...], tuple[Lanes, Ints, list[int]]] = {}
    merged: dict[tuple[tuple[str, str], ...], list[tuple[Mapping[str, Values], Alike]]] = {}
    for number in numbers:
        bound = questions[number].site.extents
        names = [(name, bound.get(name, name)) for name in reads]
        plain = tuple([pair for pair in names if pair[1] not in groups[0].tables])
        if plain not in merged:
            merged[plain] = _merged(groups, plain)
        loads = [pair for pair in names if pair not in plain]
        for shared, group in merged[plain]:
            tables = {name: group.tables[actual] for name, actual in loads}
            at = (tuple(shared.items()), id(group.ranks), *map(id, tables.values()))
            if at not in known:
                known[at] = Lanes(tables, group.ranks), group.places, []
            known[at][2].append(number)
    by_scalars: dict[object, list[tuple[Lanes, Ints, list[int]]]] = {}
    for at, entry in known.items():
        by_scalars.setdefault(at[0], []).append(entry)
    for shared in {tuple(shared.items()): shared for found in merged.values() for shared, _ in found}.values():
        own = (list(column) for column in zip(*by_scalars[tuple(shared.items())], strict=True))
        yield from _cut(Job(numbers[0], shared, *own))


def _merged(groups: Sequence[Alike], names: Sequence[tuple[str, str]]) -> list[tuple[Mapping[str, Values], Alike]]:
    """Ranks that share their tables and find equal values in these extents (the block's name, the program's)."""
    found: dict[tuple[object, ...], list[Alike]] = {}
    for group in groups:
        key = (id(group.tables), *[group.common[actual] for _, actual in names])
        found.setdefault(key, []).append(group)
    merged: list[tuple[Mapping[str, Values], Alike]] = []
    for own in found.values():
        places, ranks = (np.concatenate(column) for column in ([o.places for o in own], [o.ranks for o in own]))
        shared = {name: own[0].common[actual] for name, actual in names}
        merged.append((shared, own[0]._replace(places=places, ranks=ranks)))
    return merged


def _cut(job: Job) -> Iterator[Job]:
    """A job in pieces that read no more than so many values each."""
    sizes = [len(lanes.ranks) * max(table.values.shape[1] for table in lanes.tables.values()) for lanes in job.lanes]
    piece = np.cumsum(sizes) // MOST_VALUES
    for number in np.unique(piece).tolist():
        at = np.flatnonzero(piece == number).tolist()
        yield job._replace(
            lanes=[job.lanes[n] for n in at], places=[job.places[n] for n in at], asked=[job.asked[n] for n in at]
        )
