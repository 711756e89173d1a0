"""Packed checkpoints: what the graph makes of each tensor, so that the packs know which weights they may stand for."""

from __future__ import annotations

from collections.abc import Mapping

from .blocks import DeltaNet, Graph, Moe
from .packs.packed_store import PackedStore, RawStore, WeightUse, pack_warnings, with_packs
from .packs.plan import QuantPlan
from .store import Shape


def open_packed(
    store: RawStore, plan: QuantPlan, graph: Graph, shapes: Mapping[str, Shape]
) -> tuple[PackedStore, list[str]]:
    """The store, its packed weights dequantised under the graph's names, and what a report must say of them."""
    uses = weight_uses(graph, shapes)
    packed = with_packs(store, plan, uses)
    return packed, pack_warnings(packed, plan, uses)


def weight_uses(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, WeightUse]:
    """Every matrix of the graph: "Linear" where it multiplies activations, save embedding, routers and convolutions."""
    routers, experts = set[str](), set[str]()
    for layer in graph.layers:
        if isinstance(layer.mlp, Moe):
            routers.update(layer.mlp.router.projection.weights)
            names = (*layer.mlp.experts.gate_up, layer.mlp.experts.down)
            experts.update(name.format(expert) for name in names for expert in range(layer.mlp.experts.count))
    linear = [layer.attention for layer in graph.layers if isinstance(layer.attention, DeltaNet)]
    convs = (rows.tensor for delta in linear for rows in delta.convs)
    kinds = {graph.embedding: "Embedding"} | dict.fromkeys(routers, "Router") | dict.fromkeys(convs, "Conv1d")
    return {
        name: WeightUse(shape, kinds.get(name, "Linear"), name in experts)
        for name, shape in shapes.items()
        if len(shape) > 1
    }
