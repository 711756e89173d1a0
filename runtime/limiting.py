"""What limits a phase, in words that its own figures give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..emulator.span import Bound
from .report_base import Bounds
from .report_breakdown import InstructionReport, OverlapReport, PartReport
from .terminal import digits, duration, percent

_WORDS: dict[Bound, str] = {
    "compute": "the rate of the units",
    "hbm": "the bandwidth of device memory",
    "sram": "loading operands into the cores",
    "link": "the links between cards",
    "dispatch": "launching instructions",
    "dependency": "waiting for others",
    "host": "the link to the host",
}


def limits(
    parts: Sequence[PartReport],
    instructions: Sequence[InstructionReport],
    overlap: Sequence[OverlapReport],
    elapsed_ps: int,
) -> tuple[str, ...]:
    """A few sentences: what holds most of the time, where, how near the card's ceiling it is, and the wires."""
    if not elapsed_ps:
        return ()
    return tuple(_sentences(parts, instructions, overlap, elapsed_ps))


def _sentences(
    parts: Sequence[PartReport],
    instructions: Sequence[InstructionReport],
    overlap: Sequence[OverlapReport],
    elapsed_ps: int,
) -> Iterator[str]:
    bounds = Bounds.together(part.bounds for part in parts)
    largest = bounds.largest
    if largest is None:
        return
    held = sorted(parts, key=lambda part: -getattr(part.bounds, largest))
    shares = [(part.part, percent(getattr(part.bounds, largest), elapsed_ps)) for part in held[:3]]
    where = [f"{part} {share}" for rank, (part, share) in enumerate(shares) if not rank or share != percent(0, 1)]
    share = percent(getattr(bounds, largest), elapsed_ps)
    yield f"{share} of the time is held by {_WORDS[largest]}: {', '.join(where)}"
    yield from _nearest(instructions, largest)
    exposed, time = sum(row.exposed_ps for row in overlap), sum(row.time_ps for row in overlap)
    if time:
        longest = max(overlap, key=lambda row: row.exposed_ps)
        yield (
            f"communication takes a card {duration(time)}, of which {percent(time - exposed, time)} is hidden behind "
            f"other work; along {longest.axis} {duration(longest.exposed_ps)} stand in the way"
        )


def _nearest(instructions: Sequence[InstructionReport], bound: Bound) -> Iterator[str]:
    """How near its ceiling the longest instruction of a bound is, where the card has one for it."""
    own = next((one for one in instructions if one.bound == bound), None)
    if own is None:
        return
    what = f"{own.mnemonic} {own.shape} ({own.part})"
    if bound == "hbm" and own.bytes_per_s and own.attainable_bytes_per_s:
        density = "" if own.ops_per_byte is None else f" with {digits(own.ops_per_byte)} operations a byte"
        yield f"{what} gets {percent(own.bytes_per_s, own.attainable_bytes_per_s)} of the bandwidth it could{density}"
    elif bound == "compute" and own.ops_per_s and own.attainable_ops_per_s:
        yield f"{what} reaches {percent(own.ops_per_s, own.attainable_ops_per_s)} of the operations a second it could"
    elif bound == "dispatch":
        yield f"{what} is launched {own.count:,} times and lasts {duration(own.mean_ps)} each"
