"""The tensor unit's latent attention: products that expand or absorb, and attention, one after the other."""

from __future__ import annotations

import math
import operator
from collections import Counter
from typing import NamedTuple

from ...isa.dtype import DType
from ...isa.errors import ProgramError
from ...isa.share import Seen
from ...isa.work import LatentShape, MatmulShape, Unit, Work
from ..spec import CardSpec
from .attention import AttentionLoad, attention_plan
from .rates import UnitDemand, demand_of, ps_for
from .tensor import bound_of, machine_of, matmul_plan

MERGE_OPS = 3  # of an element of two parts: it is scaled, and the other scaled and added
FP32_BYTES = 4


class _Part(NamedTuple):
    """One step of an instruction that is several: times alone in picoseconds, and cycles of each unit."""

    time_ps: float
    compute_ps: float
    flow_ps: float
    l2_ps: float
    tensor_cycles: int
    vector_cycles: int
    l2_bytes: int

    def times(self, count: int) -> _Part:
        """As many of these, one after the other."""
        times, amounts = (count * value for value in self[:4]), (count * value for value in self[4:])
        time_ps, compute_ps, flow_ps, l2_ps = times
        tensor_cycles, vector_cycles, l2_bytes = map(int, amounts)
        return _Part(time_ps, compute_ps, flow_ps, l2_ps, tensor_cycles, vector_cycles, l2_bytes)


class _Between(NamedTuple):
    """What stands between the products: bytes at once, and bytes that are written and read in all."""

    at_once: int = 0
    in_all: int = 0


def latent_demand(work: Work, shape: LatentShape, card: CardSpec) -> UnitDemand:
    """Products that expand keys and values or absorb them into queries, and attention, one after the other.

    What stands between the steps stays in L2 where that holds it, and makes a trip to HBM and back where not. Pieces
    are expanded, attended to and merged in turn. A query that chooses is a sequence of its own, of the tokens that it
    chose.
    """
    assert work.dtype is not None
    if len(shape.q_lens) != len(shape.kv_lens) or any(map(operator.gt, shape.q_lens, shape.kv_lens)):
        raise ProgramError(
            f"latent attention over {len(shape.q_lens)} query and {len(shape.kv_lens)} cache lengths: they must pair "
            "up, and the new tokens be in the cache"
        )
    fixed_ps = card.dispatch.tensor_ps + card.hbm.latency_ps
    num_bytes = work.read_bytes + work.write_bytes
    if not any(shape.q_lens):
        return demand_of(card, fixed_ps, 0, "hbm", hbm=num_bytes)
    expanded, absorbed = shape.by_order
    parts, between = _expanded_parts(shape, sum(queries for queries, _ in expanded), work.dtype, card)
    if absorbed:
        more, held = _absorbed_parts(shape, absorbed, work.dtype, card)
        parts, between = parts + more, _Between(between.at_once + held.at_once, between.in_all + held.in_all)
    num_bytes += _gathered_again(shape, work.dtype, card)
    if card.l2 is None:
        num_bytes = max(num_bytes, sum(part.l2_bytes for part in parts))
    elif between.at_once > card.l2.capacity_bytes:
        num_bytes += 2 * between.in_all
    time_ps = sum(part.time_ps for part in parts)
    compute_ps, flow_ps, l2_ps = (sum(times) for times in zip(*(part[1:4] for part in parts), strict=True))
    bound = bound_of(compute_ps, flow_ps, l2_ps, num_bytes, card)
    return demand_of(
        card,
        fixed_ps,
        math.ceil(max(time_ps, ps_for(num_bytes, card.hbm.attainable_bytes_per_s))),
        bound,
        tensor=sum(part.tensor_cycles for part in parts),
        vector=sum(part.vector_cycles for part in parts),
        hbm=num_bytes,
    )


def _expanded_parts(shape: LatentShape, queries: int, dtype: DType, card: CardSpec) -> tuple[list[_Part], _Between]:
    """For every piece the product that expands it and the attention to it; and the merges of what pieces give."""
    heads, made = shape.num_heads, shape.nope_dim + shape.v_dim
    dims = (shape.nope_dim + shape.rope_dim, shape.v_dim, made + shape.rope_dim)
    parts: list[_Part] = []
    largest = total = seen = 0
    for piece, count in Counter(shape.pieces).items():
        tokens = sum(stretch.tokens for stretch in piece)
        pairs = [pair for stretch in piece for pair in Seen(*stretch).causal_parts if pair[0]]
        steps = [_product_part(MatmulShape(tokens, heads * made, shape.latent_dim), dtype, card)]
        if pairs:
            steps.append(_attention_part(pairs, (1, heads), dims, dtype, card))
        parts += [step.times(count) for step in steps]
        largest, total = max(largest, tokens), total + count * tokens
        seen += count * sum(stretch.queries for stretch in piece)
    at_once, in_all = (dtype.bytes_of(rows * shape.expanded_row) for rows in (largest, total))
    merged = (seen - queries) * shape.part_row_bytes
    if merged:
        parts.append(_merge_part(merged, card, dtype))
        at_once, in_all = at_once + queries * shape.part_row_bytes, in_all + merged
    return parts, _Between(at_once, in_all)


