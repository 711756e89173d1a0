"""What a run took in energy, how warm its cards got and which clock they kept, as a part of the report."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..interconnect.evidence import EvidenceKind
from .report_base import Count, Part, Picoseconds

Joules = Annotated[float, Field(ge=0)]
Watts = Annotated[float, Field(ge=0)]
MOST_CHANGES = 64  # of clocks that are listed
CURVE_BINS = 64


class PartEnergy(Part):
    """Energy of one part of the model on all cards, beside what cards draw idle."""

    part: str
    energy_j: Joules
    share: Annotated[float, Field(ge=0)]


class StepEnergy(Part):
    """One step: energy on all cards, and at its end the hottest card and the lowest clock that cards are then put to.

    Steps that are in flight together share the time: each counts what cards draw idle from the end of the one before.
    """

    step: Count
    energy_j: Joules
    hottest_c: float | None = None
    lowest_clock_hz: Count


class ClockChange(Part):
    """Cards whose clock was stepped at the end of a step: `cards` of them, the first by its rank."""

    step: Count
    time_ps: Picoseconds
    card: Count
    cards: Count
    clock_hz: Count
    temperature_c: float


class PowerCurve(Part):
    """Watts and clock of one card over the job's time, in bins of `bin_ps`.

    The clock is the mean of what ran in a bin, and null where nothing did.
    """

    card: Count
    bin_ps: Picoseconds
    watts: tuple[Watts, ...]
    clock_hz: tuple[Count | None, ...]


class EnergyReport(Part):
    """Energy of all cards over the job's time, by what took it; null where the card's file does not state enough.

    `idle_j` is what cards draw whatever they do. `peak_w` is the most that the card of `curve`, which took most energy,
    drew at any time, each instruction's energy spread over its own. `unstated` are the numbers that are missing.
    """

    unstated: tuple[str, ...] = ()
    weakest: EvidenceKind | None = None
    total_j: Joules | None = None
    idle_j: Joules | None = None
    operations_j: Joules | None = None
    hbm_j: Joules | None = None
    links_j: Joules | None = None
    mean_w: Watts | None = None
    peak_w: Watts | None = None
    output_tokens_per_j: Annotated[float, Field(ge=0)] | None = None
    parts: tuple[PartEnergy, ...] = ()
    steps: tuple[StepEnergy, ...] = ()
    cards_j: tuple[Joules, ...] = ()
    hottest_c: float | None = None
    limit_c: float | None = None
    changes: Annotated[tuple[ClockChange, ...], Field(max_length=MOST_CHANGES)] = ()
    more_changes: Count = 0
    curve: PowerCurve | None = None
