"""The tensor unit: matrix products and attention as tiles over the cores."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...isa.dtype import DType
from ...isa.errors import ConfigError, ProgramError, UnsupportedError
from ...isa.sparse import CHOICE_OPS, SCORE_OPS
from ...isa.work import AttentionShape, GroupedShape, IndexShape, LatentShape, MatmulShape, Unit, Work
from ..spec import CardSpec
from .rates import PS_PER_S, Bound, UnitDemand, demand_of, ps_for
from .tiles import SLABS, TILES, schedule, search

SCORE_BYTES = 4  # index scores are fp32
MOST_PRODUCTS = 1 << 56  # beyond it the 64-bit byte counts of a tile schedule could overflow
_Geometry = MatmulShape | GroupedShape | AttentionShape | LatentShape | IndexShape


class TilePlan(NamedTuple):
    """How a matrix product is dealt over the cores: its tile, K slab and parts of K, and what that costs.

    `tensor_cycles` are the array's own, over all waves; `flow_cycles` include waiting for operands; `exposed_cycles`
    are the first load, the last store and the sum over parts, which overlap nothing.
    """

    time_ps: float
    tile_rows: int
    tile_columns: int
    slab: int
    parts: int
    waves: int
    tensor_cycles: int
    flow_cycles: int
    l2_bytes: int
    exposed_cycles: int


class _Machine(NamedTuple):
    """A card as the Numba schedules read it, for one element type."""

    core: np.ndarray[Any, Any]
    ps_per_cycle: float
    ps_per_l2_byte: float


@lru_cache(maxsize=256)
def machine_of(card: CardSpec, dtype: DType) -> _Machine:
    if dtype.name not in card.tensor.rate:
        native = ", ".join(card.native_dtypes(Unit.TENSOR))
        raise UnsupportedError(
            f"{card.name} has no tensor unit for {dtype.name}; native: {native}. Cast the operands, or give the card a "
            f"tensor.rate.{dtype.name}"
        )
    depth, step = card.tensor.steps(dtype.name)
    core = [
        card.tensor.rows, card.tensor.columns, depth, step, card.tensor.fill_cycles, card.tensor.slab_cycles,
        card.cores.count, card.cores.load_bytes_per_cycle, card.sram_bytes("operand"), card.sram_bytes("accumulator"),
        card.cores.multicast, card.vector.lanes_of(4), card.vector.sync_cycles,
        card.vector.exponentials_per_cycle,
    ]  # fmt: skip
    l2_bytes_per_s = card.l2.bandwidth_bytes_per_s if card.l2 else card.hbm.attainable_bytes_per_s
    return _Machine(np.array(core, dtype=np.int64), PS_PER_S / card.clock_hz, PS_PER_S / l2_bytes_per_s)


def matmul_plan(work: Work, card: CardSpec, *, from_hbm: bool = True) -> TilePlan:
    """The tile schedule of one or several matrix products; ConfigError when the card's SRAM holds no tile at all.

    Without `from_hbm` operands and result lie in L2, and HBM bounds nothing.
    """
    shape = work.shape
    assert isinstance(shape, MatmulShape | GroupedShape) and work.dtype is not None, f"{work} is no matrix product"
    rows = _rows(shape)
    if sum(rows) * shape.n * shape.k > MOST_PRODUCTS:
        raise UnsupportedError(
            f"{shape} has more than 2^{MOST_PRODUCTS.bit_length() - 1} products; split the instruction"
        )
    machine = machine_of(card, work.dtype)
    hbm_bytes = work.read_bytes + work.write_bytes if from_hbm else 0
    hbm_ps = float(ps_for(hbm_bytes, card.hbm.attainable_bytes_per_s))
    found = search(
        np.array(rows, dtype=np.int64), shape.n, shape.k, work.dtype.bits, work.write_bytes, hbm_ps,
        machine.ps_per_cycle, machine.ps_per_l2_byte, machine.core, TILES, SLABS,
    )  # fmt: skip
    if not found[1]:
        raise ConfigError(
            f"the sram of {card.name} holds no {TILES[0][0]} x {TILES[0][1]} x {SLABS[0]} tile of {work.dtype.name} "
            "twice over; raise the capacity_bytes of its operand and accumulator levels"
        )
    return TilePlan(*found)


def tensor_demand(work: Work, card: CardSpec) -> UnitDemand:
    """What a matrix product or an attention asks of a card; ProgramError for any other geometry."""
    if work.dtype is None or not isinstance(work.shape, _Geometry):
        raise ProgramError(
            f"a tensor instruction needs a dtype and a matmul or attention shape, not {work.dtype} and {work.shape}"
        )
    fixed_ps = card.dispatch.tensor_ps + card.hbm.latency_ps
    num_bytes = work.read_bytes + work.write_bytes
    if _is_empty(work.shape):
        return demand_of(card, fixed_ps, 0, "hbm", hbm=num_bytes)
    if isinstance(work.shape, AttentionShape):
        return _attention_demand(work, work.shape, card, fixed_ps)
    if isinstance(work.shape, LatentShape):
        return _latent_demand(work, work.shape, card, fixed_ps)
    if isinstance(work.shape, IndexShape):
        return _index_demand(work, work.shape, card, fixed_ps)
    plan = matmul_plan(work, card)
    machine = machine_of(card, work.dtype)
    if card.l2 is None:
        num_bytes = max(num_bytes, plan.l2_bytes)
    compute_ps, flow_ps = plan.tensor_cycles * machine.ps_per_cycle, plan.flow_cycles * machine.ps_per_cycle
    bound = _bound(compute_ps, flow_ps, plan.l2_bytes * machine.ps_per_l2_byte, num_bytes, card)
    return demand_of(card, fixed_ps, math.ceil(plan.time_ps), bound, tensor=plan.tensor_cycles, hbm=num_bytes)


def _rows(shape: MatmulShape | GroupedShape) -> tuple[int, ...]:
    """Rows of each product."""
    return (shape.m,) * shape.batch if isinstance(shape, MatmulShape) else shape.rows


def _is_empty(shape: _Geometry) -> bool:
    if isinstance(shape, IndexShape):
        return not shape.scored
    if isinstance(shape, MatmulShape | GroupedShape):
        return not (sum(_rows(shape)) and shape.n and shape.k)
    return not any(shape.q_lens)


def _bound(compute_ps: float, flow_ps: float, l2_ps: float, hbm_bytes: int, card: CardSpec) -> Bound:
    hbm_ps = ps_for(hbm_bytes, card.hbm.attainable_bytes_per_s)
    longest = max(flow_ps, l2_ps, hbm_ps)
    if longest == hbm_ps and hbm_ps > compute_ps:
        return "hbm"
    return "compute" if longest == compute_ps else "sram"


def _attention_demand(work: Work, shape: AttentionShape, card: CardSpec, fixed_ps: int) -> UnitDemand:
    assert work.dtype is not None
    if len(shape.q_lens) != len(shape.kv_lens) or shape.num_heads % max(1, shape.num_kv_heads):
        raise ProgramError(
            f"attention over {len(shape.q_lens)} query and {len(shape.kv_lens)} cache lengths, {shape.num_heads} heads "
            f"on {shape.num_kv_heads} kv heads: the lengths must pair up and the kv heads divide the heads"
        )
    machine = machine_of(card, work.dtype)
    num_bytes = work.read_bytes + work.write_bytes
    hbm_ps = float(ps_for(num_bytes, card.hbm.attainable_bytes_per_s))
    dims = (shape.qk_dim, shape.v_dim, shape.qk_dim + shape.v_dim)
    time_ps, tensor_cycles, vector_cycles, flow_cycles, l2_bytes, waits = schedule(
        np.array(shape.q_lens, dtype=np.int64), np.array(shape.kv_lens, dtype=np.int64),
        shape.num_heads // shape.num_kv_heads, shape.num_kv_heads, dims,
        (shape.window, shape.chunk, int(shape.soft_capped)),
        work.dtype.bits, hbm_ps, machine.ps_per_cycle, machine.ps_per_l2_byte, machine.core,
    )  # fmt: skip
    if card.l2 is None:
        num_bytes = max(num_bytes, l2_bytes)
    flow_ps = flow_cycles * machine.ps_per_cycle
    compute_ps = 0.0 if waits else flow_ps
    bound = _bound(compute_ps, flow_ps, l2_bytes * machine.ps_per_l2_byte, num_bytes, card)
    return demand_of(
        card, fixed_ps, math.ceil(time_ps), bound, tensor=tensor_cycles, vector=vector_cycles, hbm=num_bytes
    )


class _Part(NamedTuple):
    """One step of an instruction that is several: times alone in picoseconds, and cycles of each unit."""

    time_ps: float
    compute_ps: float
    flow_ps: float
    l2_ps: float
    tensor_cycles: int
    vector_cycles: int
    l2_bytes: int


def _latent_demand(work: Work, shape: LatentShape, card: CardSpec, fixed_ps: int) -> UnitDemand:
    """Products that expand keys and values or absorb them into queries, and attention, one after the other.

    What stands between the steps stays in L2 where that holds it, and makes a trip to HBM and back where not. A query
    that chooses is a sequence of its own, of the tokens that it chose.
    """
    assert work.dtype is not None
    if len(shape.q_lens) != len(shape.kv_lens) or any(map(operator.gt, shape.q_lens, shape.kv_lens)):
        raise ProgramError(
            f"latent attention over {len(shape.q_lens)} query and {len(shape.kv_lens)} cache lengths: they must pair "
            "up, and the new tokens be in the cache"
        )
    pairs = list(zip(shape.q_lens, shape.kv_lens, strict=True))
    expanded = [pair for pair in pairs if pair[0] and shape.expands(*pair)]
    absorbed = [pair for pair in pairs if pair[0] and not shape.expands(*pair)]
    gathers = [(1, min(shape.top_k, length - n)) for q, length in absorbed if shape.chooses(length) for n in range(q)]
    heads, made = shape.num_heads, shape.nope_dim + shape.v_dim
    parts: list[_Part] = []
    between = 0  # elements
    if expanded:
        tokens = sum(length for _, length in expanded)
        between += tokens * heads * made
        dims = (shape.nope_dim + shape.rope_dim, shape.v_dim, made + shape.rope_dim)
        parts += [
            _product_part(MatmulShape(tokens, heads * made, shape.latent_dim), work.dtype, card),
            _attention_part(expanded, 1, heads, dims, work.dtype, card),
        ]
    if absorbed:
        queries, row = sum(queries for queries, _ in absorbed), shape.latent_dim + shape.rope_dim
        between += 2 * queries * heads * shape.latent_dim
        met = [pair for pair in absorbed if not shape.chooses(pair[1])] + gathers
        parts += [
            _product_part(MatmulShape(queries, shape.latent_dim, shape.nope_dim, heads), work.dtype, card),
            _attention_part(met, heads, 1, (row, shape.latent_dim, row), work.dtype, card),
            _product_part(MatmulShape(queries, shape.v_dim, shape.latent_dim, heads), work.dtype, card),
        ]
    num_bytes = work.read_bytes + work.write_bytes + _gathered_again(shape, work.dtype, card)
    if card.l2 is None:
        num_bytes = max(num_bytes, sum(part.l2_bytes for part in parts))
    elif work.dtype.bytes_of(between) > card.l2.capacity_bytes:
        num_bytes += 2 * work.dtype.bytes_of(between)
    time_ps = sum(part.time_ps for part in parts)
    compute_ps, flow_ps, l2_ps = (sum(times) for times in zip(*(part[1:4] for part in parts), strict=True))
    bound = _bound(compute_ps, flow_ps, l2_ps, num_bytes, card)
    return demand_of(
        card,
        fixed_ps,
        math.ceil(max(time_ps, ps_for(num_bytes, card.hbm.attainable_bytes_per_s))),
        bound,
        tensor=sum(part.tensor_cycles for part in parts),
        vector=sum(part.vector_cycles for part in parts),
        hbm=num_bytes,
    )


def _gathered_again(shape: LatentShape, dtype: DType, card: CardSpec) -> int:
    """Bytes that queries gather from HBM beside each row's first reading: of sequences that L2 cannot hold."""
    row_bytes, again = dtype.bytes_of(shape.latent_dim + shape.rope_dim), 0
    for queries, length in zip(shape.q_lens, shape.kv_lens, strict=True):
        if shape.chooses(length) and (card.l2 is None or length * row_bytes > card.l2.capacity_bytes):
            again += (shape.pairs(queries, length) - shape.rows(queries, length)) * row_bytes
    return again


