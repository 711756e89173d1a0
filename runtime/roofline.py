"""Roofline: what a card gives an instruction at its operations a byte, from the card's own rates."""

from __future__ import annotations

from typing import NamedTuple

from ..emulator.spec import CardSpec
from ..isa.dtype import DType
from ..isa.work import Unit


class Ceiling(NamedTuple):
    """Operations and bytes of device memory that a card gives in a second at some operations a byte."""

    ops_per_s: float
    bytes_per_s: float


def peak_ops_per_s(card: CardSpec, unit: Unit, dtype: DType | None) -> int | None:
    """What all cores' units of a kind do in a second at the card's clock; None where that is no number."""
    if dtype is None:
        return None
    if unit is Unit.TENSOR:
        return card.peak_ops_per_s(dtype) if dtype.name in card.tensor.rate else None
    if unit is Unit.VECTOR:
        return int(card.cores.count * card.vector.lanes_of(-(-dtype.bits // 8)) * card.clock_hz)
    return None


def ceiling(card: CardSpec, unit: Unit, dtype: DType | None, ops: float, num_bytes: float) -> Ceiling | None:
    """What the card gives work of so many operations and bytes; None for what neither computes nor moves."""
    memory = card.hbm.attainable_bytes_per_s
    peak = peak_ops_per_s(card, unit, dtype)
    if not ops or peak is None:
        return Ceiling(0.0, memory) if num_bytes and unit in (Unit.TENSOR, Unit.VECTOR, Unit.DMA) else None
    if not num_bytes:
        return Ceiling(peak, 0.0)
    ops_per_s = min(peak, memory * ops / num_bytes)
    return Ceiling(ops_per_s, ops_per_s * num_bytes / ops)
