"""What a step binds on every rank: its holder's entries, and the extents and group indices that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..isa.instruction import split_even
from ..isa.program import Binding
from .context import Context, mode_of
from .dispatch import check_room, cut_extents, exchange_extents, room_extents, share_extents
from .lowering.passes.rewrite import CONTEXT
from .lowering.reach import WHOLE
from .lowering.stage import SHARE, STATES
from .plan import JobPlan, Variant
from .portions import Portion, portions
from .routing import Counts, routed_extents
from .scheduler import Step

NOT_ROUTED: Mapping[str, Counts] = MappingProxyType({})


def holder_extents(plan: JobPlan, portion: Portion) -> dict[str, tuple[int, ...]]:
    """The extents that all ranks of a holder bind for their portion of a step."""
    largest, tokens, entries = plan.largest.extents, portion.tokens, portion.entries
    spread = Context(plan, portion).extents() if plan.layout.cp > 1 else {}
    return {
        **routed_extents(plan.graph, tokens),
        "tokens": (tokens,),
        "sequences": (len(entries),),
        "rows": (portion.rows(plan.all_logits),),
        **{reach.pages: largest[reach.pages] for reach in (WHOLE, *plan.limited_reaches)},
        "table_pages": largest["table_pages"],
        CONTEXT: (plan.context_of(entries),),
        "positions": largest["positions"],
        STATES: largest[STATES],
        "q_lens": portion.counts,
        "kv_lens": tuple(entry.start + entry.count for entry in entries),
        **spread,
    }


def step_bindings(plan: JobPlan, step: Step, routed: Mapping[str, Counts] = NOT_ROUTED) -> list[Binding]:
    """The binding of every rank; `routed` are the loads of the step's expert layers, once they are known.

    Loads are those of all holders, one holder after the other.
    """
    layout, largest = plan.layout, plan.largest.extents
    room = {name: largest[name] for name in room_extents(plan.graph, layout, 1)}
    by_holder = []
    for portion in portions(plan, step):
        own = {name: _share(counts, portion.holder, layout.holders) for name, counts in routed.items()}
        by_holder.append(holder_extents(plan, portion) | room | own | cut_extents(plan.graph, layout, own))
    exchanged = exchange_extents(plan.graph, layout, routed)
    if any(exchanged):
        check_room(plan.graph, layout, largest, exchanged)
    return [
        Binding(
            by_holder[layout.holder_of(rank)] | _of_rank(plan, rank, by_holder) | exchanged[rank],
            layout.group_indices[rank],
        )
        for rank in range(layout.cards)
    ]


def step_variants(plan: JobPlan, step: Step) -> list[Variant]:
    """The program that every rank runs."""
    by_holder = [Variant(portion.rows(plan.all_logits) > 0, mode_of(plan, portion)) for portion in portions(plan, step)]
    return [by_holder[plan.layout.holder_of(rank)] for rank in range(plan.layout.cards)]


def _of_rank(plan: JobPlan, rank: int, by_holder: Sequence[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Extents in which ranks of one holder differ: their share of the tokens, and of the experts."""
    layout = plan.layout
    (tokens,) = by_holder[layout.holder_of(rank)]["tokens"]
    rows = split_even(tokens, layout.tp)[layout.tp_index_of(rank)][1]
    return {SHARE: (rows,)} | share_extents(plan.graph, layout, rank)


def _share(counts: Counts, holder: int, holders: int) -> Counts:
    size = len(counts) // holders
    return counts[holder * size : (holder + 1) * size]
