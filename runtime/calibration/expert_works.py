"""A measured layer of experts as instructions: rows are gathered, multiplied, activated, multiplied and summed."""

from __future__ import annotations

from functools import lru_cache

from ...isa.activations import QUANTISE
from ...isa.dtype import BF16, FP32, INT32, DType
from ...isa.errors import UnsupportedError
from ...isa.experts import COMBINE, GROUPED_GATED, GROUPED_MATMUL, PERMUTE
from ...isa.formats.form import Form
from ...isa.instruction import Instruction
from ...isa.operands import Ref
from ...isa.program import Block
from ...isa.vector import SCALE
from .blocks import Extents, Row, block_of
from .schema import operand_type

UNGATED = "nongated"  # in the name of a kernel whose experts have no gate


def moe_block(row: Row) -> tuple[Block, Extents]:
    """The experts of one card for its part of the choices, evenly dealt; what a card quantises it does in passing."""
    if row["distribution"] != "balanced":
        raise UnsupportedError(f"experts that are chosen by {row['distribution']} are not dealt out here")
    dtype = operand_type(str(row["moe_dtype"]))
    if dtype is None:
        raise UnsupportedError(f"no instruction stands here for experts of {row['moe_dtype']}")
    cards, tokens, chosen = int(row["moe_ep_size"]), int(row["num_tokens"]), int(row["topk"])
    experts, width = int(row["num_experts"]) // cards, int(row["inter_size"]) // int(row["moe_tp_size"])
    rows = -(-tokens * chosen // cards)
    counts = tuple(rows // experts + (expert < rows % experts) for expert in range(experts))
    gated = UNGATED not in str(row["kernel_source"])
    block = _experts(dtype, experts, int(row["hidden_size"]), width, chosen, gated)
    return block, {"tokens": (tokens,), "rows": (rows,), "counts": counts}


@lru_cache(maxsize=4096)
def _experts(dtype: DType, experts: int, hidden: int, width: int, chosen: int, gated: bool) -> Block:
    where = (Ref("counts"), "counts", 0)
    activate: Instruction = SCALE(Ref("activated"), Ref("up"), 1.0)
    if gated:
        activate = GROUPED_GATED(Ref("activated"), Ref("up"), *where, experts, "silu")
    elif dtype.bits == 8:
        activate = QUANTISE(
            Ref("activated"), Ref("scales"), Ref("up"), Form(dtype, "plain", 1, 0, FP32), 448.0, "nearest"
        )
    body = (
        PERMUTE(Ref("permuted"), Ref("slots"), Ref("x"), Ref("ids"), "counts", 0, experts, 0, 1),
        GROUPED_MATMUL(Ref("up"), Ref("permuted"), Ref("w_up"), None, *where),
        activate,
        GROUPED_MATMUL(Ref("down"), Ref("activated"), Ref("w_down"), None, *where),
        COMBINE(Ref("y"), Ref("down"), Ref("slots"), Ref("weights"), "counts", 0, experts),
    )
    up = (1 + gated) * width
    return block_of("experts", body, {
        "x": (BF16, ("tokens", hidden)), "ids": (INT32, ("tokens", chosen)), "slots": (INT32, ("tokens", chosen)),
        "weights": (FP32, ("tokens", chosen)), "counts": (INT32, (experts,)), "permuted": (dtype, ("rows", hidden)),
        "up": (BF16, ("rows", up)), "activated": (dtype, ("rows", width)), "down": (BF16, ("rows", hidden)),
        "w_up": (dtype, (experts, up, hidden)), "w_down": (dtype, (experts, hidden, width)),
        "scales": (FP32, ("rows", 1)), "y": (BF16, ("tokens", hidden)),
    })  # fmt: skip
