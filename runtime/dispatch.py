"""What a step's exchange of tokens between experts' cards moves: each rank's counts from the loads of all holders."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..isa.errors import ConfigError
from ..isa.instruction import split_even
from ..models.blocks import Graph, Moe
from .layout import EXCHANGE, ExpertShare, Layout
from .lowering.experts import (
    LOCAL,
    RECEIVED,
    SENT,
    cuts_extent,
    exchange_extent,
    expert_extent,
    received_extent,
    sent_extent,
    shares_extents,
    slots_extent,
)
from .lowering.weights import layer_name

FEW_ROWS = 1 << 16
ROOM = 2  # times an even share, beyond few rows

Extents = dict[str, tuple[int, ...]]


def travels(graph: Graph, layout: Layout) -> bool:
    """Whether tokens of some layer are sent to their experts' cards."""
    return layout.experts_travel and any(isinstance(layer.mlp, Moe) for layer in graph.layers)


def room_extents(graph: Graph, layout: Layout, tokens: int) -> Extents:
    """The scalar extents of the most rows that leave and arrive, where no holder has more than so many tokens.

    For many rows the room is a multiple of what arrives from even loads, as no system has room for every token's at
    every card; for few of them it is all that can arrive.
    """
    if not travels(graph, layout):
        return {}
    part, found = -(-tokens // layout.expert_parts), Extents()
    for top_k, count in _kinds(graph):
        slots, leaving = layout.slots(count), part * top_k * layout.cuts
        here = min(top_k, -(-slots // layout.ep))
        found[sent_extent(top_k)] = (leaving,)
        most = layout.exchange * part * here
        found[received_extent(top_k, slots * layout.cuts)] = (min(most, max(FEW_ROWS, ROOM * leaving)),)
    return found


def cut_extents(graph: Graph, layout: Layout, loads: Mapping[str, tuple[int, ...]]) -> Extents:
    """The loads of every cut of every expert, from one holder's loads, where cuts span holders."""
    if layout.cuts == 1:
        return {}
    found = Extents()
    for layer in graph.layers:
        name = layer_name(layer)
        counts = loads.get(slots_extent(name) if layout.redundant else expert_extent(name))
        if counts is not None:
            experts = split_even(len(counts), layout.ep)
            found[cuts_extent(name)] = tuple(
                count for first, size in experts for _ in range(layout.cuts) for count in counts[first : first + size]
            )
    return found


def check_room(graph: Graph, layout: Layout, largest: Mapping[str, tuple[int, ...]], found: list[Extents]) -> None:
    """Refuse loads so uneven that more rows arrive at a card than it has room for."""
    for layer in graph.layers:
        if not isinstance(layer.mlp, Moe):
            continue
        (room,) = largest[received_extent(layer.mlp.router.top_k, layout.slots(layer.mlp.experts.count) * layout.cuts)]
        name = exchange_extent(layer_name(layer), RECEIVED)
        for rank, extents in enumerate(found):
            if (rows := sum(extents.get(name, ()))) > room:
                raise ConfigError(
                    f"layer {layer.index}: {rows} rows of tokens arrive at card {rank}, which has room for {room}, "
                    f"{ROOM} times an even share; take fewer tokens a step with --chunk-tokens, or copy hot experts "
                    "with --redundant-experts"
                )


def share_extents(graph: Graph, layout: Layout, rank: int) -> Extents:
    """How many experts every member of a rank's group has, and how many the rank itself."""
    if not travels(graph, layout):
        return {}
    found = Extents()
    for _, experts in _kinds(graph):
        slots = layout.slots(experts)
        shares, here = shares_extents(slots * layout.cuts)
        found[shares] = tuple(size for _, size in split_even(slots, layout.ep) for _ in range(layout.cuts))
        found[here] = (layout.experts_of(rank, experts).count,) * layout.exchange
    return found


def _kinds(graph: Graph) -> list[tuple[int, int]]:
    """(choices a token, experts) of the layers that have experts."""
    return sorted(
        {(layer.mlp.router.top_k, layer.mlp.experts.count) for layer in graph.layers if isinstance(layer.mlp, Moe)}
    )


def exchange_extents(graph: Graph, layout: Layout, routed: Mapping[str, tuple[int, ...]]) -> list[Extents]:
    """The extents of every rank's exchanges, from the loads of all holders one after the other."""
    found: list[Extents] = [{} for _ in range(layout.cards)]
    if not travels(graph, layout):
        return found
    axis = EXCHANGE if layout.cuts > 1 else "ep"
    groups = {layout.groups(rank)[axis] for rank in range(layout.stage_cards)}
    stages = layout.stage_layers(len(graph.layers))
    for stage, layers in enumerate(stages):
        for index in layers:
            name, mlp = layer_name(graph.layers[index]), graph.layers[index].mlp
            loads = routed.get(slots_extent(name) if layout.redundant else expert_extent(name))
            if isinstance(mlp, Moe) and loads is not None:
                for group in groups:
                    ranks = [stage * layout.stage_cards + rank for rank in group]
                    shares = [layout.experts_of(rank, mlp.experts.count) for rank in ranks]
                    _exchange(layout, name, dict(zip(ranks, shares, strict=True)), loads, found)
    return found


def _exchange(
    layout: Layout, name: str, members: dict[int, ExpertShare], loads: tuple[int, ...], found: list[Extents]
) -> None:
    """Enter the exchange of one layer within one group of ranks and their shares."""
    experts = len(loads) // (layout.holders * layout.expert_parts)
    table = np.array(loads).reshape(layout.holders, layout.expert_parts, experts)
    leaving = np.stack([table[layout.holder_of(rank), own.part] for rank, own in members.items()])
    spans = [slice(own.first, own.first + own.count) for own in members.values()]
    moved = np.stack([leaving[:, span].sum(axis=1) for span in spans], axis=1)
    totals = leaving.sum(axis=0)
    for member, (rank, own) in enumerate(members.items()):
        found[rank][exchange_extent(name, SENT)] = tuple(moved[member].tolist())
        found[rank][exchange_extent(name, RECEIVED)] = tuple(moved[:, member].tolist())
        found[rank][exchange_extent(name, LOCAL)] = tuple(totals[own.first : own.first + own.count].tolist())
