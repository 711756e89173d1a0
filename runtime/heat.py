"""Heat: the energy of every step as a run goes on, how warm that makes each card, and which clock it is then put to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..emulator.calendar.solver import Ints
from ..emulator.energy import PS_PER_S, Drawn, joules_of, unstated
from ..emulator.machines import Machines
from ..emulator.spec import CardSpec
from ..emulator.thermal import Thermal

Floats = np.ndarray[Any, np.dtype[np.float64]]


class StepHeat(NamedTuple):
    """One step that has ended: joules on all cards, and then the hottest card and the lowest clock of any."""

    step: int
    energy_j: float
    hottest_c: float | None
    lowest_clock_hz: int


class Change(NamedTuple):
    """Cards of one temperature whose clock was changed at the end of a step, for the programs that begin after it."""

    step: int
    time_ps: int
    ranks: tuple[int, ...]
    clock_hz: int
    temperature_c: float


def _clocks(card: CardSpec) -> tuple[int, ...]:
    """The full clock, and the steps below it from the highest down."""
    return card.clock_hz, *sorted({step for step in card.throttle_hz if step < card.clock_hz}, reverse=True)


class Heat:
    """Energy and temperature of the cards of a run, brought forward at the end of every step.

    Cards begin as warm as idling makes them. All is empty where the card's file does not state what energy needs, and
    there are no temperatures where it does not state how heat leaves.
    """

    def __init__(self, cluster: Machines) -> None:
        self._cluster, self._card = cluster, cluster.spec
        cards = len(cluster.cards)
        self.unstated = unstated(self._card, cards)
        self.thermal = Thermal.of(self._card) if not self.unstated else None
        self.clocks = _clocks(self._card)
        idle = self.thermal.settled_c(self._card.power.idle_w or 0.0) if self.thermal else 0.0
        self.temperature_c: Floats = np.full(cards, idle)
        self.levels: Ints = np.zeros(cards, np.int64)
        self.steps: list[StepHeat] = []
        self.changes: list[Change] = []
        self._known, self._until_ps = cluster.ledger.drawn(), cluster.now_ps

    @property
    def stepped_down(self) -> dict[int, int]:
        """The clock of every card that is below its full one, by rank."""
        return {rank: self.clocks[self.levels[rank]] for rank in np.flatnonzero(self.levels).tolist()}

    def ended(self, index: int, end_ps: int) -> None:
        """A step has ended: add what it took, and put the clocks of cards to what their heat allows."""
        if self.unstated:
            return
        known, lasted_ps = self._cluster.ledger.drawn(), max(0, end_ps - self._until_ps)
        taken = Drawn(*(now - before for now, before in zip(known, self._known, strict=True)))
        energies = self._joules(taken, lasted_ps)
        self._known, self._until_ps = known, self._until_ps + lasted_ps
        if self.thermal is not None and lasted_ps:
            self._warm(self.thermal, energies, lasted_ps, index, end_ps)
        hottest = float(self.temperature_c.max()) if self.thermal else None
        lowest = self.clocks[int(self.levels.max(initial=0))]
        self.steps.append(StepHeat(index, float(energies.sum()), hottest, lowest))

    def _joules(self, taken: Drawn, lasted_ps: int) -> Floats:
        """Energy of each card, [cards]."""
        found: Floats = joules_of(self._card, lasted_ps, taken).total
        return found

    def _warm(self, thermal: Thermal, energies: Floats, lasted_ps: int, index: int, end_ps: int) -> None:
        lasted_s, before = lasted_ps / PS_PER_S, self.temperature_c
        self.temperature_c = thermal.after(before, energies / lasted_s, lasted_s)
        levels = thermal.stepped(self.levels, before, self.temperature_c, len(self.clocks) - 1)
        changed = np.flatnonzero(levels != self.levels)
        self.levels = levels
        for rank in changed.tolist():
            self._cluster.set_clock(rank, self.clocks[levels[rank]])
        self.changes += self._changes(changed, index, end_ps)

    def _changes(self, changed: Ints, index: int, end_ps: int) -> Iterator[Change]:
        """Cards that changed in the same way at the same temperature, told together."""
        alike: dict[tuple[int, float], list[int]] = {}
        for rank in changed.tolist():
            alike.setdefault((self.clocks[self.levels[rank]], float(self.temperature_c[rank])), []).append(rank)
        for (clock_hz, temperature_c), ranks in alike.items():
            yield Change(index, end_ps, tuple(ranks), clock_hz, temperature_c)
