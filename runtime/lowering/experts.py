"""Experts on one rank: those of the tokens it holds anyway, or those of tokens that travel to their experts' cards."""

from __future__ import annotations

from dataclasses import dataclass

from ...isa.dispatch import CHOOSE_REPLICA, COPY_CHOICES, REGROUP, TALLY
from ...isa.dtype import FP32, INT32
from ...isa.experts import COMBINE, GROUPED_GATED, GROUPED_MATMUL, PERMUTE
from ...isa.link import ALL_TO_ALL
from ...isa.operands import Ref
from ...isa.program import Space
from ...isa.scaling import SCALE_ROUTED
from ...isa.situ import GROUPED_SITU_GATED
from ...models.blocks import Experts, Moe, Situ
from ..layout import EXCHANGE, ExpertShare
from .builder import BlockBuilder, buffer
from .stage import Stage
from .standing import SHIFT, expert_places

SENT, RECEIVED, LOCAL = "sent", "received", "local"  # what an exchange moves, and how many rows each own expert gets

Loads = tuple[
    Ref, str, int | str, int
]  # counts or slots, their extent, where experts start in it, and how many there are


def expert_extent(name: str) -> str:
    """The extent that holds how many rows each expert of a layer gets."""
    return f"{name}.experts"


def exchange_extent(name: str, what: str) -> str:
    """The extent of a layer's exchange: rows sent to each member, received from each, or of each own expert."""
    return f"{name}.{what}"


def shares_extents(experts: int) -> tuple[str, str]:
    """The extents that say how many of so many experts every member has, and for every member how many are here."""
    return f"experts{experts}.shares", f"experts{experts}.here"


def sent_extent(top_k: int) -> str:
    """The scalar extent of the most rows that a rank sends."""
    return f"sent.x{top_k}"


def received_extent(top_k: int, experts: int) -> str:
    """The scalar extent of the most rows that may arrive at a rank: every token's, as far as it has experts for it."""
    return f"received.x{top_k}of{experts}"


@dataclass(frozen=True)
class Chosen:
    """What tokens chose: ids [tokens, top_k] of `total` experts, or of slots for them, with counts and their extent."""

    ids: Ref
    counts: Ref
    extent: str
    total: int
    weights: Ref = Ref("expert_weights")


def slots_extent(name: str) -> str:
    """The extent that holds how many rows each slot of a layer gets, where experts stand in several."""
    return f"{name}.slots"


def choose_replicas(stage: Stage, block: BlockBuilder, moe: Moe, name: str, own: ExpertShare) -> Chosen:
    """The slots that stand for the chosen experts."""
    experts, most = moe.experts.count, stage.options.most_copies
    total, extent = stage.layout.slots(experts), block.extent("slot_loads", slots_extent(name))
    ids = block.local("slot_ids", INT32, *block.locals["expert_ids"].shape)
    counts = block.local("slot_counts", INT32, own.parts * total)
    table = block.param("replicas", buffer(f"{name}.replicas", Space.TABLE, INT32, experts, 1 + most))
    # so that few tokens on many cards do not all take the first
    shift = stage.own(SHIFT if stage.layout.holders > 1 else 0)
    block.emit(CHOOSE_REPLICA(ids, counts, Ref("expert_ids"), table, extent, own.parts, total, shift))
    return Chosen(ids, counts, extent, total)


def cuts_extent(name: str) -> str:
    """The extent that holds how many rows each cut of each expert gets, where the cuts span holders."""
    return f"{name}.cuts"


def copy_choices(stage: Stage, block: BlockBuilder, name: str, chosen: Chosen) -> Chosen:
    """Every choice once for each group of cards that holds cuts of the chosen expert."""
    cuts, (tokens, top_k) = stage.layout.cuts, block.locals[chosen.ids.buffer].shape
    assert isinstance(top_k, int), "choices are counted"
    ids = block.local("cut_ids", INT32, tokens, top_k * cuts)
    weights = block.local("cut_weights", FP32, tokens, top_k * cuts)
    counts = block.local("cut_counts", INT32, chosen.total * cuts)
    table = block.param("cuts", buffer(f"{name}.cuts", Space.TABLE, INT32, chosen.total, cuts))
    extent = block.extent("cut_loads", cuts_extent(name))
    block.emit(COPY_CHOICES(ids, weights, counts, chosen.ids, chosen.weights, table, extent))
    return Chosen(ids, counts, extent, chosen.total * cuts, weights)


def lower_experts(
    stage: Stage, block: BlockBuilder, moe: Moe, name: str, x: Ref, out: Ref, chosen: Chosen, own: ExpertShare
) -> None:
    """out = this rank's part of the weighted sum of the experts' outputs, to be summed over its holder's ranks."""
    lower = _travelling if own.travels else _local
    lower(stage, block, moe, name, x, out, chosen, own)


