"""What a step's exchange of tokens between experts' cards moves: each rank's counts from the loads of all holders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..isa.errors import ConfigError
from ..isa.instruction import share_of, split_even
from ..isa.loads import Table
from ..models.blocks import DecoderLayer, Graph, Moe
from .layer_loads import LayerLoads
from .layout import Layout
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
ROOM = 2.0  # times an even share, beyond few rows

Extents = dict[str, tuple[int, ...]]
Tables = dict[str, Table]


def travels(graph: Graph, layout: Layout) -> bool:
    """Whether tokens of some layer are sent to their experts' cards."""
    return layout.experts_travel and any(isinstance(layer.mlp, Moe) for layer in graph.layers)


def room_extents(graph: Graph, layout: Layout, tokens: int, room: float = ROOM) -> Extents:
    """The scalar extents of the most rows that leave and arrive, where no holder has more than so many tokens.

    For many rows the room is `room` times what arrives from even loads, as no system has room for every token's at
    every card; for few of them it is all that can arrive.
    """
    if not travels(graph, layout):
        return {}
    part, found = -(-tokens // layout.expert_parts), Extents()
    for top_k, count in kinds(graph):
        slots, leaving = layout.slots(count), part * top_k * layout.cuts
        here = min(top_k, -(-slots // layout.ep))
        found[sent_extent(top_k)] = (leaving,)
        most = layout.exchange * part * here
        enough = most if room * leaving >= most else max(FEW_ROWS, int(np.ceil(room * leaving)))
        found[received_extent(top_k, slots * layout.cuts)] = (min(most, enough),)
    return found


def share_extents(graph: Graph, layout: Layout) -> list[Extents]:
    """How many experts every member of a rank's group has, and how many the rank itself, by its place along ep.

    Places with as many experts have the same object.
    """
    if not travels(graph, layout):
        return [{}] * layout.ep
    counts = [[size for _, size in split_even(layout.slots(experts), layout.ep)] for _, experts in kinds(graph)]
    found: dict[tuple[int, ...], Extents] = {}
    for own in zip(*counts, strict=True):
        if own in found:
            continue
        found[own] = {}
        for sizes, size in zip(counts, own, strict=True):
            shares, here = shares_extents(sum(sizes) * layout.cuts)
            found[own] |= {shares: tuple(size for size in sizes for _ in range(layout.cuts))}
            found[own] |= {here: (size,) * layout.exchange}
    return [found[own] for own in zip(*counts, strict=True)]


def kinds(graph: Graph) -> list[tuple[int, int]]:
    """(choices a token, experts) of the layers that have experts."""
    return sorted(
        {(layer.mlp.router.top_k, layer.mlp.experts.count) for layer in graph.layers if isinstance(layer.mlp, Moe)}
    )


def rank_tables(
    graph: Graph, layout: Layout, loads: Mapping[str, LayerLoads], kept: dict[object, Tables] | None = None
) -> list[Tables]:
    """What every rank binds of a step's loads; ranks of a stage with as many experts name the same tables.

    `kept` has those of earlier steps, for loads that come again.
    """
    totals = sorted({own.loads.shape[-1] for own in loads.values()})
    stages, found = layout.stage_layers(len(graph.layers)), {} if kept is None else kept
    step = tuple(loads.values())  # known by their identity
    by_rank = []
    for rank in range(layout.cards):
        card = layout.expert_card_of(rank)
        key = (layout.stage_of(rank), *(card < total % layout.ep for total in totals), step)
        if key not in found:
            names = [layer_name(graph.layers[index]) for index in stages[layout.stage_of(rank)]]
            found[key] = _tables(layout, card, names, loads)
        by_rank.append(found[key])
    return by_rank


def _tables(layout: Layout, card: int, names: list[str], loads: Mapping[str, LayerLoads]) -> Tables:
    """The tables of some layers for ranks with as many experts as one of the cards."""
    found: Tables = {}
    for name in names:
        for extent in (expert_extent(name), slots_extent(name)):
            if extent in loads:
                found[extent] = loads[extent].of_holders
        own = loads.get(slots_extent(name) if layout.redundant else expert_extent(name))
        if own is None or not layout.experts_travel:
            continue
        if layout.cuts > 1:
            found[cuts_extent(name)] = own.of_cuts
        width = share_of(own.loads.shape[-1], layout.ep, card)[1]
        found[exchange_extent(name, SENT)] = own.sent
        found[exchange_extent(name, RECEIVED)] = own.received
        found[exchange_extent(name, LOCAL)] = own.local[width]
    return found


def arriving_rows(graph: Graph, layout: Layout, loads: Mapping[str, LayerLoads]) -> dict[str, int]:
    """The most rows that arrive at a card, by the extent that is the room for them."""
    found: dict[str, int] = {}
    for name, _, own in dispatched(graph, layout, loads):
        found[name] = max(found.get(name, 0), int(own.arriving.max()))
    return found


def check_room(
    graph: Graph, layout: Layout, largest: Mapping[str, tuple[int, ...]], loads: Mapping[str, LayerLoads]
) -> None:
    """Refuse loads so uneven that more rows arrive at a card than it has room for."""
    if not travels(graph, layout):
        return
    for name, layer, own in dispatched(graph, layout, loads):
        if (rows := int(own.arriving.max())) > largest[name][0]:
            raise ConfigError(
                f"layer {layer.index}: {rows} rows of tokens arrive at card {busiest_rank(graph, layer, own)}, "
                f"which has room for {largest[name][0]}; give more with --expert-room, take fewer tokens a step with "
                "--chunk-tokens, or copy hot experts with --redundant-experts"
            )


def dispatched(
    graph: Graph, layout: Layout, loads: Mapping[str, LayerLoads]
) -> Iterator[tuple[str, DecoderLayer, LayerLoads]]:
    """Layers that route tokens: the extent of the room for rows that travel, the layer, loads of what they go to."""
    for layer in graph.layers:
        name = layer_name(layer)
        own = loads.get(slots_extent(name) if layout.redundant else expert_extent(name))
        if own is not None and isinstance(layer.mlp, Moe):
            total = own.loads.shape[-1] * layout.cuts
            yield received_extent(layer.mlp.router.top_k, total), layer, own


def busiest_rank(graph: Graph, layer: DecoderLayer, loads: LayerLoads) -> int:
    """The first rank that has the experts of a layer to which most rows go."""
    layout, home = loads.layout, int(loads.arriving.argmax())
    stages = layout.stage_layers(len(graph.layers))
    stage = next(stage for stage, layers in enumerate(stages) if layer.index in layers)
    return stage * layout.stage_cards + home * layout.etp
