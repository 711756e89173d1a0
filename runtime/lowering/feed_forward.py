"""Feed-forward blocks on one rank."""

from __future__ import annotations

from ...isa.dtype import FP32, INT32
from ...isa.experts import ROUTE
from ...isa.operands import Ref
from ...isa.rows import SIGMOID_GATE
from ...isa.situ import SITU_GATED
from ...isa.tensor import MATMUL
from ...isa.vector import ADD, GATED
from ...models.blocks import GatedMlp, Moe, Router, Situ
from ..layout import ExpertShare
from .builder import BlockBuilder
from .experts import Chosen, choose_replicas, copy_choices, expert_extent, lower_experts
from .latent_experts import LATENTS, lower_latent_in, lower_latent_out
from .stage import Stage


def lower_feed_forward(stage: Stage, block: BlockBuilder, mlp: GatedMlp | Moe, name: str, x: Ref, out: Ref) -> None:
    """out = this rank's part of a layer's feed-forward, to be summed over the tensor-parallel group."""
    if isinstance(mlp, Moe):
        lower_moe(stage, block, mlp, name, x, out)
    else:
        lower_mlp(stage, block, mlp, name, x, out)


def lower_mlp(stage: Stage, block: BlockBuilder, mlp: GatedMlp, name: str, x: Ref, out: Ref) -> None:
    """out = this rank's part of down(activation(gate(x)) * up(x)), to be summed over the tensor-parallel group."""
    dtype, width = stage.options.dtype, mlp.intermediate_size // stage.layout.tp
    gate_up = block.local("gate_up", dtype, "tokens", 2 * width)
    weight, bias = stage.weights.gate_up(f"{name}.gate_up", mlp)
    w, b = stage.weight(block, "gate_up_weight", weight), stage.optional(block, "gate_up_bias", bias)
    block.emit(MATMUL(dst=gate_up, a=x, w=w, bias=b))
    activated = block.local("activated", dtype, "tokens", width)
    if isinstance(mlp.activation, Situ):
        block.emit(SITU_GATED(activated, gate_up, mlp.activation.beta, mlp.activation.linear_beta))
    else:
        block.emit(GATED(dst=activated, x=gate_up, activation=mlp.activation))
    weight, bias = stage.weights.row_parallel(f"{name}.down", mlp.down)
    w, b = stage.weight(block, "down_weight", weight), stage.optional(block, "down_bias", bias)
    block.emit(MATMUL(dst=out, a=activated, w=w, bias=b))


def lower_moe(stage: Stage, block: BlockBuilder, moe: Moe, name: str, x: Ref, out: Ref) -> None:
    """out = this rank's part of the experts' weighted sum and of the shared expert."""
    extent = block.extent("experts", expert_extent(name))
    own = stage.layout.experts_of(stage.rank, moe.experts.count)
    _route(stage, block, moe.router, name, x, extent, own)
    chosen = Chosen(Ref("expert_ids"), Ref("expert_counts"), extent, moe.experts.count)
    if stage.layout.redundant:
        chosen = choose_replicas(stage, block, moe, name, own)
    if stage.layout.cuts > 1:
        chosen = copy_choices(stage, block, name, chosen)
    if moe.latent is None:
        lower_experts(stage, block, moe, name, x, out, chosen, own)
    else:
        taken, given = (block.local(part, stage.options.dtype, "tokens", moe.experts.hidden_size) for part in LATENTS)
        lower_latent_in(stage, block, moe.latent, name, x, taken)
        lower_experts(stage, block, moe, name, taken, given, chosen, own)
        lower_latent_out(stage, block, moe.latent, name, given, out)
    if moe.shared is not None:
        _shared(stage, block, moe, name, x, out)


def _route(stage: Stage, block: BlockBuilder, router: Router, name: str, x: Ref, extent: str, own: ExpertShare) -> None:
    """ids, weights and counts of every token's experts, the same on every rank that holds these tokens."""
    experts = router.projection.out_features[0]
    weight, bias, correction = stage.weights.router(f"{name}.router", router)
    logits = block.local("router_logits", FP32, "tokens", experts)
    w, b = stage.weight(block, "router", weight), stage.optional(block, "router_bias", bias)
    block.emit(MATMUL(dst=logits, a=x, w=w, bias=b))
    block.emit(
        ROUTE(
            ids=block.local("expert_ids", INT32, "tokens", router.top_k),
            weights=block.local("expert_weights", FP32, "tokens", router.top_k),
            counts=block.local("expert_counts", INT32, own.parts * experts),
            logits=logits,
            bias=stage.optional(block, "correction", correction),
            extent=extent,
            parts=own.parts,
            scoring=router.scoring,
            groups=router.groups,
            top_groups=router.top_groups,
            group_best=router.group_best,
            renormalise=router.renormalise,
            eps=router.eps,
            scale=router.scale,
        )
    )


def _shared(stage: Stage, block: BlockBuilder, moe: Moe, name: str, x: Ref, out: Ref) -> None:
    """out += this rank's part of the expert that every token takes."""
    assert moe.shared is not None
    dtype = stage.options.dtype
    shared = block.local("shared", dtype, "tokens", stage.graph.hidden_size)
    lower_mlp(stage, block, moe.shared, f"{name}.shared", x, shared)
    if moe.shared_gate is not None:
        gate = block.local("shared_gate", dtype, "tokens", 1)
        weight = stage.weights.whole(f"{name}.shared_gate", moe.shared_gate.weights[0], 1, moe.shared_gate.in_features)
        block.emit(MATMUL(dst=gate, a=x, w=stage.weight(block, "shared_gate_weight", weight), bias=None))
        block.emit(SIGMOID_GATE(dst=shared, x=shared, gate=gate))
    block.emit(ADD(dst=out, a=out, b=shared))
