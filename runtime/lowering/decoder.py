"""Decoders: the program of one stage on one rank, from the model's graph."""

from __future__ import annotations

from ...isa.program import Group, Program
from ...isa.vector import ADD, ADD_RMSNORM
from ...models.blocks import DecoderLayer, DeltaNet, LatentAttention
from .attention import lower_attention
from .delta_net import lower_delta_net
from .ends import embed, head, load_inputs, receive, send
from .feed_forward import lower_feed_forward
from .latent import lower_latent_attention
from .stage import EXTENTS, Stage
from .weights import layer_name


def lower_stage(stage: Stage) -> Program:
    """The whole program: inputs, embedding or receive, layers, head or send."""
    load_inputs(stage)
    if stage.is_first:
        embed(stage)
    else:
        receive(stage)
    for index in stage.layers:
        _layer(stage, stage.graph.layers[index])
    if not stage.is_last:
        send(stage)
    elif stage.options.head == "pick":
        head(stage)
    return stage.program.build(EXTENTS, tuple(Group(*group) for group in stage.groups.items()))


def _layer(stage: Stage, layer: DecoderLayer) -> None:
    """x += attention(norm(x)); x += mlp(norm(x)), the first add fused into the second norm."""
    block = stage.program.block("layer")
    dtype, hidden, name = stage.options.dtype, stage.graph.hidden_size, layer_name(layer)
    x = block.param("x", stage.x)
    normed = block.local("normed", dtype, "tokens", hidden)
    partial = block.local("partial", dtype, "tokens", hidden)
    stage.norm(block, f"{name}.input_norm", layer.input_norm, normed, x)
    if isinstance(layer.attention, DeltaNet):
        lower_delta_net(stage, block, layer.attention, name, normed, partial)
    elif isinstance(layer.attention, LatentAttention):
        lower_latent_attention(stage, block, layer.attention, name, normed, partial)
    else:
        lower_attention(stage, block, layer.attention, name, normed, partial)
    stage.all_reduce(block, partial)
    norm = layer.post_attention_norm
    weight = stage.weight(block, "post_norm", stage.weights.norm(f"{name}.post_norm", norm))
    block.emit(ADD_RMSNORM(dst=normed, x=x, delta=partial, weight=weight, eps=norm.eps, plus_one=norm.plus_one))
    lower_feed_forward(stage, block, layer.mlp, name, normed, partial)
    stage.all_reduce(block, partial)
    block.emit(ADD(dst=x, a=x, b=partial))
    stage.program.call(block)
