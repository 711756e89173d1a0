"""Where the time of a phase went, as a part of the report: by part of the model, by instruction, and in words."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..emulator.span import Bound
from .report_base import Bounds, Count, Part, PerSecond, Picoseconds

MOST_INSTRUCTIONS = 12


class PartReport(Part):
    """Critical time of one part of the model, by what held it; "waiting" is when no card ran anything of its own."""

    part: str
    time_ps: Picoseconds
    share: Annotated[float, Field(ge=0)]
    bounds: Bounds


class InstructionReport(Part):
    """Instructions of one mnemonic and shape: the critical time they held, and where they stand under the roofline.

    `count` is how often a card executes them, `mean_ps` how long one takes; ranges in `shape` are over what differs.
    Rates are over their own time: operations and device memory traffic that cannot be avoided; of an exchange the
    bytes of its message. `attainable` is what the card gives at that many operations a byte: its peak, or its memory
    bandwidth; null for exchanges and for what computes nothing.
    """

    mnemonic: str
    shape: str
    part: str
    count: Count
    time_ps: Picoseconds
    share: Annotated[float, Field(ge=0)]
    mean_ps: Picoseconds
    bound: Bound
    ops_per_byte: Annotated[float, Field(ge=0)] | None = None
    ops_per_s: PerSecond | None = None
    attainable_ops_per_s: PerSecond | None = None
    bytes_per_s: PerSecond | None = None
    attainable_bytes_per_s: PerSecond | None = None


class OverlapReport(Part):
    """Exchanges of one axis on a card, mean of all cards: how long they took, and what of it stood in the way.

    `hidden_ps` of `time_ps` the card computed or copied beside them; `exposed_ps` is the rest. `waited_ps` it had come
    and its peers had not.
    """

    axis: str
    time_ps: Picoseconds
    hidden_ps: Picoseconds
    exposed_ps: Picoseconds
    waited_ps: Picoseconds


class Breakdown(Part):
    """A phase's critical time: `parts` sum to all of it; `instructions` are those that held most, `left_out` more did.

    `limits` says in words, and from these figures, what limits the phase.
    """

    parts: tuple[PartReport, ...] = ()
    instructions: Annotated[tuple[InstructionReport, ...], Field(max_length=MOST_INSTRUCTIONS)] = ()
    left_out: Count = 0
    overlap: tuple[OverlapReport, ...] = ()
    limits: tuple[str, ...] = ()
