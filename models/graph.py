"""A Graph from a config, and what follows from a Graph alone: its tensors, its parameters, its KV cache."""

from __future__ import annotations

import math
from dataclasses import replace

from .blocks import (
    Attention,
    AttentionResiduals,
    DecoderLayer,
    DeltaNet,
    Experts,
    GatedMlp,
    Graph,
    Indexer,
    LatentAttention,
    Moe,
    Norm,
    Projection,
    ResidualMix,
    Rope,
)
from .config import family_of
from .model_config import ModelConfig
from .of_tensors import OfTensors
from .store import Shape

Shapes = dict[str, Shape]


def build_graph(config: ModelConfig) -> Graph:
    """The blocks of this model, from token ids to logits, as its family lays them out."""
    return family_of(config).build(config)


def parameter_shapes(graph: Graph) -> OfTensors[Shape]:
    """Every tensor of the checkpoint by name, [rows, columns] or [elements], in the order the model reads them.

    A tied lm_head is the embedding and so appears once.
    """
    shapes: OfTensors[Shape] = OfTensors()
    shapes[graph.embedding] = (graph.vocab_size, graph.hidden_size)
    for layer in graph.layers:
        _add_layer(shapes, layer)
    if graph.final_mix is not None:
        shapes.update(_mix_shapes(graph.final_mix))
    shapes.update(_norm_shapes(graph.final_norm))
    shapes[graph.lm_head] = (graph.vocab_size, graph.hidden_size)
    return shapes


def total_parameters(graph: Graph) -> int:
    """How many parameters the model has, a tied matrix counted once; a router's correction is a buffer and not one.

    Of a model whose published size counts buffers, it is one.
    """
    everything = sum(count * math.prod(shape) for shape, count in parameter_shapes(graph).weighed())
    if graph.counts_buffers:
        return everything
    return everything - sum(moe.experts.count for moe in _moes(graph) if moe.router.correction is not None)


def active_parameters(graph: Graph) -> int:
    """How many of them a token meets: all but the experts, and its share of those; the input embedding is included."""
    idle = 0
    for moe in _moes(graph):
        routed = _expert_elements(moe.experts)
        idle += routed - routed * moe.router.top_k // moe.experts.count
    return total_parameters(graph) - idle


def _moes(graph: Graph) -> list[Moe]:
    return [layer.mlp for layer in graph.layers if isinstance(layer.mlp, Moe)]


def ropes(graph: Graph) -> list[Rope]:
    """The rope of every layer that has one."""
    found = (layer.attention.rope for layer in graph.layers)
    return [rope for rope in found if rope is not None]


def rope_tables(graph: Graph) -> tuple[Rope, ...]:
    """The ropes that need cosines and sines of their own, in order of layers; which elements pair is all the same."""
    return tuple(dict.fromkeys(table_of(rope) for rope in ropes(graph)))


def table_of(rope: Rope) -> Rope:
    """What a rope's cosines and sines depend on: ropes that differ in nothing else share a table."""
    return replace(rope, interleaved=False)


def kv_elements_per_token(graph: Graph) -> int:
    """Elements that one more token adds to the KV cache: K and V without a window, or a latent and an index key."""
    return sum(_kv_elements(layer.attention) for layer in graph.layers)


def _kv_elements(attention: Attention | LatentAttention | DeltaNet) -> int:
    if isinstance(attention, LatentAttention):
        return attention.latent_dim + attention.rope_dim + (attention.indexer.dim if attention.indexer else 0)
    if isinstance(attention, DeltaNet) or attention.window or attention.chunk:
        return 0
    return 2 * attention.num_kv_heads * attention.head_dim


def state_bytes_per_sequence(graph: Graph, activation_bytes: int) -> int:
    """Bytes of the states that a sequence holds whatever its length: fp32, and the convolutions' last inputs."""
    mixers = (layer.attention for layer in graph.layers)
    return sum(
        4 * mixer.state_elements + activation_bytes * mixer.tail_elements
        for mixer in mixers
        if isinstance(mixer, DeltaNet)
    )


def _add_layer(shapes: OfTensors[Shape], layer: DecoderLayer) -> None:
    shapes.update(_norm_shapes(layer.input_norm) | _attention_shapes(layer.attention))
    for norm in (layer.attention_out_norm, layer.post_attention_norm, layer.mlp_out_norm):
        shapes.update(_norm_shapes(norm) if norm is not None else {})
    if isinstance(layer.mlp, Moe):
        _add_moe(shapes, layer.mlp)
    else:
        shapes.update(_mlp_shapes(layer.mlp))
    shapes.update(_residual_shapes(layer.residuals))


