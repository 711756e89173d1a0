"""Attention residuals on one rank: snapshots of the residual stream, mixes of them, and their way over stages.

Every rank of a tensor-parallel group holds all of them, as it holds the residual stream.
"""

from __future__ import annotations

from ...isa.dma import COPY
from ...isa.operands import Ref
from ...isa.program import Buffer, Space
from ...isa.residual import RESIDUAL_MIX
from ...models.blocks import ResidualMix
from .builder import BlockBuilder, buffer
from .stage import Stage


def snapshots_before(stage: Stage, layer: int) -> int:
    """How many snapshots stand before a layer, or after the last."""
    layers = stage.graph.layers
    residuals = layers[min(layer, len(layers) - 1)].residuals
    if residuals is None:
        return 0
    return residuals.snapshots if layer < len(layers) else residuals.snapshots_after


def held(stage: Stage) -> Buffer:
    """The snapshots that this stage holds when its layers have run, side by side in each token's row."""
    count, hidden = snapshots_before(stage, stage.layers.stop), stage.graph.hidden_size
    return buffer("snapshots", Space.ACTIVATION, stage.options.dtype, stage.stream, count * hidden)


def first(stage: Stage, block: BlockBuilder, count: int) -> Ref:
    """The first `count` snapshots, as the block's parameter `snapshots`."""
    whole = block.param("snapshots", held(stage))
    return Ref(whole.buffer, 0, count * stage.graph.hidden_size)


def take(stage: Stage, block: BlockBuilder, index: int, x: Ref) -> None:
    """Snapshot `index` = x."""
    hidden = stage.graph.hidden_size
    whole = block.param("snapshots", held(stage))
    block.emit(COPY(dst=Ref(whole.buffer, index * hidden, hidden), src=x))


def mix(stage: Stage, block: BlockBuilder, residual: ResidualMix, name: str, dst: Ref, snapshots: Ref, x: Ref) -> None:
    """dst = the weighted sum of snapshots and x; the last word of `name` names the parameters."""
    label, size = name.rpartition(".")[2], residual.norm.size
    weight = stage.weights.norm(f"{name}_norm", residual.norm)
    query = stage.weights.whole(f"{name}_query", residual.query, size)
    block.emit(
        RESIDUAL_MIX(
            dst=dst,
            snapshots=snapshots,
            x=x,
            weight=stage.weight(block, f"{label}_norm", weight),
            query=stage.weight(block, f"{label}_query", query),
            eps=residual.norm.eps,
        )
    )
