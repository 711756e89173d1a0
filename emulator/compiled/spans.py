"""Spans of a compiled run as columns, made into Span objects when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from ..calendar.solver import Ints
from ..span import Span, in_order
from .flatten import FlatProgram
from .machine import BOUNDS, NONE, S_END


class CardSpans:
    """What one card did: the rows of a program's entries, and when each of them ran."""

    def __init__(self, rank: int, program: FlatProgram, queues: Sequence[str], rows: Ints) -> None:
        self.rank, self.program, self.rows, self._queues = rank, program, rows, queues
        self.ended = rows[:, S_END] != NONE

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


class SpanTable(Sequence[Span]):
    """All spans of a submission, in order."""

    def __init__(self, cards: Sequence[CardSpans]) -> None:
        self.cards = cards
        self._count = sum(int(card.ended.sum()) for card in cards)

    @cached_property
    def _made(self) -> list[Span]:
        return in_order(span for card in self.cards for span in card.spans())

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
