"""Decoders: the program of one stage on one rank, from the model's graph."""

from __future__ import annotations

from ...isa.operands import Ref
from ...isa.program import Group, Program
from ...isa.vector import ADD, ADD_RMSNORM
from ...models.blocks import AttentionResiduals, DecoderLayer, DeltaNet, LatentAttention
from . import stream
from .attention import lower_attention
from .builder import BlockBuilder
from .delta_net import lower_delta_net
from .ends import embed, head, load_inputs, receive, send
from .feed_forward import lower_feed_forward
from .latent import lower_latent_attention
from .residuals import first, mix, take
from .stage import EXTENTS, Stage
from .templates import Renaming, Template, layer_kind
from .weights import layer_name


def lower_stage(stage: Stage) -> Program:
    """The whole program: inputs, embedding or receive, layers, head or send."""
    load_inputs(stage)
    if stage.is_first:
        embed(stage)
    else:
        receive(stage)
    for index in stage.layers:
        _templated(stage, stage.graph.layers[index])
    if not stage.is_last:
        send(stage)
    elif stage.options.head == "pick":
        head(stage)
    return stage.program.build(EXTENTS, tuple(Group(*group) for group in stage.groups.items()))


def _templated(stage: Stage, layer: DecoderLayer) -> None:
    """A layer as one that stands already, renamed, where there is one of its kind whose weights are held alike."""
    program, weights = stage.program, stage.weights.buffers
    kind = layer_kind(layer), stage.options.placements.get(layer_name(layer))
    known = stage.templates.setdefault(kind, [])
    for template in known:
        renaming = Renaming(template.index, layer.index)
        tensors = (piece.tensor for weight in template.weights for piece in weight.pieces)
        if stage.options.holding.holds_alike((name, renaming.tensor(name)) for name in tensors):
            program.repeat(renaming.call(template.call), map(renaming.buffer, template.buffers))
            stage.repeats.append((len(weights), template, renaming))
            return
    before = len(weights)
    _layer(stage, layer)
    call, own = program.calls[-1], tuple(weights.values())[before:]
    known.append(Template(layer.index, call, tuple(program.buffers[name] for name in call.arguments), own))


def _layer(stage: Stage, layer: DecoderLayer) -> None:
    """x += attention(norm(x)); x += mlp(norm(x)), the first add fused into the second norm."""
    block = stage.program.block("layer")
    dtype, hidden, name = stage.options.dtype, stage.graph.hidden_size, layer_name(layer)
    x = block.param("x", stage.x)
    normed = stream.local(stage, block, "normed")
    partial = block.local("partial", dtype, "tokens", hidden)
    if layer.residuals is not None:
        _mixed_layer(stage, block, layer, layer.residuals, x, normed, partial)
        return
    stage.norm(block, f"{name}.input_norm", layer.input_norm, normed, x)
    _mixer(stage, block, layer, name, normed, partial)
    total = stream.summed(stage, block, "summed", partial)
    if layer.attention_out_norm is not None:
        stage.norm(block, f"{name}.attention_out_norm", layer.attention_out_norm, total, total)
    norm = layer.post_attention_norm
    weight = stage.weight(block, "post_norm", stage.weights.norm(f"{name}.post_norm", norm))
    block.emit(ADD_RMSNORM(dst=normed, x=x, delta=total, weight=weight, eps=norm.eps, plus_one=norm.plus_one))
    total = _feed_forward(stage, block, layer, name, normed, partial)
    if layer.mlp_out_norm is not None:
        stage.norm(block, f"{name}.mlp_out_norm", layer.mlp_out_norm, total, total)
    block.emit(ADD(dst=x, a=x, b=total))
    stage.program.call(block)


def _mixer(stage: Stage, block: BlockBuilder, layer: DecoderLayer, name: str, normed: Ref, out: Ref) -> None:
    """out = this rank's part of attention(normed), to be summed over the tensor-parallel group."""
    normed = stream.gathered(stage, block, "gathered", normed)
    if isinstance(layer.attention, DeltaNet):
        lower_delta_net(stage, block, layer.attention, name, normed, out)
    elif isinstance(layer.attention, LatentAttention):
        lower_latent_attention(stage, block, layer.attention, name, normed, out)
    else:
        lower_attention(stage, block, layer.attention, name, normed, out)


def _feed_forward(stage: Stage, block: BlockBuilder, layer: DecoderLayer, name: str, normed: Ref, partial: Ref) -> Ref:
    """The feed-forward of normed, summed over the tensor-parallel group."""
    lower_feed_forward(stage, block, layer.mlp, name, stream.gathered(stage, block, "gathered", normed), partial)
    return stream.summed(stage, block, "summed", partial)


def _mixed_layer(
    stage: Stage,
    block: BlockBuilder,
    layer: DecoderLayer,
    residuals: AttentionResiduals,
    x: Ref,
    normed: Ref,
    partial: Ref,
) -> None:
    """Attention and feed-forward of mixes of the snapshots and x, which starts anew where the layer takes one of it."""
    name, read = layer_name(layer), x
    mixed = stream.local(stage, block, "mixed_stream")
    if residuals.snapshots:
        read = mixed
        snapshots = first(stage, block, residuals.snapshots)
        mix(stage, block, residuals.attention, f"{name}.attention_mix", mixed, snapshots, x)
    stage.norm(block, f"{name}.input_norm", layer.input_norm, normed, read)
    total = x
    if residuals.takes:
        take(stage, block, residuals.snapshots, x)
        out = block.local("attention_out", stage.options.dtype, "tokens", stage.graph.hidden_size)
        _mixer(stage, block, layer, name, normed, out)
        total = stream.summed(stage, block, "attention_sum", out)
    else:
        _mixer(stage, block, layer, name, normed, partial)
        block.emit(ADD(dst=x, a=x, b=stream.summed(stage, block, "summed", partial)))
    snapshots = first(stage, block, residuals.snapshots_after)
    mix(stage, block, residuals.mlp, f"{name}.mlp_mix", mixed, snapshots, total)
    stage.norm(block, f"{name}.post_norm", layer.post_attention_norm, normed, mixed)
    block.emit(ADD(dst=x, a=total, b=_feed_forward(stage, block, layer, name, normed, partial)))
    stage.program.call(block)
