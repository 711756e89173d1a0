"""Hidden: how much of a card's communication went on while the card also computed, exactly, from columns of spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from ..emulator.calendar.solver import Ints
from ..emulator.intervals import gained_ps
from ..emulator.span_columns import CardColumns
from ..emulator.timeline import Timeline
from .model_parts import group_of
from .report_breakdown import OverlapReport

NOT_AN_EXCHANGE = -1


class Hidden:
    """Communication beside computation, added up over the cards of steps."""

    def __init__(self, cards: int) -> None:
        self._num_cards = cards
        self._total: defaultdict[str, Ints] = defaultdict(lambda: np.zeros(3, np.int64))
        self._axes: dict[int, tuple[Timeline, list[str], Ints]] = {}

    def add(self, together: Sequence[tuple[Sequence[int], Sequence[CardColumns]]]) -> None:
        """Add steps that were in flight together: for each kind of card its ranks, and its part in each step."""
        for ranks, parts in together:
            for axis, found in self._of_card(parts).items():
                self._total[axis] += len(ranks) * found

    def _of_card(self, parts: Sequence[CardColumns]) -> dict[str, Ints]:
        """(time, hidden, waited) of a card by axis."""
        named = [self._axis_of(part) for part in parts]
        exchanges = [kinds != NOT_AN_EXCHANGE for _, kinds in named]
        starts = _joined(part.start_ps[~own] for part, own in zip(parts, exchanges, strict=True))
        ends = _joined(part.end_ps[~own] for part, own in zip(parts, exchanges, strict=True))
        busy = Busy(starts, ends)
        found: defaultdict[str, Ints] = defaultdict(lambda: np.zeros(3, np.int64))
        for part, (axes, kinds), own in zip(parts, named, exchanges, strict=True):
            issued, start, end = part.issued_ps[own], part.start_ps[own], part.end_ps[own]
            rows = np.stack((end - start, busy.until(end) - busy.until(start), start - issued), 1)
            sums = np.zeros((len(axes), 3), np.int64)
            np.add.at(sums, kinds[own], rows)
            for number in np.unique(kinds[own]).tolist():
                found[axes[number]] += sums[number]
        return found

    def _axis_of(self, card: CardColumns) -> tuple[list[str], Ints]:
        """The axes that a card's program communicates along, and which of them each of its rows does (or none)."""
        known = self._axes.get(id(card.timeline))
        if known is None:
            axes: dict[str, int] = {}
            names = [group_of(site.instruction) for site in card.timeline.sites]
            sites = [NOT_AN_EXCHANGE if name is None else axes.setdefault(name, len(axes)) for name in names]
            known = self._axes[id(card.timeline)] = (card.timeline, list(axes), np.array(sites, np.int64))
        return known[1], known[2][card.sites]

    def reports(self) -> tuple[OverlapReport, ...]:
        """A row for each axis, the longest first; all of it means of the cards."""
        means = {axis: (total // self._num_cards).tolist() for axis, total in self._total.items()}
        rows = [
            OverlapReport(axis=axis, time_ps=time, hidden_ps=hidden, exposed_ps=time - hidden, waited_ps=waited)
            for axis, (time, hidden, waited) in means.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.time_ps, row.axis)))


class Busy:
    """The times that intervals cover together; `until(t)` is how much of them lies before each t."""

    def __init__(self, starts: Ints, ends: Ints) -> None:
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        gained = gained_ps(starts, ends, 0) if len(starts) else starts
        kept = gained > 0
        self._gained, self._starts = gained[kept], ends[kept] - gained[kept]
        self._before = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._gained)))

    def until(self, times: Ints) -> Ints:
        """Picoseconds covered before each of these times."""
        if not len(self._starts):
            return np.zeros_like(times)
        last = np.maximum(np.searchsorted(self._starts, times, "right") - 1, 0)
        within: Ints = np.clip(times - self._starts[last], 0, self._gained[last])
        return self._before[last] + within


def _joined(columns: Iterable[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *columns])
