"""The trace of a run as a file: which of its cards are written, so that a huge run makes no huge file unasked."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from ..emulator.span_columns import CardColumns
from ..isa.errors import ConfigError
from .files import write_file
from .rank_lists import parse_ranks
from .terminal import ranges
from .trace import TraceNames, write_trace

if TYPE_CHECKING:
    from .run import RunResult

ALL = "all"
MOST_SPANS = 1_000_000  # written unasked: some 300 MB, which Perfetto still opens
POWER_BINS = 1000  # of a card's counters of watts and clock
MOST_CURVES = 16  # cards with such counters
MOST_IDLE_CARDS = 64  # whose memory is written where no step ran


def check_traced(cards: str | None, path: str | None) -> None:
    """Refuse a choice of cards that names none, or that no trace is written for, before the run and not after it."""
    if cards is not None and path is None:
        raise ConfigError("--trace-cards chooses the cards of a trace; give --trace FILE too, or leave it out")
    if cards not in (None, ALL):
        parse_ranks("--trace-cards", str(cards))


def write_run_trace(path: str, result: RunResult, cards: str | None = None) -> str | None:
    """Write the Chrome trace of a run; returns a note where cards were left out because there are too many spans.

    `cards` names ranks, or is "all"; a card that stands for one of them is written for it. ConfigError for a rank that
    the run has not.
    """
    steps = [record.columns for record in result.records]
    wanted, note = _chosen(cards, steps, len(result.report.cards))
    kept = [[card for card in step if wanted.intersection(card.ranks)] for step in steps]
    shown = {card.rank for step in kept for card in step} or set(sorted(wanted)[:MOST_IDLE_CARDS])
    memory = {rank: history for rank, history in result.memory.items() if rank in shown}

    drawn = result.power_curve if result.records else None
    curves = {rank: drawn(rank, POWER_BINS) for rank in sorted(shown)[:MOST_CURVES]} if drawn else {}

    def write(stream: BinaryIO) -> None:
        text = io.TextIOWrapper(stream, encoding="utf-8")
        write_trace(text, kept, memory, TraceNames.of(result.report), curves)
        text.flush()
        text.detach()

    write_file(path, write)
    return note


def _chosen(cards: str | None, steps: Sequence[Sequence[CardColumns]], count: int) -> tuple[set[int], str | None]:
    """The ranks to write, and what to say of those left out."""
    everything = set(range(count))
    if cards == ALL:
        return everything, None
    if cards is not None:
        named = set(parse_ranks("--trace-cards", cards))
        if named - everything:
            unknown = min(named - everything)
            raise ConfigError(f"--trace-cards {cards}: the run has cards 0 to {count - 1}, and no {unknown}")
        return named, None
    spans: dict[int, int] = {}
    for step in steps:
        for card in step:
            spans[card.rank] = spans.get(card.rank, 0) + len(card)
    total, kept = 0, set[int]()
    for rank in sorted(spans):
        total += spans[rank]
        if kept and total > MOST_SPANS:
            return kept, (
                f"the trace holds cards {ranges(sorted(kept))} of {len(spans)}: all have {sum(spans.values()):,} "
                "spans; name others with --trace-cards 0-7, or write all of them with --trace-cards all"
            )
        kept.add(rank)
    return everything, None