def _absorbed_parts(
    shape: LatentShape, absorbed: list[tuple[int, int]], dtype: DType, card: CardSpec
) -> tuple[list[_Part], _Between]:
    """The product that absorbs keys into queries, the attention to latents, and the product that makes values."""
    queries, row, heads = sum(queries for queries, _ in absorbed), shape.latent_dim + shape.rope_dim, shape.num_heads
    gathers = [(1, min(shape.top_k, length - n)) for q, length in absorbed if shape.chooses(length) for n in range(q)]
    met = [pair for pair in absorbed if not shape.chooses(pair[1])] + gathers
    parts = [
        _product_part(MatmulShape(queries, shape.latent_dim, shape.nope_dim, heads), dtype, card),
        _attention_part(met, (heads, 1), (row, shape.latent_dim, row), dtype, card),
        _product_part(MatmulShape(queries, shape.v_dim, shape.latent_dim, heads), dtype, card),
    ]
    held = dtype.bytes_of(queries * shape.absorbed_row)
    return parts, _Between(held, held)


def _merge_part(num_bytes: int, card: CardSpec, dtype: DType) -> _Part:
    """Parts of so many bytes added by the lanes to those before them, in L2."""
    machine = machine_of(card, dtype)
    cycles = -(-MERGE_OPS * (num_bytes // FP32_BYTES) // (card.cores.count * card.vector.lanes_of(FP32_BYTES)))
    lanes_ps, l2_ps = cycles * machine.ps_per_cycle, 3 * num_bytes * machine.ps_per_l2_byte
    return _Part(max(lanes_ps, l2_ps), 0.0, lanes_ps, l2_ps, 0, cycles, 3 * num_bytes)


def _gathered_again(shape: LatentShape, dtype: DType, card: CardSpec) -> int:
    """Bytes that queries gather from HBM beside each row's first reading: of sequences that L2 cannot hold."""
    row_bytes, again = dtype.bytes_of(shape.latent_dim + shape.rope_dim), 0
    for queries, length in zip(shape.q_lens, shape.kv_lens, strict=True):
        if shape.chooses(length) and (card.l2 is None or length * row_bytes > card.l2.capacity_bytes):
            again += (shape.pairs(queries, length) - shape.rows(queries, length)) * row_bytes
    return again


def _product_part(shape: MatmulShape, dtype: DType, card: CardSpec) -> _Part:
    """A product whose operands and result lie in L2."""
    out_bytes = dtype.bytes_of(shape.m * shape.n * shape.batch)
    plan = matmul_plan(Work(Unit.TENSOR, dtype=dtype, write_bytes=out_bytes, shape=shape), card, from_hbm=False)
    machine = machine_of(card, dtype)
    compute_ps = 0.0 if plan.waits else plan.flow_ps
    l2_ps = plan.l2_bytes * machine.ps_per_l2_byte
    return _Part(plan.time_ps, compute_ps, plan.flow_ps, l2_ps, plan.tensor_cycles, 0, plan.l2_bytes)


def _attention_part(
    pairs: list[tuple[int, int]], heads: tuple[int, int], dims: tuple[int, int, int], dtype: DType, card: CardSpec
) -> _Part:
    """Attention of (new, cached) tokens, by `heads` (of a group, of the cache), from its own launch on.

    `dims` are the elements of a key, of a value, and of what is read for both: fewer where values are part of keys.
    """
    q_lens, kv_lens = zip(*pairs, strict=True)
    plan = attention_plan(
        AttentionLoad(q_lens, kv_lens, *heads, *dims[:2], row_bytes=dtype.bytes_of(dims[2]), appends=False), dtype, card
    )
    l2_ps = plan.l2_bytes * machine_of(card, dtype).ps_per_l2_byte
    plan = plan.beside(0, l2_ps)
    compute_ps = 0.0 if plan.loads > 0.5 else plan.flow_ps
    return _Part(
        plan.whole_ps(0, l2_ps), compute_ps, plan.flow_ps, l2_ps, plan.tensor_cycles, plan.vector_cycles, plan.l2_bytes
    )
