"""What row-wise vector instructions share: their Work, the rules of norms and maps, and RMS normalisation."""

from __future__ import annotations

import numpy as np

from .dtype import decode, encode
from .instruction import (
    Array,
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
from .operands import Ref
from .work import Unit, VectorShape, Work


def vector_work(
    s: Sizes, over: Ref, reads: tuple[Ref | None, ...], writes: tuple[Ref, ...], ops: int, passes: int
) -> Work:
    """Work of a row-wise instruction: `ops` operations an element of `over`, `passes` trips over its rows."""
    rows, cols = rows_cols(s.shape(over))
    return Work(
        Unit.VECTOR,
        ops=ops * rows * cols,
        read_bytes=bytes_of(s, *reads),
        write_bytes=bytes_of(s, *writes),
        dtype=s.type_of(over).dtype,
        shape=VectorShape(rows, cols, passes),
    )


def rms_normal(m: Memory, x: Array, weight: Ref, eps: float, plus_one: bool, rounded: Ref) -> Array:
    """RMS-normalise every run of len(weight) elements; x / rms is rounded to `rounded`'s dtype before the weight."""
    scale = m.get(weight) + np.float32(1) if plus_one else m.get(weight)
    runs = x.reshape(-1, len(scale))
    normal = runs / np.sqrt(np.mean(runs * runs, axis=1, keepdims=True, dtype=np.float32) + np.float32(eps))
    if not plus_one:  # models with 1 + w keep fp32 until the end
        dtype = m.type_of(rounded).dtype
        normal = decode(encode(normal, dtype), dtype)
    return (normal * scale).reshape(x.shape)


def check_norm(instruction: Instruction, t: Shapes, dst: Ref, x: Ref, weight: Ref, eps: float) -> None:
    """A norm: floats, dst like x, weight as long as a row or a divisor of it, eps not negative."""
    kind, scale = t.type_of(x), t.type_of(weight)
    check_map(instruction, t, dst, x)
    require_floats(instruction, t, weight)
    require_apart(instruction, dst, weight)
    require_columns(instruction, t, x)
    run, row = scale.shape[0], kind.shape[-1]
    whole = isinstance(run, int) and isinstance(row, int) and run > 0 and row % run == 0
    require(
        len(scale.shape) == 1 and (run == row or whole),
        instruction,
        f"weight is {scale}, must divide rows of {kind}",
    )
    require(eps >= 0, instruction, "eps must be 0 or more")


def check_map(instruction: Instruction, t: Shapes, dst: Ref, *sources: Ref) -> None:
    """Element-wise work: floats of one shape."""
    require_floats(instruction, t, dst, *sources)
    for source in sources:
        require(
            t.type_of(dst).shape == t.type_of(source).shape,
            instruction,
            f"{dst} is {t.type_of(dst)} and {source} is {t.type_of(source)}: they must have one shape",
        )
        if source != dst:  # in place is safe element by element, shifted columns are not
            require_apart(instruction, dst, source)
