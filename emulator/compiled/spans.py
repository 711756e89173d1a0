"""Spans of a compiled run as columns, made into Span objects when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from ..calendar.solver import Ints
from ..span import Span
from .flatten import FlatProgram
from .machine import BOUNDS, NONE, S_BOUND, S_END, S_ISSUED, S_LATE, S_START


class CardSpans:
    """What one card did: the rows of a program's entries, and when each of them ran."""

    def __init__(self, rank: int, program: FlatProgram, queues: Sequence[str], rows: Ints) -> None:
        self.rank, self.program, self.rows, self._queues = rank, program, rows, queues
        self.ended = rows[:, S_END] != NONE

    def spans(self) -> Iterator[tuple[int, Span]]:
        """(end, span) of every instruction that has ended, queue by queue."""
        program, first = self.program, self.program.first
        times = self.rows.tolist()
        calls, positions, sites = program.calls.tolist(), program.positions.tolist(), program.sites.tolist()
        mnemonics = [site.instruction.mnemonic for site in program.timeline.sites]
        for name, (start, stop) in zip(self._queues, (program.parts - first).tolist(), strict=True):
            for row in range(start, stop):
                issued, begun, ended, bound, late = times[row]
                if ended != NONE:
                    yield ended, Span(
                        self.rank, name, calls[row], positions[row], mnemonics[sites[row]],
                        issued, begun, ended, BOUNDS[bound], late,
                    )  # fmt: skip


class SpanTable(Sequence[Span]):
    """All spans of a submission, in order of their end, then of card, queue and place in it."""

    def __init__(self, cards: Sequence[CardSpans]) -> None:
        self.cards = cards
        self._count = sum(int(np.count_nonzero(card.ended)) for card in cards)
        self._made: list[Span] | None = None

    def _spans(self) -> list[Span]:
        if self._made is None:
            made = [pair for card in self.cards for pair in card.spans()]
            made.sort(key=lambda pair: pair[0])
            self._made = [span for _, span in made]
        return self._made

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        return self._spans()[index]

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans())


__all__ = ["CardSpans", "SpanTable", "S_ISSUED", "S_START", "S_LATE", "S_BOUND"]
