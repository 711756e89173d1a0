"""Power curve: watts and clock of one card over time, from its spans, its exchanges and what it draws idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..emulator.calendar.solver import Ints
from ..emulator.energy import PS_PER_S, Drawn, joules_of
from ..emulator.exchange_use import alike
from ..emulator.op_columns import power_of
from ..emulator.usage import Ledger

if TYPE_CHECKING:
    from ..emulator.spec import CardSpec
    from .run import StepRecord

Floats = np.ndarray[Any, np.dtype[np.float64]]
HZ_STEP = 10**6  # clocks of a curve are whole megahertz
WATT_DIGITS = 3
LEAST_SHARE = 1e-9  # of a bin, in which something must run for its clock to be told


class Drawing(NamedTuple):
    """What one card did: when it began and ended, its joules beside those of idling, and its clock (0: none)."""

    start_ps: Ints
    end_ps: Ints
    joules: Floats
    clock_hz: Floats


class Curve(NamedTuple):
    """Mean watts and clock of a card by bins of `bin_ps`, the clock None where nothing ran; and its highest power."""

    bin_ps: int
    watts: tuple[float, ...]
    clock_hz: tuple[int | None, ...]
    peak_w: float


def power_curve(card: CardSpec, ledger: Ledger, records: Sequence[StepRecord], rank: int, bins: int) -> Curve:
    """The curve of a card over the time of some steps, in so many bins at most; each energy is even over its time."""
    idle_w, end_ps = card.power.idle_w or 0.0, max(record.end_ps for record in records)
    bin_ps = max(1, -(-end_ps // bins))
    edges = bin_ps * np.arange(-(-end_ps // bin_ps) + 1)
    did = _together([part for record in records for part in _of(card, ledger, record, rank)])
    lasted = np.maximum(1, did.end_ps - did.start_ps)
    watts, highest = _binned(did.start_ps, lasted, did.joules * PS_PER_S, edges)
    ran, _ = _binned(did.start_ps, lasted, lasted * (did.clock_hz > 0).astype(np.float64), edges)
    cycles, _ = _binned(did.start_ps, lasted, lasted * did.clock_hz, edges)
    pairs = zip(cycles.tolist(), ran.tolist(), strict=True)
    return Curve(
        bin_ps,
        tuple(round(idle_w + value, WATT_DIGITS) for value in watts.tolist()),
        tuple(HZ_STEP * round(of / share / HZ_STEP) if share > LEAST_SHARE else None for of, share in pairs),
        round(idle_w + highest, WATT_DIGITS),
    )


def _together(parts: Sequence[Drawing]) -> Drawing:
    """All parts, in an order that is the same whichever way they were told."""
    times, values = (np.zeros(0, np.int64), np.zeros(0))
    starts, ends = (np.concatenate([times, *(part[n] for part in parts)]) for n in (0, 1))
    joules, clocks = (np.concatenate([values, *(part[n] for part in parts)]) for n in (2, 3))
    order = np.lexsort((clocks, joules, ends, starts))
    return Drawing(starts[order], ends[order], joules[order], clocks[order])


def _binned(start_ps: Ints, lasted_ps: Ints, amounts: Floats, edges: Ints) -> tuple[Floats, float]:
    """The mean rate per picosecond of every bin, and the highest at any time, of amounts spread over their times."""
    times = np.concatenate((start_ps, start_ps + lasted_ps))
    rates = amounts / lasted_ps
    order = np.argsort(times, kind="stable")
    times, steps = times[order], np.concatenate((rates, -rates))[order]
    if not len(times):
        return np.zeros(len(edges) - 1), 0.0
    flowing = np.cumsum(steps)
    done = np.concatenate(([0.0], np.cumsum(flowing[:-1] * np.diff(times))))
    of_bin = np.diff(np.interp(edges, times, done)) / np.diff(edges)
    settled = np.append(np.diff(times) > 0, True)[: len(times)]  # after all that begins or ends at one time
    return np.maximum(of_bin, 0.0), float(flowing[settled].max(initial=0.0))


def _of(card: CardSpec, ledger: Ledger, record: StepRecord, rank: int) -> Iterator[Drawing]:
    """What a card did in a step: its instructions, and the exchanges that it had a part in."""
    clock_hz = record.clocks.get(rank, card.clock_hz)
    for own in (one for one in record.columns if rank in one.ranks and len(one)):
        energies, hbm_bytes = ledger.alone(own.ops)
        power = power_of(own.ops)
        joules = joules_of(card, 0, Drawn(energies, hbm_bytes, 0)).total
        clocks = power.clock_fraction * clock_hz
        yield Drawing(own.start_ps, own.end_ps, joules[own.sites], np.where(energies > 0, clocks, 0.0)[own.sites])
    for some in alike(record.exchanges):
        if rank in some.first.ranks:
            moved = ledger.moved(some.first.demand)
            joules = joules_of(card, 0, Drawn(*(column[rank] for column in moved))).total
            count = some.number
            yield Drawing(some.times[:, 0], some.times[:, 1], np.full(count, joules), np.zeros(count))
