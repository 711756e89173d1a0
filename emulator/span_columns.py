"""Spans as columns: what cards did in a submission, a row an instruction, from either calendar and without objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .calendar.solver import Ints
from .card import Op
from .span import BOUNDS, Span
from .timeline import Timeline


@dataclass(frozen=True, eq=False)
class CardColumns:
    """What a card did, and with it every card of `ranks`, the lowest of which is the one that was looked at.

    All columns have a row for each instruction that has ended, queue by queue in the order of `queue_names`. `sites`
    are places in `timeline.sites` and `ops`, `queues` in `queue_names`, `bounds` in `BOUNDS`; times are picoseconds.
    `late` is the rank that a group waited for, or -1.
    """

    ranks: tuple[int, ...]
    timeline: Timeline
    ops: Sequence[Op]
    queue_names: tuple[str, ...]
    queues: Ints
    calls: Ints
    positions: Ints
    sites: Ints
    issued_ps: Ints
    start_ps: Ints
    end_ps: Ints
    bounds: Ints
    late: Ints

    @property
    def rank(self) -> int:
        """The card that was looked at."""
        return self.ranks[0]

    def __len__(self) -> int:
        return len(self.sites)


def by_standing(ranks: Iterable[int], standing: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """For each rank that stands for others, all ranks that it stands for, itself among them and first."""
    found: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        found[standing.get(rank, rank)].append(rank)
    return {first: (first, *(rank for rank in own if rank != first)) for first, own in sorted(found.items())}


def alike_all_along(
    steps: Sequence[Iterable[CardColumns]], cards: int
) -> list[tuple[list[int], tuple[CardColumns, ...]]]:
    """Ranks that did the very same in all of several steps, with what they did in each that they had a part in."""
    by_rank = [{rank: card for card in step for rank in card.ranks} for step in steps]
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(cards):
        alike[tuple([step[rank].rank if rank in step else -1 for step in by_rank])].append(rank)
    return [
        (ranks, tuple([step[ranks[0]] for step in by_rank if ranks[0] in step]))
        for first, ranks in alike.items()
        if any(card >= 0 for card in first)
    ]


def columns_of(
    spans: Iterable[Span], timelines: Mapping[int, tuple[Timeline, Sequence[Op]]], queue_names: tuple[str, ...]
) -> tuple[CardColumns, ...]:
    """The columns of every card, from its spans as objects in any order."""
    by_card: dict[int, list[tuple[int, ...]]] = {rank: [] for rank in timelines}
    number = {name: index for index, name in enumerate(queue_names)}
    codes = {name: index for index, name in enumerate(BOUNDS)}
    for card, queue, call, position, _, issued, start, end, bound, late in spans:
        site = timelines[card][0].rows[call][position]
        by_card[card].append((number[queue], call, position, site, issued, start, end, codes[bound], late))
    return tuple(_columns(rank, *timelines[rank], queue_names, rows) for rank, rows in sorted(by_card.items()))


def _columns(
    rank: int, timeline: Timeline, ops: Sequence[Op], queue_names: tuple[str, ...], rows: list[tuple[int, ...]]
) -> CardColumns:
    table = np.array(sorted(rows), np.int64).reshape(-1, 9)
    return CardColumns((rank,), timeline, ops, queue_names, *table.T)
