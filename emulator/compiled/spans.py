"""Spans of a compiled run as columns, made into Span objects when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import overload

import numpy as np

from ..calendar.solver import Ints
from ..card import Op
from ..span import BOUNDS, Span, in_order
from ..span_columns import CardColumns, by_standing
from .flatten import FlatProgram
from .machine import NONE, S_BOUND, S_END, S_ISSUED, S_LATE, S_START


class CardSpans:
    """What one card did: the rows of a program's entries, and when each of them ran."""

    def __init__(self, rank: int, program: FlatProgram, queues: tuple[str, ...], rows: Ints, ops: Sequence[Op]) -> None:
        self.rank, self.program, self.rows, self.ops, self._queues = rank, program, rows, ops, queues
        self.ended = rows[:, S_END] != NONE

    def columns(self, ranks: tuple[int, ...]) -> CardColumns:
        """The same as columns; all cards of `ranks` did it."""
        program, rows = self.program, self.rows
        lengths = (program.parts[:, 1] - program.parts[:, 0]).tolist()
        queues = np.repeat(np.arange(len(lengths)), lengths)
        times = rows[:, S_ISSUED], rows[:, S_START], rows[:, S_END], rows[:, S_BOUND], rows[:, S_LATE]
        found = (queues, program.calls, program.positions, program.sites, *times)
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


class SpanTable(Sequence[Span]):
    """All spans of a submission, in order; `standing` tells by rank which card stands for it, if not it itself."""

    def __init__(self, cards: Sequence[CardSpans], standing: Mapping[int, int] = MappingProxyType({})) -> None:
        self.cards, self.standing = cards, standing
        self._count = sum(int(card.ended.sum()) for card in cards)

    @cached_property
    def columns(self) -> tuple[CardColumns, ...]:
        """What every card did that stands for itself or others."""
        own = {card.rank: card for card in self.cards}
        standing = by_standing({*own, *self.standing}, self.standing)
        return tuple(own[rank].columns(ranks) for rank, ranks in standing.items())

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
