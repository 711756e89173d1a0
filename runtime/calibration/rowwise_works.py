"""The instruction that a row of `layers.csv` times: a norm, a gate, an addition or a softmax over tokens."""

from __future__ import annotations

from ...isa.dtype import parse_dtype
from ...isa.instruction import Instruction
from ...isa.operands import Ref
from ...isa.program import Block
from ...isa.vector import ADD, GATED, RMSNORM, SOFTMAX
from .blocks import Extents, Row, Types, block_of

_DST, _X = Ref("dst"), Ref("x")
INSTRUCTIONS: dict[str, Instruction] = {
    "rmsnorm": RMSNORM(_DST, _X, Ref("weight"), 1e-6, False),
    "gated": GATED(_DST, _X, "silu"),
    "add": ADD(_DST, _X, Ref("y")),
    "softmax": SOFTMAX(_DST, _X),
}


def rowwise_block(row: Row) -> tuple[Block, Extents]:
    """One row-wise instruction over `num_tokens` rows of `width` results."""
    name, dtype, width = str(row["op_name"]), parse_dtype(str(row["dtype"])), int(row["width"])
    rows = (dtype, ("tokens", width))
    types: Types = {"dst": rows, "x": (dtype, ("tokens", 2 * width)) if name == "gated" else rows}
    if name == "rmsnorm":
        types["weight"] = dtype, (width,)
    if name == "add":
        types["y"] = rows
    return block_of("rowwise", (INSTRUCTIONS[name],), types), {"tokens": (int(row["num_tokens"]),)}
