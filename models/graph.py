"""A Graph from a config, and what follows from a Graph alone: its tensors, its parameters, its KV cache."""

from __future__ import annotations

import math

from .blocks import Attention, DecoderLayer, GatedMlp, Graph, Norm, Projection
from .config import family_of
from .model_config import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def build_graph(config: ModelConfig) -> Graph:
    """The blocks of this model, from token ids to logits, as its family lays them out."""
    return family_of(config).build(config)


def parameter_shapes(graph: Graph) -> Shapes:
    """Every tensor of the checkpoint by name, [rows, columns] or [elements], in the order the model reads them.

    A tied lm_head is the embedding and so appears once.
    """
    shapes: Shapes = {graph.embedding: (graph.vocab_size, graph.hidden_size)}
    for layer in graph.layers:
        shapes |= _layer_shapes(layer)
    shapes |= _norm_shapes(graph.final_norm)
    shapes[graph.lm_head] = (graph.vocab_size, graph.hidden_size)
    return shapes


def total_parameters(graph: Graph) -> int:
    """How many numbers the checkpoint holds, a tied matrix counted once."""
    return sum(math.prod(shape) for shape in parameter_shapes(graph).values())


def kv_elements_per_token(graph: Graph) -> int:
    """Elements that one more token adds to the KV cache, K and V over all layers, while no window has filled."""
    return sum(2 * layer.attention.num_kv_heads * layer.attention.head_dim for layer in graph.layers)


def _layer_shapes(layer: DecoderLayer) -> Shapes:
    return (
        _norm_shapes(layer.input_norm)
        | _attention_shapes(layer.attention)
        | _norm_shapes(layer.post_attention_norm)
        | _mlp_shapes(layer.mlp)
    )


def _attention_shapes(attention: Attention) -> Shapes:
    shapes = _projection_shapes(attention.qkv) | _projection_shapes(attention.out)
    for norm in (attention.q_norm, attention.k_norm):
        if norm is not None:
            shapes |= _norm_shapes(norm)
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
