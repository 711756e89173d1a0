"""Binders of fused instructions: the kernels of their parts, over buffers that live on the host alone."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np

from ...isa.fused import FUSED_GROUPED_MATMUL, FUSED_MATMUL, Fused, InnerShapes
from ...isa.fused_attention import ROPE_ATTENTION, ROPE_LATENT_ATTENTION
from ...isa.fused_packed import FUSED_PACKED_GROUPED_MATMUL, FUSED_PACKED_MATMUL
from ...isa.instruction import Array
from ...isa.meaning import ArrayMemory
from ...isa.operands import Ref
from ...isa.program import Block
from .binding import KERNELS, Thunk, kernel_of

# Thunks of all cards run one after the other, so that buffers of one name, type and shape may be one array.
_BETWEEN: WeakValueDictionary[tuple[str, str, tuple[int, ...]], Array] = WeakValueDictionary()


def _array(name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    key = (name, str(dtype), shape)
    found = _BETWEEN.get(key)
    if found is None:
        found = _BETWEEN[key] = np.zeros(shape, dtype)
    return found


def bind_parts(instruction: Fused, memory: ArrayMemory) -> Thunk:
    """The thunks of the parts, one after the other."""
    parts = instruction.parts(memory)
    inner = InnerShapes(memory, parts.between)
    arrays = {name: _array(name, kind.dtype.storage, inner.shape(Ref(name))) for name, kind in parts.between.items()}
    block: Block = replace(memory.block, locals=(*memory.block.locals, *parts.between.items()))
    widened = ArrayMemory(
        block, memory.group_sizes, memory.binding, {**memory.arrays, **arrays}, memory.extents, memory.rules
    )
    widened.written = memory.written
    thunks = [KERNELS[part.mnemonic](part, widened) for part in parts.instructions]

    def thunk() -> None:
        for run in thunks:
            run()

    return thunk


for _products in (FUSED_MATMUL, FUSED_GROUPED_MATMUL, FUSED_PACKED_MATMUL, FUSED_PACKED_GROUPED_MATMUL):
    kernel_of(_products, obeys=True)(bind_parts)
for _attention in (ROPE_ATTENTION, ROPE_LATENT_ATTENTION):
    kernel_of(_attention, obeys=True)(bind_parts)
