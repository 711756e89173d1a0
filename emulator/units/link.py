"""The card's end of a message: its overhead, its HBM traffic and its reduction; the wires belong to the cluster."""

from __future__ import annotations

from ...isa.work import CollectiveShape, TransferShape, Work
from ..spec import CardSpec
from .rates import UnitDemand, demand_of


def link_demand(work: Work, card: CardSpec) -> UnitDemand:
    """What one end of a transfer or collective asks of its own card.

    The HBM amount is the Work's bytes (for a recv-reduce, the incoming and the present operand and the sum). A
    reduction demands the unit that the card's `link.reduces_on` names. Time on the wires is not in here.
    """
    cycles = {}
    if reduced := _reduced_bytes(work):
        cycles[card.link.reduces_on] = reduction_cycles(work, reduced, card)
    num_bytes = work.read_bytes + work.write_bytes
    return demand_of(card, card.dispatch.link_ps, 0, "link", hbm=num_bytes, **cycles)


def reduction_cycles(work: Work, num_bytes: int, card: CardSpec) -> int:
    """Cycles of the unit that performs reductions to add `num_bytes` bytes of arriving data to what is there."""
    if card.link.reduces_on == "dma":
        return -(-num_bytes // card.dma.bytes_per_cycle)
    itemsize = max(1, work.dtype.bits // 8) if work.dtype else 4
    return -(-num_bytes // (itemsize * card.vector.lanes_of(itemsize) * card.cores.count))


def _reduced_bytes(work: Work) -> int:
    """Bytes this card adds: all of a (recv-)reduce; of an all-reduce or reduce-scatter over n, n - 1 parts of n."""
    shape = work.shape
    if isinstance(shape, TransferShape):
        return shape.num_bytes if shape.reduces and not shape.sends else 0
    if isinstance(shape, CollectiveShape) and shape.kind in ("all_reduce", "reduce_scatter"):
        return sum(shape.part_bytes) - max(shape.part_bytes, default=0)
    if isinstance(shape, CollectiveShape) and shape.kind == "reduce":
        return sum(shape.part_bytes)
    return 0
