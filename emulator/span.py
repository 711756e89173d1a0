"""Span: what a queue did from when to when, and what held it; the record from which every time in a report comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

Bound = Literal["compute", "hbm", "sram", "link", "dispatch", "dependency", "host"]
BOUNDS: tuple[Bound, ...] = get_args(Bound)

NOBODY_LATE = -1


class Span(NamedTuple):
    """One instruction on one queue of one card, in picoseconds.

    `issue_ps`: fetched, its semaphores satisfied, and free to go but for its peers. `start_ps`: its activity started,
    which for a collective or a transfer is when the last peer had issued. `bound`: what would have to be better for it
    to end sooner; "dependency" when it waited for others longer than it took. `late`: the rank that the others waited
    for, or -1. `call` and `position` name the instruction: the block of that call of the card's program, and its place
    there.
    """

    card: int
    queue: str
    call: int
    position: int
    mnemonic: str
    issue_ps: int
    start_ps: int
    end_ps: int
    bound: Bound
    late: int


def in_order(spans: Iterable[Span]) -> list[Span]:
    """By end, then card, queue and place: the order in which every engine tells them."""
    return sorted(spans, key=lambda span: (span.end_ps, span[:4]))
