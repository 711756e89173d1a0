"""What stands around experts of a narrower stream on one rank: latents whole on every rank, outputs cut along them."""

from __future__ import annotations

from ...isa.operands import Ref
from ...isa.tensor import MATMUL
from ...models.blocks import LatentExperts
from .builder import BlockBuilder
from .stage import Stage
from .standing import latent_first

LATENTS = ("expert_latent", "expert_latent_sum")  # what the experts take, and the weighted sum that they give


def lower_latent_in(stage: Stage, block: BlockBuilder, latent: LatentExperts, name: str, x: Ref, taken: Ref) -> None:
    """taken = the latents of x. Every rank makes them all, as it routes all tokens: no rank waits for another's."""
    width = latent.down.out_features[0]
    weight, _ = stage.weights.fused(f"{name}.experts_latent_down", latent.down, [(0, width)])
    block.emit(MATMUL(dst=taken, a=x, w=stage.weight(block, "experts_latent_down", weight), bias=None))


def lower_latent_out(stage: Stage, block: BlockBuilder, latent: LatentExperts, name: str, given: Ref, out: Ref) -> None:
    """out = this rank's part of the output of the experts' sum, whose norm needs all ranks' parts of it first."""
    stage.all_reduce(block, given)
    if latent.norm is not None:
        stage.norm(block, f"{name}.experts_latent_norm", latent.norm, given, given)
    weight, _ = stage.weights.row_parallel(f"{name}.experts_latent_up", latent.up)
    width = latent.up.in_features
    start, stop = stage.weights.share(width)
    own = Ref(given.buffer, 0, stop - start, str(stage.own(latent_first(width))) if stage.layout.tp > 1 else None)
    w = stage.weight(block, "experts_latent_up", weight)
    block.emit(MATMUL(dst=out, a=own, w=w, bias=None))
