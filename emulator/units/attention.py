"""The tensor unit's attention: tiles of queries over blocks of the cache."""

from __future__ import annotations

import math

import numpy as np

from ...isa.errors import ProgramError
from ...isa.work import AttentionShape, Work
from ..spec import CardSpec
from .attention_tiles import schedule
from .rates import UnitDemand, demand_of, ps_for
from .tensor import bound_of, machine_of


def attention_demand(work: Work, shape: AttentionShape, card: CardSpec) -> UnitDemand:
    """What an attention asks of a card; ProgramError for lengths or heads that do not fit together."""
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
    machine = machine_of(card, work.dtype)
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
    bound = bound_of(compute_ps, flow_ps, l2_bytes * machine.ps_per_l2_byte, num_bytes, card)
    return demand_of(
        card, fixed_ps, math.ceil(time_ps), bound, tensor=tensor_cycles, vector=vector_cycles, hbm=num_bytes
    )
