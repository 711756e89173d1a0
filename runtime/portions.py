"""Portions: what each holder computes of a step - which positions of which requests, in the order of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..isa.instruction import Array
from .scheduler import Entry, Step

if TYPE_CHECKING:
    from .plan import JobPlan


@dataclass(frozen=True)
class Portion:
    """A holder's part of a step: the entries of its replica, and of each the ranges of positions that it computes.

    `share` is its index among the holders of the replica; every one of them has the same entries.
    """

    holder: int
    share: int
    entries: tuple[Entry, ...]
    spans: tuple[tuple[range, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """New tokens of each entry."""
        return tuple(sum(map(len, spans)) for spans in self.spans)

    @property
    def tokens(self) -> int:
        """New tokens of all entries."""
        return sum(self.counts)

    def positions(self, index: int) -> Array:
        """The positions of one entry, int64."""
        return np.concatenate([np.arange(span.start, span.stop) for span in self.spans[index]] or [np.zeros(0, int)])

    def places(self) -> Iterator[tuple[int, int]]:
        """(request, position) of every token, in the order of the rows."""
        for entry, spans in zip(self.entries, self.spans, strict=True):
            for span in spans:
                for position in span:
                    yield entry.request, position

    def wanted(self, all_logits: bool) -> list[tuple[int, int]]:
        """(request, position) of every token whose logits are computed, in the order of the rows."""
        last = {entry.request: entry.start + entry.count - 1 for entry in self.entries if entry.emits}
        return [place for place in self.places() if all_logits or last.get(place[0]) == place[1]]

    def rows(self, all_logits: bool) -> int:
        """How many tokens' logits are computed."""
        if all_logits:
            return self.tokens
        return sum(
            entry.emits and any(entry.start + entry.count - 1 in span for span in spans)
            for entry, spans in zip(self.entries, self.spans, strict=True)
        )


def portions(plan: JobPlan, step: Step) -> tuple[Portion, ...]:
    """The portion of every holder; it may be nothing."""
    layout = plan.layout
    by_replica: list[list[Entry]] = [[] for _ in range(layout.dp)]
    for entry in step.entries:
        by_replica[layout.holders_of(entry.request).start // layout.cp].append(entry)
    return tuple(
        Portion(
            holder, holder % layout.cp, entries, tuple(_spans(plan, entry, holder % layout.cp) for entry in entries)
        )
        for holder, entries in ((holder, tuple(by_replica[holder // layout.cp])) for holder in range(layout.holders))
    )


def _spans(plan: JobPlan, entry: Entry, share: int) -> tuple[range, ...]:
    stop = entry.start + entry.count
    if plan.layout.cp == 1:
        return (range(entry.start, stop),)
    return plan.ownership(entry.request).spans(share, entry.start, stop)