def _index_demand(work: Work, shape: IndexShape, card: CardSpec, fixed_ps: int) -> UnitDemand:
    """Products of queries and index keys, summed over heads by the lanes meanwhile; then the choice among the scores.

    Sequences with as many choosing queries are one product; its keys are those a query sees on average. The scores, in
    fp32, are written and read in L2, or in HBM where that cannot hold them.
    """
    assert work.dtype is not None
    machine = machine_of(card, work.dtype)
    alike: dict[int, list[int]] = {}
    for queries, pairs, _ in shape.scored:
        alike.setdefault(queries, []).append(-(-pairs // queries))
    total = sum(pairs for _, pairs, _ in shape.scored)
    plans = [
        matmul_plan(
            Work(Unit.TENSOR, dtype=work.dtype, write_bytes=SCORE_BYTES * queries * sum(keys),
                 shape=GroupedShape(tuple(keys), queries * shape.num_heads, shape.dim)),
            card,
            from_hbm=False,
        )
        for queries, keys in alike.items()
    ]  # fmt: skip
    lanes = card.cores.count * card.vector.lanes_of(SCORE_BYTES)
    summing, choosing = -(-SCORE_OPS * total * shape.num_heads // lanes), -(-CHOICE_OPS * total // lanes)
    products_ps, summing_ps = sum(plan.time_ps for plan in plans), summing * machine.ps_per_cycle
    choosing_ps = max(choosing * machine.ps_per_cycle, SCORE_BYTES * total * machine.ps_per_l2_byte)
    num_bytes = work.read_bytes + work.write_bytes
    if card.l2 is None or SCORE_BYTES * total > card.l2.capacity_bytes:
        num_bytes += 2 * SCORE_BYTES * total
    compute_ps = max(sum(plan.tensor_cycles for plan in plans), summing) * machine.ps_per_cycle
    flow_ps = max(sum(plan.flow_cycles for plan in plans) * machine.ps_per_cycle, summing_ps)
    bound = _bound(compute_ps, flow_ps, sum(plan.l2_bytes for plan in plans) * machine.ps_per_l2_byte, num_bytes, card)
    return demand_of(
        card,
        fixed_ps,
        math.ceil(max(products_ps, summing_ps) + choosing_ps),
        bound,
        tensor=sum(plan.tensor_cycles for plan in plans),
        vector=summing + choosing,
        hbm=num_bytes,
    )


def _product_part(shape: MatmulShape, dtype: DType, card: CardSpec) -> _Part:
    """A product whose operands and result lie in L2."""
    out_bytes = dtype.bytes_of(shape.m * shape.n * shape.batch)
    plan = matmul_plan(Work(Unit.TENSOR, dtype=dtype, write_bytes=out_bytes, shape=shape), card, from_hbm=False)
    machine = machine_of(card, dtype)
    compute_ps, flow_ps = plan.tensor_cycles * machine.ps_per_cycle, plan.flow_cycles * machine.ps_per_cycle
    l2_ps = plan.l2_bytes * machine.ps_per_l2_byte
    return _Part(plan.time_ps, compute_ps, flow_ps, l2_ps, plan.tensor_cycles, 0, plan.l2_bytes)


def _attention_part(
    pairs: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    dims: tuple[int, int, int],
    dtype: DType,
    card: CardSpec,
) -> _Part:
    """Attention of (new, cached) tokens whose operands lie in L2."""
    machine = machine_of(card, dtype)
    q_lens, kv_lens = (np.array(lengths, dtype=np.int64) for lengths in zip(*pairs, strict=True))
    time_ps, tensor_cycles, vector_cycles, flow_cycles, l2_bytes, waits = schedule(
        q_lens, kv_lens, group, kv_heads, dims, (0, 0, 0), dtype.bits, 0.0,
        machine.ps_per_cycle, machine.ps_per_l2_byte, machine.core,
    )  # fmt: skip
    flow_ps = flow_cycles * machine.ps_per_cycle
    compute_ps = 0.0 if waits else flow_ps
    return _Part(
        time_ps, compute_ps, flow_ps, l2_bytes * machine.ps_per_l2_byte, tensor_cycles, vector_cycles, l2_bytes
    )