def _residual_shapes(residuals: AttentionResiduals | None) -> Shapes:
    return {} if residuals is None else _mix_shapes(residuals.attention) | _mix_shapes(residuals.mlp)


def _mix_shapes(mix: ResidualMix) -> Shapes:
    return _norm_shapes(mix.norm) | {mix.query: (1, mix.norm.size)}


def _latent_shapes(attention: LatentAttention) -> Shapes:
    shapes = _projection_shapes(attention.q)
    if attention.q_norm is not None and attention.q_up is not None:
        shapes |= _norm_shapes(attention.q_norm) | _projection_shapes(attention.q_up)
    shapes |= _projection_shapes(attention.kv) | _norm_shapes(attention.kv_norm)
    if attention.gate is not None:
        shapes |= _projection_shapes(attention.gate)
    if attention.indexer is not None:
        shapes |= _indexer_shapes(attention.indexer)
    return shapes | _projection_shapes(attention.kv_up) | _projection_shapes(attention.out)


def _indexer_shapes(indexer: Indexer) -> Shapes:
    shapes = _projection_shapes(indexer.q) | _projection_shapes(indexer.k) | _norm_shapes(indexer.k_norm)
    return shapes | _projection_shapes(indexer.weights)


def _attention_shapes(attention: Attention | LatentAttention | DeltaNet) -> Shapes:
    if isinstance(attention, DeltaNet):
        return dict(attention.tensors) | _norm_shapes(attention.norm) | _projection_shapes(attention.out)
    if isinstance(attention, LatentAttention):
        return _latent_shapes(attention)
    shapes = _projection_shapes(attention.qkv) | _projection_shapes(attention.out)
    for norm in (attention.q_norm, attention.k_norm):
        if norm is not None:
            shapes |= _norm_shapes(norm)
    return shapes if attention.sinks is None else shapes | {attention.sinks: (attention.num_heads,)}


def _add_moe(shapes: OfTensors[Shape], moe: Moe) -> None:
    shapes.update(_projection_shapes(moe.router.projection))
    if moe.router.correction is not None:
        shapes[moe.router.correction] = (moe.experts.count,)
    if moe.experts.is_fused:
        shapes.update(_fused_shapes(moe.experts))
    else:
        shapes.add(moe.experts.count, _shapes_of_each(moe.experts))
    if moe.latent is not None:
        shapes.update(_projection_shapes(moe.latent.down) | _projection_shapes(moe.latent.up))
        shapes.update(_norm_shapes(moe.latent.norm) if moe.latent.norm is not None else {})
    if moe.shared is not None:
        shapes.update(_mlp_shapes(moe.shared))
    shapes.update(_projection_shapes(moe.shared_gate) if moe.shared_gate is not None else {})


def _expert_elements(experts: Experts) -> int:
    """Elements of all experts of a layer."""
    if experts.is_fused:
        return sum(map(math.prod, _fused_shapes(experts).values()))
    return experts.count * sum(map(math.prod, _shapes_of_each(experts).values()))


def _shapes_of_each(experts: Experts) -> Shapes:
    width, hidden = experts.intermediate_size, experts.hidden_size
    shapes: Shapes = dict.fromkeys(experts.gate_up, (width, hidden))
    return shapes | {experts.down: (hidden, width)}


def _fused_shapes(experts: Experts) -> Shapes:
    count, width, hidden = experts.count, experts.intermediate_size, experts.hidden_size
    shapes: Shapes = {experts.gate_up[0]: (count, hidden, 2 * width), experts.down: (count, width, hidden)}
    if experts.gate_up_bias is not None:
        shapes[experts.gate_up_bias] = (count, 2 * width)
    if experts.down_bias is not None:
        shapes[experts.down_bias] = (count, hidden)
    return shapes


def _mlp_shapes(mlp: GatedMlp) -> Shapes:
    return _projection_shapes(mlp.gate_up) | _projection_shapes(mlp.down)


def _projection_shapes(projection: Projection) -> Shapes:
    shapes: Shapes = {}
    for name, rows in zip(projection.weights, projection.out_features, strict=True):
        shapes[name] = (rows, projection.in_features)
    if projection.biases:
        shapes |= {name: (rows,) for name, rows in zip(projection.biases, projection.out_features, strict=True)}
    return shapes


def _norm_shapes(norm: Norm) -> Shapes:
    names = [norm.weight] if norm.bias is None else [norm.weight, norm.bias]
    return {name: (norm.size,) for name in names}
