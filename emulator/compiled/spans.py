"""Spans of a compiled run as columns, made into Span objects when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from ..calendar.solver import Ints
from ..card import Op
from ..span import BOUNDS, Span, in_order
from ..span_columns import CardColumns, by_standing
from .flatten import FlatProgram
from .machine import NONE, S_BOUND, S_END, S_ISSUED, S_LATE, S_START
from .meetings import Matching, Place


class CardSpans:
    """What one card did: the rows of a program's entries, and when each of them ran."""

    def __init__(self, rank: int, program: FlatProgram, queues: tuple[str, ...], rows: Ints, ops: Sequence[Op]) -> None:
        self.rank, self.program, self.rows, self.ops, self._queues = rank, program, rows, ops, queues
        self.ended = rows[:, S_END] != NONE

    def columns(self, ranks: tuple[int, ...]) -> CardColumns:
        """The same as columns; all cards of `ranks` did it."""
        program, rows = self.program, self.rows
        times = rows[:, S_ISSUED], rows[:, S_START], rows[:, S_END], rows[:, S_BOUND], rows[:, S_LATE]
        found = (program.queue, program.calls, program.positions, program.sites, *times)
        if not self.ended.all():
            found = tuple(column[self.ended] for column in found)
        return CardColumns(ranks, program.timeline, self.ops, self._queues, *found)

    def spans(self) -> Iterator[Span]:
        """Every instruction that has ended, queue by queue."""
        program, times = self.program, self.rows.tolist()
        calls, positions, sites = program.calls.tolist(), program.positions.tolist(), program.sites.tolist()
        mnemonics = [site.instruction.mnemonic for site in program.timeline.sites]
        for name, (start, stop) in zip(self._queues, (program.parts - program.first).tolist(), strict=True):
            for row in range(start, stop):
                issued, begun, ended, bound, late = times[row]
                if ended != NONE:
                    place = calls[row], positions[row], mnemonics[sites[row]]
                    yield Span(self.rank, name, *place, issued, begun, ended, BOUNDS[bound], late)

    def of(self, rank: int, late: Ints) -> CardSpans:
        """The same of another card that this one stands for, which waited for others: `late` by row."""
        rows = self.rows.copy()
        rows[:, S_LATE] = late
        return CardSpans(rank, self.program, self._queues, rows, self.ops)


class SpanTable(Sequence[Span]):
    """All spans of a submission, in order.

    `cards` are those that ran; `standing` says for every rank of the submission which of them stands for it.
    """

    def __init__(self, cards: Sequence[CardSpans], standing: Mapping[int, int], matching: Matching) -> None:
        self.cards, self.standing, self._matching = cards, standing, matching
        self._of = {card.rank: card for card in cards}
        self._count = sum(int(self._of[card].ended.sum()) for card in standing.values())
        self._is_folded = len(cards) < len(standing)

    def card(self, rank: int) -> CardSpans:
        """What a card did."""
        standing = self._of[self.standing[rank]]
        return standing.of(rank, self._late(rank)) if self._is_folded else standing

    @cached_property
    def columns(self) -> tuple[CardColumns, ...]:
        """What every card did that stands for itself or others."""
        ranks = by_standing(self.standing, self.standing)
        return tuple(self.card(rank).columns(alike) for rank, alike in ranks.items())

    def _late(self, rank: int) -> Ints:
        """For every row of a card whom it waited for."""
        part, first, places = self._matching.parts[rank]
        late = np.full(self._of[self.standing[rank]].program.count, NONE)
        turns, rows = part.turns(first), part.rows
        for channel, place in enumerate(places):
            own = part.channel_of == channel
            late[rows[own]] = self._late_at(place)[turns[own]]
        return late

    def _late_at(self, place: Place) -> Ints:
        """For every turn of a place whom the others waited for, the lowest of those who came last."""
        found = self._known_late.get(id(place))
        if found is None:
            members = sorted(place.members, key=lambda member: member.rank)
            rows = [self._of[self.standing[member.rank]].rows[member.rows, S_ISSUED] for member in members]
            issued = np.stack(rows)
            last, ranks = issued.max(axis=0), np.array([member.rank for member in members])
            together = (issued.min(axis=0) == last) | (issued == NONE).any(
                axis=0
            )  # or it was sent, and nobody came yet
            found = np.where(together, NONE, ranks[(issued == last).argmax(axis=0)])
            if place.is_transfer:
                eager = np.array([offer.is_eager for offer in place.offers])[place.kinds]
                found[eager & (found == place.ranks[1])] = NONE  # it was sent already
            self._known_late[id(place)] = found
        return found

    @cached_property
    def _known_late(self) -> dict[int, Ints]:
        return {}

    @cached_property
    def _made(self) -> list[Span]:
        return in_order(span for rank in self.standing for span in self.card(rank).spans())

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        return self._made[index]

    def __iter__(self) -> Iterator[Span]:
        return iter(self._made)
