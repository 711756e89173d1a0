"""Critical: which instruction held each instant of some steps, from columns of spans; all shares of time rest on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..emulator.calendar.solver import Ints
from ..emulator.intervals import gained_ps
from ..emulator.span import BOUNDS
from ..emulator.span_columns import CardColumns
from .report_base import Bounds

DEPENDENCY = BOUNDS.index("dependency")


class Held(NamedTuple):
    """The instructions of one card that held some time: their rows in its columns, and how long each did."""

    card: CardColumns
    rows: Ints
    own_ps: Ints


@dataclass(frozen=True)
class Critical:
    """A stretch of time, each instant given to what held the instruction that ran then.

    Of instructions that overlap, over all cards, the one that started first counts, and of those the one that ended
    last, which the others would have waited for; an instant at which no card ran anything counts as dependency. So all
    of it sums to the whole time. `cards` are all that were looked at.
    """

    elapsed_ps: int
    cards: tuple[CardColumns, ...]
    held: tuple[Held, ...]

    @property
    def bounds(self) -> Bounds:
        """The whole time by what held it."""
        total = np.zeros(len(BOUNDS), np.int64)
        for card, rows, own_ps in self.held:
            np.add.at(total, card.bounds[rows], own_ps)
        total[DEPENDENCY] = self.elapsed_ps - int(total.sum())
        return Bounds.of(total.tolist())


def critical(cards: Sequence[CardColumns], start_ps: int, end_ps: int) -> Critical:
    """What held the time from start to end, among what the cards did; one that stands for others counts once."""
    kept = [np.flatnonzero((card.bounds != DEPENDENCY) & (card.end_ps > card.start_ps)) for card in cards]
    starts = _joined(card.start_ps[rows] for card, rows in zip(cards, kept, strict=True))
    ends = _joined(card.end_ps[rows] for card, rows in zip(cards, kept, strict=True))
    own = np.zeros_like(starts)
    if len(own):
        winners, gained = _winners(starts, ends, start_ps)
        own[winners] = gained
    held, first = [], 0
    for card, rows in zip(cards, kept, strict=True):
        part = own[first : first + len(rows)]
        first += len(rows)
        holds = np.flatnonzero(part)
        if len(holds):
            held.append(Held(card, rows[holds], part[holds]))
    return Critical(end_ps - start_ps, tuple(cards), tuple(held))


def _joined(columns: Iterable[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *columns])


def _winners(starts: Ints, ends: Ints, since_ps: int) -> tuple[Ints, Ints]:
    """Of each instant at which something started, what ended last, and the time that it adds to all before it.

    Of equal ones the first counts; what adds nothing is left out.
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    first = np.flatnonzero(np.concatenate(([True], starts[1:] != starts[:-1])))
    last = np.maximum.reduceat(ends, first)
    gained = gained_ps(starts[first], last, since_ps)
    longest = np.flatnonzero(ends == np.repeat(last, np.diff(np.append(first, len(ends)))))
    winners = longest[np.searchsorted(longest, first)]  # of each instant: it has one at least, at or after its first
    holds = np.flatnonzero(gained)
    return order[winners[holds]], gained[holds]
