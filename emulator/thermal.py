"""Thermal: how warm a card gets, one heat capacity behind one resistance; and the card at a step of its clock."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from .spec import CardSpec

Floats = np.ndarray[Any, np.dtype[np.float64]]
HYSTERESIS_K = 3.0  # a card must be so much below its limit before its clock steps up again


class Thermal(NamedTuple):
    """A card as one body: kelvins above its coolant for each watt, and joules that warm it by one kelvin."""

    resistance_k_per_w: float
    capacity_j_per_k: float
    ambient_c: float
    limit_c: float

    @classmethod
    def of(cls, card: CardSpec) -> Self | None:
        """What the card's file states; None where it leaves any of it out."""
        power = card.power
        stated = power.thermal_resistance_k_per_w, power.thermal_capacity_j_per_k, power.ambient_c, power.limit_c
        known = [value for value in stated if value is not None]
        return cls(*known) if len(known) == len(stated) else None

    def settled_c(self, watts: Floats | float) -> Any:
        """The temperature at which as much heat leaves as comes."""
        return self.ambient_c + self.resistance_k_per_w * watts

    def after(self, temperature_c: Floats, watts: Floats, lasted_s: float) -> Floats:
        """Temperatures after so many seconds of steady power: C dT/dt = P - (T - ambient) / R, in closed form."""
        settled: Floats = self.settled_c(watts)
        time_s = self.resistance_k_per_w * self.capacity_j_per_k
        left = np.exp(-lasted_s / time_s) if time_s else 0.0
        found: Floats = settled + (temperature_c - settled) * left
        return found

    def stepped(self, levels: Any, before_c: Floats, now_c: Floats, lowest: int) -> Any:
        """Throttle levels, 0 the full clock, after a step that took cards from one temperature to another.

        A card above its limit that still gets warmer goes one level down; one well below it goes one up.
        """
        down = (now_c > self.limit_c) & (now_c >= before_c)
        up = now_c < self.limit_c - HYSTERESIS_K
        return np.clip(levels + down - up, 0, lowest)


@lru_cache(maxsize=64)
def at_clock(card: CardSpec, clock_hz: int) -> CardSpec:
    """The card with its clock at a throttle step, and what an operation takes as it is at that clock."""
    if clock_hz == card.clock_hz:
        return card
    power = card.power
    share = (clock_hz / card.clock_hz) ** (power.voltage_exponent or 0.0)
    changed: dict[str, object] = {
        "energy_j_per_op": {name: share * joules for name, joules in power.energy_j_per_op.items()}
    }
    if power.energy_j_per_vector_op is not None:
        changed["energy_j_per_vector_op"] = share * power.energy_j_per_vector_op
    parts = {name: getattr(card, name) for name in CardSpec.model_fields}
    return CardSpec.model_validate(parts | {"clock_hz": clock_hz, "power": power.model_copy(update=changed)})
