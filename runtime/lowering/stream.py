"""The residual stream on one rank: every token, or with sequence parallelism this rank's share of the tokens.

Shares are an even split of the tokens over the tensor-parallel group. Norms and sums then work on shares alone: what
goes into attention and feed-forward is gathered, what comes out is summed and scattered, in place of one all-reduce.
"""

from __future__ import annotations

from ...isa.link import ALL_GATHER, REDUCE_SCATTER
from ...isa.operands import Ref
from .builder import BlockBuilder
from .stage import Stage


def local(stage: Stage, block: BlockBuilder, name: str) -> Ref:
    """A local with the rows of the stream."""
    return block.local(name, stage.options.dtype, stage.stream, stage.graph.hidden_size)


def gathered(stage: Stage, block: BlockBuilder, name: str, rows: Ref, columns: int | None = None) -> Ref:
    """All tokens' rows of what the ranks hold shares of, as the local `name`; `rows` itself where each holds all."""
    if not stage.is_shared:
        return rows
    whole = block.local(name, stage.options.dtype, "tokens", columns or stage.graph.hidden_size)
    block.emit(ALL_GATHER(dst=whole, src=rows, group="tp", axis="rows"))
    return whole


def summed(stage: Stage, block: BlockBuilder, name: str, partial: Ref) -> Ref:
    """The sum of all ranks' `partial`: `partial` itself, or where streams are shared this rank's share as a local."""
    if not stage.is_shared:
        stage.all_reduce(block, partial)
        return partial
    total = local(stage, block, name)
    block.emit(REDUCE_SCATTER(dst=total, src=partial, group="tp"))
    return total
