"""The NumPy meaning of a Program on one card: device memory as arrays, instructions executed in program order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .dtype import decode, encode
from .errors import ProgramError
from .instruction import Array
from .operands import Ref
from .program import Binding, Block, BoundShapes, Program


class ArrayMemory(BoundShapes):
    """Memory over storage arrays, one a name of the block; implements `instruction.Memory`."""

    def __init__(
        self, block: Block, group_sizes: Mapping[str, int], binding: Binding, arrays: Mapping[str, Array]
    ) -> None:
        super().__init__(block, group_sizes, binding)
        self.arrays = arrays

    def raw(self, ref: Ref) -> Array:
        """The operand's storage elements, a view into device memory."""
        array = self.arrays[ref.buffer]
        return array if ref.size is None else array[..., ref.start : ref.start + ref.size]

    def get(self, ref: Ref) -> Array:
        """Values of an operand: float32 for float types, the integers themselves otherwise."""
        return decode(np.ascontiguousarray(self.raw(ref)), self.type_of(ref).dtype)

    def put(self, ref: Ref, values: Array) -> None:
        """Round values to the operand's dtype and store them."""
        self.raw(ref)[...] = encode(values, self.type_of(ref).dtype)


def run_program(program: Program, arrays: Mapping[str, Array], binding: Binding) -> None:
    """Execute a program of one card on `arrays` (storage form, a name each buffer), changing them in place.

    Raises ProgramError for arrays of the wrong shape and for instructions that cross cards.
    """
    for call in program.calls:
        block = program.block[call.block]
        shapes = BoundShapes(block, program.group_sizes, binding)
        names = {name: arrays[argument] for (name, _), argument in zip(block.params, call.arguments, strict=True)}
        for name, kind in block.locals:
            names[name] = np.zeros(shapes.shape(Ref(name)), kind.dtype.storage)
        for name, array in names.items():
            if array.shape != shapes.shape(Ref(name)):
                raise ProgramError(
                    f"block {block.name}: {name} is bound to {array.shape}, must be {shapes.shape(Ref(name))}"
                )
        memory = ArrayMemory(block, program.group_sizes, binding, names)
        for issue in block.body:
            issue.instruction.execute(memory)
