"""The tensor unit's attention: tiles of queries over the cache, as a library of kernels is tuned to run them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...isa.dtype import DType
from ...isa.errors import ProgramError
from ...isa.tensor import touched
from ...isa.work import AttentionShape, Work
from ..card_parts import CardPart
from ..spec import CardSpec
from .attention_tiles import DECODED, schedule
from .rates import PS_PER_S, UnitDemand, demand_of, ps_for
from .sustained import clock_fraction
from .tensor import bound_of, machine_of

PS_PER_NS = 1000
Floats = np.ndarray[Any, np.dtype[np.float64]]


class AttentionLoad(NamedTuple):
    """Attention of new tokens to cached ones, a length of each a sequence: what tiles are cut from.

    Each of `kv_heads` heads of the cache serves `group` query heads with keys of `qk_dim` and values of `v_dim`, and
    has `row_bytes` a token, of which no more than `cache_bytes` in all come from HBM. `appends` says whether
    the kernel takes what each new token costs beside.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    group: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    row_bytes: float
    cache_bytes: float = math.inf
    window: int = 0
    chunk: int = 0
    soft_capped: bool = False
    appends: bool = True

    @property
    def decoded(self) -> AttentionLoad:
        """The last new tokens of each sequence alone, as many as a decode kernel takes; itself where these are all."""
        if max(self.q_lens) <= DECODED:
            return self
        return self._replace(q_lens=tuple([min(q_len, DECODED) for q_len in self.q_lens]))


class AttentionPlan(NamedTuple):
    """How long attention holds the cores, in picoseconds, and why; cycles are shared by all cores.

    `launch_ps` comes first, and holds no unit. `flow_ps` is the cores' own time, or, where caches are cut, `cut_ps` and
    `combine_ps` for the sum over parts; `hbm_ps` is what the cache takes beyond what bandwidth alone asks. `loads` is
    the share of the flow that waits for operands.
    """

    launch_ps: int
    flow_ps: float
    cut_ps: float
    combine_ps: float
    hbm_ps: float
    tensor_cycles: int
    vector_cycles: int
    l2_bytes: int
    loads: float

    def beside(self, hbm_ps: float, l2_ps: float) -> AttentionPlan:
        """The plan beside so much traffic of HBM and of L2, its flow that of the faster way."""
        floor_ps = max(hbm_ps + self.hbm_ps, l2_ps)
        if max(self.flow_ps, floor_ps) <= max(self.cut_ps, floor_ps) + self.combine_ps:
            return self._replace(cut_ps=self.flow_ps, combine_ps=0.0)
        return self._replace(flow_ps=self.cut_ps)

    def time_ps(self, hbm_ps: float, l2_ps: float) -> float:
        """Time alone beside so much traffic of HBM and of L2, once it is known which way is the faster."""
        return max(self.flow_ps, hbm_ps + self.hbm_ps, l2_ps) + self.combine_ps

    def whole_ps(self, hbm_ps: float, l2_ps: float) -> float:
        """The same with its launch."""
        return self.launch_ps + self.time_ps(hbm_ps, l2_ps)


class _Machine(NamedTuple):
    core: Floats
    prefill: Floats
    decode: Floats


@lru_cache(maxsize=256)
def _machine_of(card: CardSpec, dtype: DType) -> _Machine:
    depth, step = card.tensor.steps(dtype.name)
    core = [
        card.tensor.rows, card.tensor.columns, depth, step, card.tensor.fill_cycles, card.tensor.slab_cycles,
        card.cores.count, card.cores.load_bytes_per_cycle, card.vector.lanes_of(4),
        card.vector.exponentials_per_cycle,
    ]  # fmt: skip
    return _Machine(np.array(core, float), _numbers(card.tuning.prefill), _numbers(card.tuning.decode))


def _numbers(kind: CardPart) -> Floats:
    """The constants of a kind in the order of its fields, as `attention_tiles` names their places."""
    return np.array(list(kind.model_dump().values()), float)


