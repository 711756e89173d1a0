"""What a unit answers: the fixed time, the time alone and the amounts an instruction asks of the card's resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from ...isa.errors import ConfigError
from ..spec import CardSpec

Bound = Literal["compute", "hbm", "sram", "link", "dispatch", "dependency"]
PS_PER_S = 10**12
LONGEST_PS = 10**5 * PS_PER_S  # a day: beyond it a rate is wrong, and 64-bit times would soon end


@dataclass(frozen=True, slots=True)
class UnitDemand:
    """What one instruction asks of a card when nothing else runs.

    `fixed_ps` holds its queue and no rate (dispatch, latency); then the amounts flow together for `alone_ps`. An
    amount is (resource kind, quantity): "tensor", "vector", "dma" in cycles of the whole unit at the card's clock;
    "hbm" and "host" in bytes. No amount needs more than its resource's capacity over `alone_ps`. `bound` says what
    held the instruction. `clock_fraction` of the card's clock is what it sustains under the card's power, and is in the
    times already.
    """

    fixed_ps: int
    alone_ps: int
    amounts: tuple[tuple[str, int], ...]
    bound: Bound
    clock_fraction: float = 1.0


@lru_cache(maxsize=64)
def capacities(card: CardSpec) -> Mapping[str, int]:
    """What each resource kind can give in a second: cycles of a unit, attainable bytes of HBM and host link."""
    per_s = {
        "tensor": card.clock_hz,
        "vector": card.clock_hz,
        "dma": card.clock_hz,
        "hbm": card.hbm.attainable_bytes_per_s,
        "host": card.host.bandwidth_bytes_per_s,
    }
    return MappingProxyType(per_s)


def ps_for(amount: int, per_s: int) -> int:
    """Picoseconds that `amount` takes at `per_s` a second, rounded up."""
    return -(-amount * PS_PER_S // per_s)


def demand_of(card: CardSpec, fixed_ps: int, alone_ps: int, bound: Bound, **amounts: int) -> UnitDemand:
    """A demand whose time alone covers every amount, and whose bound is the dispatch where that is longer."""
    capacity = capacities(card)
    asked = tuple((kind, amount) for kind, amount in amounts.items() if amount)
    alone_ps = max(alone_ps, *(ps_for(amount, capacity[kind]) for kind, amount in asked), 0)
    if alone_ps > LONGEST_PS:
        seconds = alone_ps // PS_PER_S
        raise ConfigError(f"one instruction would hold {card.name} for {seconds} s; check the card's rates")
    return UnitDemand(fixed_ps, alone_ps, asked, "dispatch" if fixed_ps > alone_ps else bound)
