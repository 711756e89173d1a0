"""What a step binds on every rank: its holder's entries, and the extents and group indices that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..isa.program import Binding
from .dispatch import exchange_extents, room_extents, share_extents
from .layout import Layout
from .lowering.passes.rewrite import CONTEXT
from .lowering.stage import STATES
from .plan import JobPlan
from .routing import Counts, routed_extents
from .scheduler import Entry, Step

NOT_ROUTED: Mapping[str, Counts] = MappingProxyType({})


def entries_by_holder(layout: Layout, step: Step) -> tuple[tuple[Entry, ...], ...]:
    """The part of a step that each holder computes; it may be nothing."""
    shares: list[list[Entry]] = [[] for _ in range(layout.holders)]
    for entry in step.entries:
        for holder in layout.holders_of(entry.request):
            shares[holder].append(entry)
    return tuple(map(tuple, shares))


def holder_extents(plan: JobPlan, entries: Sequence[Entry]) -> dict[str, tuple[int, ...]]:
    """The extents that all ranks of a holder bind for their entries."""
    largest = plan.largest.extents
    tokens = sum(entry.count for entry in entries)
    return {
        **routed_extents(plan.graph, tokens),
        "tokens": (tokens,),
        "sequences": (len(entries),),
        "rows": (plan.rows_of(entries),),
        "pages": largest["pages"],
        "table_pages": largest["table_pages"],
        CONTEXT: (plan.context_of(entries),),
        "positions": largest["positions"],
        STATES: largest[STATES],
        "q_lens": tuple(entry.count for entry in entries),
        "kv_lens": tuple(entry.start + entry.count for entry in entries),
    }


def step_bindings(plan: JobPlan, step: Step, routed: Mapping[str, Counts] = NOT_ROUTED) -> list[Binding]:
    """The binding of every rank; `routed` are the loads of the step's expert layers, once they are known.

    Loads are those of all holders, one holder after the other.
    """
    layout, largest = plan.layout, plan.largest.extents
    room = {name: largest[name] for name in room_extents(plan.graph, layout, 1)}
    by_holder = []
    for holder, entries in enumerate(entries_by_holder(layout, step)):
        own = {name: _share(counts, holder, layout.holders) for name, counts in routed.items()}
        by_holder.append(holder_extents(plan, entries) | room | own)
    exchanged = exchange_extents(plan.graph, layout, routed)
    return [
        Binding(
            by_holder[layout.holder_of(rank)] | share_extents(plan.graph, layout, rank) | exchanged[rank],
            layout.group_indices[rank],
        )
        for rank in range(layout.cards)
    ]


def _share(counts: Counts, holder: int, holders: int) -> Counts:
    size = len(counts) // holders
    return counts[holder * size : (holder + 1) * size]
