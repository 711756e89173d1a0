"""Instructions of attention residuals, which mix earlier states of the residual stream by scores: RESIDUAL_MIX."""

from __future__ import annotations

import numpy as np

from .instruction import (
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    require,
    require_apart,
    require_columns,
    require_floats,
    rows_cols,
)
from .operands import In, Out
from .work import Unit, VectorShape, Work

_OPS = 6  # a value's square and its sum, its product with the weights and its sum, its share and the sum of shares


class RESIDUAL_MIX(Instruction, opcode=0xBA, unit=Unit.VECTOR):
    """dst = the sum of a token's values v, each times its share: the snapshots of the residual stream, and x.

    Shares are the softmax over a token's values of their scores, the sum over a row of v / sqrt(mean(v^2) + eps) *
    weight * query. All of it is in fp32, rounded once. A row of snapshots holds one row of x after another.
    """

    dst: Out
    snapshots: In
    x: In
    weight: In
    query: In
    eps: float

    def check(self, t: Shapes) -> None:
        dst, snapshots, x = (t.type_of(ref) for ref in (self.dst, self.snapshots, self.x))
        row, held = x.shape[-1], snapshots.shape[-1]
        require_floats(self, t, self.dst, self.snapshots, self.x, self.weight, self.query)
        require(dst.shape == x.shape and len(x.shape) == 2, self, f"dst is {dst} and x is {x}, must be [tokens, n]")
        require_columns(self, t, self.x)
        require(
            isinstance(row, int) and isinstance(held, int) and snapshots.shape[:-1] == x.shape[:-1] and held % row == 0,
            self,
            f"snapshots is {snapshots}, must hold whole rows of {x}",
        )
        for name in ("weight", "query"):
            kind = t.type_of(getattr(self, name))
            require(kind.shape == (row,), self, f"{name} is {kind}, must be [{row}]")
        require_apart(self, self.dst, self.snapshots, self.x, self.weight, self.query)
        require(self.eps >= 0, self, "eps must be 0 or more")

    def work(self, s: Sizes) -> Work:
        rows, cols = rows_cols(s.shape(self.x))
        held = s.shape(self.snapshots)[-1]
        return Work(
            Unit.VECTOR,
            ops=_OPS * rows * (held + cols),
            read_bytes=bytes_of(s, self.snapshots, self.x, self.weight, self.query),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(rows, held + cols, 2),  # scores, then the sum
        )

    def execute(self, m: Memory) -> None:
        x = m.get(self.x)
        values = np.concatenate([m.get(self.snapshots), x], axis=1).reshape(len(x), -1, x.shape[1])
        rms = np.sqrt(np.mean(values * values, axis=-1, keepdims=True, dtype=np.float32) + np.float32(self.eps))
        scores = np.sum(values / rms * (m.get(self.weight) * m.get(self.query)), axis=-1, dtype=np.float32)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        m.put(self.dst, np.asarray(np.sum(shares[..., None] * values, axis=1, dtype=np.float32)))