def _local(
    stage: Stage, block: BlockBuilder, moe: Moe, name: str, x: Ref, out: Ref, chosen: Chosen, own: ExpertShare
) -> None:
    """out = the weighted sum of this rank's experts' outputs.

    Every rank of the tensor-parallel group holds all tokens, so each computes its own experts' rows (or its columns of
    all experts) and the sum over the group combines them: no token travels.
    """
    rows, counts, slots = stage.routed_rows(moe.router.top_k), chosen.counts, _slots(block, chosen)
    first, part, at = map(stage.own, expert_places(stage.layout, chosen.total))
    extent = chosen.extent
    permuted = block.local("permuted", stage.options.dtype, rows, moe.experts.hidden_size)
    block.emit(PERMUTE(permuted, slots, x, chosen.ids, extent, first, own.count, part, own.parts))
    by = _weights(block, moe, chosen, permuted, (slots, extent, at, own.count))
    result = _products(stage, block, moe.experts, name, permuted, rows, (counts, extent, at, own.count))
    block.emit(COMBINE(out, result, slots, by, extent, at, own.count))


def _travelling(
    stage: Stage, block: BlockBuilder, moe: Moe, name: str, x: Ref, out: Ref, chosen: Chosen, own: ExpertShare
) -> None:
    """out = the weighted sum over this rank's part of its tokens, whose rows go to their experts' cards and come back.

    Counts are exchanged first, then rows; what arrives is sorted by expert, and sorted back before it returns. Ranks
    that hold another cut of the same experts exchange the same rows; the sum over the tensor-parallel group adds them.
    """
    dtype, hidden, experts = stage.options.dtype, moe.experts.hidden_size, chosen.total
    members, group = stage.layout.exchange, stage.group(EXCHANGE if stage.layout.cuts > 1 else "ep")
    top_k, extent = moe.router.top_k, chosen.extent
    sent, received = (stage.program.scalar(name) for name in (sent_extent(top_k), received_extent(top_k, experts)))
    slots = _slots(block, chosen)
    first, part, at = map(stage.own, expert_places(stage.layout, experts))
    leaving = block.local("leaving", dtype, sent, hidden)
    block.emit(PERMUTE(leaving, slots, x, chosen.ids, extent, first, experts, part, own.parts))
    by = _weights(block, moe, chosen, leaving, (slots, extent, at, experts))
    shares, here = (
        block.extent(f"expert_{word}", bound)
        for word, bound in zip(("shares", "here"), shares_extents(experts), strict=True)
    )
    arriving = block.local("arriving", INT32, members * own.count)
    counts = Ref(chosen.counts.buffer, 0, experts, at if isinstance(at, str) else None)
    block.emit(ALL_TO_ALL(arriving, counts, group, shares, here))
    rows = block.local("expert_rows", INT32, own.count)
    to, of, local = (block.extent(word, exchange_extent(name, word)) for word in (SENT, RECEIVED, LOCAL))
    block.emit(TALLY(rows, counts, arriving, shares, to, of, local, members, own.count))
    arrived = block.local("arrived", dtype, received, hidden)
    block.emit(ALL_TO_ALL(arrived, leaving, group, to, of))
    sorted_ = block.local("permuted", dtype, received, hidden)
    block.emit(REGROUP(sorted_, arrived, arriving, local, members, own.count, False))
    result = _products(stage, block, moe.experts, name, sorted_, received, (rows, local, 0, own.count))
    block.emit(REGROUP(arrived, result, arriving, local, members, own.count, True))
    block.emit(ALL_TO_ALL(leaving, arrived, group, of, to))
    block.emit(COMBINE(out, leaving, slots, by, extent, at, experts))


def _slots(block: BlockBuilder, chosen: Chosen) -> Ref:
    """Where each choice's row stands."""
    return block.local("expert_slots", INT32, *block.locals[chosen.ids.buffer].shape)


def _weights(block: BlockBuilder, moe: Moe, chosen: Chosen, rows: Ref, loads: Loads) -> Ref | None:
    """What outputs count when they are summed; None where the rows that go to the experts are scaled by it instead."""
    if not moe.router.scales_input:
        return chosen.weights
    slots, extent, at, count = loads
    block.emit(SCALE_ROUTED(rows, slots, chosen.weights, extent, at, count))
    return None


def _products(
    stage: Stage, block: BlockBuilder, experts: Experts, name: str, permuted: Ref, rows: str, loads: Loads
) -> Ref:
    """down(activation(gate_up(permuted))) of rows that stand expert by expert."""
    dtype, hidden = stage.options.dtype, experts.hidden_size
    counts, extent, at, count = loads
    weights = stage.weights.experts(f"{name}.experts", experts)
    width = weights.down.type.shape[2]
    assert isinstance(width, int), "weight shapes are numbers"
    gate_up = block.local("expert_gate_up", dtype, rows, 2 * width)
    w = stage.weight(block, "experts_gate_up", weights.gate_up)
    b = stage.optional(block, "experts_gate_up_bias", weights.gate_up_bias)
    block.emit(GROUPED_MATMUL(gate_up, permuted, w, b, counts, extent, at))
    activated = block.local("expert_activated", dtype, rows, width)
    places = (activated, gate_up, counts, extent, at, count)
    if isinstance(experts.activation, Situ):
        block.emit(GROUPED_SITU_GATED(*places, experts.activation.beta, experts.activation.linear_beta))
    else:
        block.emit(GROUPED_GATED(*places, experts.activation))
    result = block.local("expert_out", dtype, rows, hidden)
    w = stage.weight(block, "experts_down", weights.down)
    b = stage.optional(block, "experts_down_bias", weights.down_bias)
    block.emit(GROUPED_MATMUL(result, activated, w, b, counts, extent, at))
    return result
