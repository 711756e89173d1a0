"""Packed checkpoints: what the graph makes of each tensor, so that the packs know which weights they may stand for."""

from __future__ import annotations

from .blocks import DeltaNet, Graph, Moe
from .of_tensors import OfTensors
from .packs.packed_store import PackedStore, RawStore, WeightUse, pack_warnings, with_packs
from .packs.plan import QuantPlan
from .store import Shape


def open_packed(
    store: RawStore, plan: QuantPlan, graph: Graph, shapes: OfTensors[Shape]
) -> tuple[PackedStore, list[str]]:
    """The store, its packed weights dequantised under the graph's names, and what a report must say of them."""
    uses = weight_uses(graph, shapes)
    packed = with_packs(store, plan, uses)
    return packed, pack_warnings(packed, plan, uses)


def weight_uses(graph: Graph, shapes: OfTensors[Shape]) -> OfTensors[WeightUse]:
    """Every matrix of the graph: "Linear" where it multiplies activations, save embedding, routers and convolutions."""
    routers, fused = set[str](), set[str]()
    for layer in graph.layers:
        if isinstance(layer.mlp, Moe):
            routers.update(layer.mlp.router.projection.weights)
            fused.update((*layer.mlp.experts.gate_up, layer.mlp.experts.down))
    linear = [layer.attention for layer in graph.layers if isinstance(layer.attention, DeltaNet)]
    convs = (rows.tensor for delta in linear for rows in delta.convs)
    kinds = {graph.embedding: "Embedding"} | dict.fromkeys(routers, "Router") | dict.fromkeys(convs, "Conv1d")

    def use(name: str, shape: Shape) -> WeightUse | None:
        is_expert = name in fused or shapes.place(name) is not None
        return WeightUse(shape, kinds.get(name, "Linear"), is_expert) if len(shape) > 1 else None

    return shapes.select(use)


def drawn_uses(graph: Graph, shapes: OfTensors[Shape]) -> OfTensors[WeightUse]:
    """Of `weight_uses` those that random weights are drawn packed of: as published, where a config's plan says more.

    Kimi K3's config names neither the projections around its latent experts nor the queries of its residuals among what
    it leaves alone, and its files hold them in bf16; a file that packs them is read as it is.
    """
    plain = set[str]() if graph.final_mix is None else {graph.final_mix.query}
    for layer in graph.layers:
        if layer.residuals is not None:
            plain |= {layer.residuals.attention.query, layer.residuals.mlp.query}
        if isinstance(layer.mlp, Moe) and layer.mlp.latent is not None:
            plain |= {*layer.mlp.latent.down.weights, *layer.mlp.latent.up.weights}
    return weight_uses(graph, shapes).select(lambda name, use: None if name in plain else use)
