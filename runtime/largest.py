"""The largest extents that any step of a job binds: what its buffers must have room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..isa.program import Binding
from .context import Context
from .expert_room import expert_room
from .kv_cache import PagePool
from .layout import AXES, EXCHANGE
from .lowering.context import ALL_TOKENS, RETURNED
from .lowering.passes.overlap import of_half
from .lowering.passes.rewrite import CONTEXT
from .lowering.reach import Reach
from .lowering.stage import SHARE, STATES
from .routing import routed_extents

if TYPE_CHECKING:
    from .plan import JobPlan


def largest_extents(plan: JobPlan) -> Binding:
    """The largest extents that any step binds on any card."""
    layout = plan.layout
    most = -(-len(plan.sequences) // layout.dp)
    in_step = -(-most // plan.micro_batches)
    tokens = rows = in_step if layout.cp > 1 else 1
    extents = {ALL_TOKENS: in_step, RETURNED: in_step * layout.cp} if layout.cp > 1 else {}
    for portion in plan.rehearsed:
        tokens, rows = max(tokens, portion.tokens), max(rows, portion.rows(plan.all_logits))
        if layout.cp > 1:
            for name, size in Context(plan, portion).scalars().items():
                extents[name] = max(extents.get(name, 0), size)
    pool = PagePool(plan.page_tokens)
    pages, longest, homes = _held(plan)
    whole = {
        "tokens": tokens,
        SHARE: -(-tokens // layout.tp),
        "sequences": in_step,
        "rows": rows,
        "pages": max(pages),
        "table_pages": longest,
        CONTEXT: pool.pages_for(max(request.most_kv_tokens for request in plan.asked)) * plan.page_tokens,
        "positions": plan.graph.max_position_embeddings,
        STATES: max(homes),
        **{reach.pages: _most_pages(plan, reach) for reach in plan.limited_reaches},
    }
    sizes = {name: (size,) for name, size in (extents | whole).items()}
    routed = routed_extents(plan.expert_choices, tokens) | expert_room(plan, tokens)
    standing = [plan.standing(index) for index in range(layout.tp)]
    furthest = {name: max(own[name] for own in standing) for name in standing[0]}
    every = routed | sizes | furthest
    if plan.overlap:
        every |= {of_half(name, 1): size for name, size in every.items()}
    return Binding(every, dict.fromkeys((*AXES, EXCHANGE), 0))


def _most_pages(plan: JobPlan, reach: Reach) -> int:
    """Pages of a reach that the requests of one replica hold at most, all together."""
    pages = [0] * plan.layout.dp
    for request in plan.asked:
        new_tokens = max(1, min(request.prompt_len, plan.chunk_tokens or request.prompt_len))
        held = reach.most_pages(request.most_kv_tokens, new_tokens, plan.page_tokens)
        pages[request.index % plan.layout.dp] += held
    return max(pages) + (plan.spare_pages if plan.fills else 0)


def _held(plan: JobPlan) -> tuple[list[int], int, list[int]]:
    """Pages of every holder at the end of all requests, the most of one request, and requests kept by holder."""
    pool, layout = PagePool(plan.page_tokens), plan.layout
    pages, homes, longest = [0] * layout.holders, [0] * layout.holders, 1
    for request in plan.asked:
        for share, holder in enumerate(layout.holders_of(request.index)):
            held = pool.pages_for(plan.local_tokens(request.index, share, request.most_kv_tokens))
            pages[holder], longest = pages[holder] + held, max(longest, held)
            homes[holder] += plan.keeps_states(request.index, share)
    return [max(1, count) for count in pages], longest, [max(1, count) for count in homes]
