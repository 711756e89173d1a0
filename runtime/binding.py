"""What a step binds on every rank: its holder's entries, and the extents and group indices that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from ..isa.instruction import share_of
from ..isa.loads import rank_extents
from ..isa.program import Binding
from .context import mode_of
from .dispatch import Tables, check_room, rank_tables, room_extents, share_extents
from .halves import halves, loads_of_half
from .layer_loads import LayerLoads
from .lowering.passes.overlap import of_half
from .lowering.passes.rewrite import CONTEXT
from .lowering.reach import WHOLE
from .lowering.stage import SHARE, STATES
from .plan import JobPlan, Variant
from .portions import Portion, portions
from .routing import routed_extents
from .scheduler import Step

Common = dict[str, tuple[int, ...]]
V = TypeVar("V")
NOT_ROUTED: Mapping[str, LayerLoads] = MappingProxyType({})


def holder_extents(plan: JobPlan, portion: Portion) -> dict[str, tuple[int, ...]]:
    """The extents that all ranks of a holder bind for their portion of a step."""
    largest, tokens, entries = plan.largest.extents, portion.tokens, portion.entries
    spread = plan.spread(portion) if plan.layout.cp > 1 else {}
    return {
        **routed_extents(plan.expert_choices, tokens),
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


def step_bindings(plan: JobPlan, step: Step, routed: Mapping[str, LayerLoads] = NOT_ROUTED) -> list[Binding]:
    """The binding of every rank; `routed` are the loads of the step's expert layers, once they are known.

    Ranks that bind equal values have the same extents object.
    """
    layout, largest = plan.layout, plan.largest.extents
    commons, tables = list[list[Common]](), list[list[Tables]]()
    for number, half in enumerate(halves(plan, step)):
        loads = loads_of_half(routed, number) if plan.overlap else routed
        check_room(plan.graph, layout, largest, loads)
        commons.append(_commons(plan, half))
        comes_again = all(plan.kept_loads.get(id(own.loads)) is own for own in loads.values())
        tables.append(rank_tables(plan.graph, layout, loads, plan.kept_tables if comes_again else None))
    extents = rank_extents(_joined(commons), _joined(tables))
    return [Binding(own, layout.group_indices[rank]) for rank, own in enumerate(extents)]


def _joined(halves: list[list[dict[str, V]]]) -> list[dict[str, V]]:
    """What every rank binds of both halves, under the names of each; ranks that share both parts share the whole."""
    if len(halves) == 1:
        return halves[0]
    known: dict[tuple[int, int], dict[str, V]] = {}
    for first, second in zip(*halves, strict=True):
        if (id(first), id(second)) not in known:
            known[id(first), id(second)] = first | {of_half(name, 1): own for name, own in second.items()}
    return [known[id(first), id(second)] for first, second in zip(*halves, strict=True)]


def _commons(plan: JobPlan, step: Step) -> list[Common]:
    """What every rank binds of a step, or of a half of one, but for its loads."""
    layout, largest = plan.layout, plan.largest.extents
    room = {name: largest[name] for name in room_extents(plan.graph, layout, 1)}
    known: dict[tuple[object, ...], dict[str, tuple[int, ...]]] = {}
    by_holder = []
    for portion in portions(plan, step):
        own = holder_extents(plan, portion) | room
        by_holder.append(known.setdefault(tuple(own.items()), own))
    shares, commons = share_extents(plan.graph, layout), []
    for rank in range(layout.cards):
        shared, share = by_holder[layout.holder_of(rank)], shares[layout.expert_card_of(rank)]
        rows = share_of(shared["tokens"][0], layout.tp, layout.tp_index_of(rank))[1]
        standing = plan.standing(rank)
        key = (id(shared), id(share), id(standing), rows)
        if key not in known:
            known[key] = shared | share | standing | {SHARE: (rows,)}
        commons.append(known[key])
    return commons


def step_variants(plan: JobPlan, step: Step) -> list[Variant]:
    """The program that every rank runs."""
    by_holder = [
        Variant(any(own.rows(plan.all_logits) for own in parts), mode_of(plan, parts[0]))
        for parts in zip(*(portions(plan, half) for half in halves(plan, step)), strict=True)
    ]
    return [by_holder[plan.layout.holder_of(rank)] for rank in range(plan.layout.cards)]