def attention_plan(load: AttentionLoad, dtype: DType, card: CardSpec) -> AttentionPlan:
    """The schedule of attention in one element type by one kernel, that cuts caches where it is faster so."""
    ps_per_cycle, machine = machine_of(card, dtype).ps_per_cycle, _machine_of(card, dtype)
    decodes = load.decoded is load
    whole, cut, tensor, vector, read, rows_read, loads = schedule(
        np.array(load.q_lens, np.int64), np.array(load.kv_lens, np.int64), load.group, load.kv_heads,
        (load.qk_dim, load.v_dim), (load.window, load.chunk, int(load.soft_capped), int(load.appends)),
        float(load.row_bytes),
        machine.core, machine.decode if decodes else machine.prefill, decodes,
    )  # fmt: skip
    launch_ns, combine_ps, stall_ps, hbm_ps = card.tuning.prefill.launch_ns, 0.0, 0.0, 0.0
    if decodes:
        tuning = card.tuning.decode
        read_bytes = min(load.cache_bytes, rows_read * load.row_bytes)
        alone_ps = read_bytes * PS_PER_S / card.hbm.attainable_bytes_per_s
        launch_ns, combine_ps = tuning.launch_ns, tuning.combine_ns * PS_PER_NS
        stall_ps, hbm_ps = tuning.stall * alone_ps, (1 / tuning.bandwidth_fraction - 1) * alone_ps
    rows = sum(load.q_lens) * load.group * load.kv_heads
    l2_bytes = int(read * load.row_bytes) + rows * dtype.bytes_of(load.qk_dim + load.v_dim)
    return AttentionPlan(
        round(PS_PER_NS * launch_ns), whole * ps_per_cycle + stall_ps, cut * ps_per_cycle + stall_ps, combine_ps,
        hbm_ps, math.ceil(tensor), math.ceil(vector), l2_bytes, loads,
    )  # fmt: skip


def _tokens_seen(shape: AttentionShape) -> int:
    """Cached tokens that any new one sees, over all sequences."""
    if min(shape.q_lens) and not (shape.window or shape.chunk):
        return sum(shape.kv_lens)
    pairs = zip(shape.q_lens, shape.kv_lens, strict=True)
    return sum(touched(q_len, kv_len, shape.window, shape.chunk) for q_len, kv_len in pairs)


def attention_demand(work: Work, shape: AttentionShape, card: CardSpec) -> UnitDemand:
    """What an attention asks of a card, at the clock that this sustains when it repeats.

    ProgramError for lengths or heads that do not fit together.
    """
    assert work.dtype is not None
    if len(shape.q_lens) != len(shape.kv_lens) or shape.num_heads % max(1, shape.num_kv_heads):
        raise ProgramError(
            f"attention over {len(shape.q_lens)} query and {len(shape.kv_lens)} cache lengths, {shape.num_heads} heads "
            f"on {shape.num_kv_heads} kv heads: the lengths must pair up and the kv heads divide the heads"
        )
    fixed_ps = card.dispatch.tensor_ps + card.hbm.latency_ps
    num_bytes = work.read_bytes + work.write_bytes
    if not any(shape.q_lens):
        return demand_of(card, fixed_ps, 0, "hbm", hbm=num_bytes)
    query_bytes = work.dtype.bytes_of(sum(shape.q_lens) * shape.num_heads * shape.qk_dim)
    row_bytes, cache_bytes = float(work.dtype.bytes_of(shape.qk_dim + shape.v_dim)), math.inf
    if work.read_bytes:  # a part of one launch has no bytes of its own
        cache_bytes = max(0, work.read_bytes - query_bytes)
        row_bytes = cache_bytes / (max(1, _tokens_seen(shape)) * shape.num_kv_heads)
    load = AttentionLoad(
        shape.q_lens, shape.kv_lens, shape.num_heads // shape.num_kv_heads, shape.num_kv_heads, shape.qk_dim,
        shape.v_dim, row_bytes, cache_bytes,
        shape.window, shape.chunk, shape.soft_capped,
    )  # fmt: skip
    plan, ps_per_l2_byte = attention_plan(load, work.dtype, card), machine_of(card, work.dtype).ps_per_l2_byte
    if card.l2 is None:
        num_bytes = max(num_bytes, plan.l2_bytes)
    hbm_ps, l2_ps = ps_for(num_bytes, card.hbm.attainable_bytes_per_s), plan.l2_bytes * ps_per_l2_byte
    plan = plan.beside(hbm_ps, l2_ps)
    if load.decoded is not load:  # prefill has other kernels, but more tokens never take less time than the last few
        fewer = attention_plan(load.decoded, work.dtype, card).beside(hbm_ps, l2_ps)
        plan = max(plan, fewer, key=lambda plan: plan.whole_ps(hbm_ps, l2_ps))
    compute_ps, alone_ps = 0.0 if plan.loads > 0.5 else plan.flow_ps, plan.time_ps(hbm_ps, l2_ps)
    fraction = clock_fraction(card, work.dtype, work.ops, num_bytes, alone_ps, energy=1.0)
    asked = demand_of(
        card,
        fixed_ps + plan.launch_ps,
        math.ceil(alone_ps / fraction),
        bound_of(compute_ps, plan.flow_ps, l2_ps, num_bytes, card),
        tensor=plan.tensor_cycles,
        vector=plan.vector_cycles,
        hbm=num_bytes,
    )
    return replace(asked, clock_fraction=fraction)
