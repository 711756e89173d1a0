"""The clock that an instruction sustains when it repeats: the highest at which the card draws no more than its TDP."""

from __future__ import annotations

import math
from dataclasses import replace

from ...isa.dtype import DType
from ...isa.work import Work
from ..spec import CardSpec
from .rates import UnitDemand

NEWTON_STEPS = 30
CLOSE = 1e-12


def clock_fraction(card: CardSpec, dtype: DType, ops: int, hbm_bytes: int, alone_ps: float, energy: float) -> float:
    """The part of its clock that the card sustains under `ops` operations and `hbm_bytes` every `alone_ps`, at most 1.

    At the fraction f of the clock the instruction takes alone_ps / f, its operations `energy` times the stated joules
    times f^voltage_exponent, and its bytes the stated joules; with what the card draws idle that stays within
    `tdp_w`. 1 where the card does not state these numbers; a byte of HBM that is not stated takes nothing.
    """
    power, joules = card.power, card.power.energy_j_per_op.get(dtype.name)
    if power.tdp_w is None or power.idle_w is None or joules is None or not alone_ps:
        return 1.0
    allowed = (power.tdp_w - power.idle_w) * alone_ps / 1e12
    computed, moved = joules * energy * ops, (power.energy_j_per_hbm_byte or 0.0) * hbm_bytes
    if computed + moved <= allowed or allowed <= 0:
        return 1.0
    return _root(computed, (power.voltage_exponent or 0.0) + 1, moved, allowed)


def at_sustained_clock(work: Work, card: CardSpec, asked: UnitDemand) -> UnitDemand:
    """What an instruction asks at the clock that the card sustains under its operations and bytes when it repeats."""
    if work.dtype is None:
        return asked
    hbm_bytes = dict(asked.amounts).get("hbm", 0)
    fraction = clock_fraction(card, work.dtype, work.ops, hbm_bytes, asked.alone_ps, 1.0)
    if fraction == 1.0:
        return asked
    return replace(asked, alone_ps=math.ceil(asked.alone_ps / fraction), clock_fraction=fraction)


def _root(a: float, exponent: float, b: float, c: float) -> float:
    """The f in (0, 1] at which a f^exponent + b f = c, where that is more than c at 1: Newton's steps, from 1 down."""
    at = 1.0
    for _ in range(NEWTON_STEPS):
        step = (a * at**exponent + b * at - c) / (a * exponent * at ** (exponent - 1) + b)
        at -= step
        if step <= CLOSE * at:
            break
    return at
