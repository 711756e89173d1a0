"""Feed-forward blocks on one rank."""

from __future__ import annotations

from ...isa.operands import Ref
from ...isa.tensor import MATMUL
from ...isa.vector import GATED
from ...models.blocks import GatedMlp
from .builder import BlockBuilder
from .stage import Stage


def lower_mlp(stage: Stage, block: BlockBuilder, mlp: GatedMlp, name: str, x: Ref, out: Ref) -> None:
    """out = this rank's part of down(activation(gate(x)) * up(x)), to be summed over the tensor-parallel group."""
    dtype, width = stage.options.dtype, mlp.intermediate_size // stage.layout.tp
    gate_up = block.local("gate_up", dtype, "tokens", 2 * width)
    weight, bias = stage.weights.gate_up(f"{name}.gate_up", mlp)
    w, b = stage.weight(block, "gate_up_weight", weight), stage.optional(block, "gate_up_bias", bias)
    block.emit(MATMUL(dst=gate_up, a=x, w=w, bias=b))
    activated = block.local("activated", dtype, "tokens", width)
    block.emit(GATED(dst=activated, x=gate_up, activation=mlp.activation))
    weight, bias = stage.weights.row_parallel(f"{name}.down", mlp.down)
    w, b = stage.weight(block, "down_weight", weight), stage.optional(block, "down_bias", bias)
    block.emit(MATMUL(dst=out, a=activated, w=w, bias=b))
