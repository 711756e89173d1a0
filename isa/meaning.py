"""The NumPy meaning of a Program on one card: device memory as arrays, instructions executed in program order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from .arithmetic import IEEE, Arithmetic
from .control import HALT
from .dtype import decode
from .errors import ProgramError
from .instruction import Array
from .operands import Ref
from .program import Binding, Block, BoundShapes, Call, Program


class ArrayMemory(BoundShapes):
    """Memory over storage arrays, one a name of the block; implements `instruction.Memory`."""

    def __init__(
        self,
        block: Block,
        group_sizes: Mapping[str, int],
        binding: Binding,
        arrays: Mapping[str, Array],
        extents: Mapping[str, str] = MappingProxyType({}),
        rules: Arithmetic = IEEE,
    ) -> None:
        super().__init__(block, group_sizes, binding, extents)
        self.arrays, self._rules = arrays, rules
        self.written: dict[str, Array] = {}

    def raw(self, ref: Ref) -> Array:
        """The operand's storage elements, a view into device memory."""
        array = self.arrays[ref.buffer]
        return array if ref.size is None else array[..., self.columns(ref)]

    def get(self, ref: Ref) -> Array:
        """Values of an operand: float32 for float types, the integers themselves otherwise."""
        return decode(np.ascontiguousarray(self.raw(ref)), self.type_of(ref).dtype)

    def put(self, ref: Ref, values: Array) -> None:
        """Round values to the operand's dtype and store them."""
        self.raw(ref)[...] = self.rules.stored(values, self.type_of(ref).dtype)

    @property
    def rules(self) -> Arithmetic:
        """How the card rounds."""
        return self._rules

    def write_extent(self, name: str, values: Array) -> None:
        """Bind a vector extent; `written` holds it under the program's name."""
        self.written_array(name, len(values))[:] = values

    def written_array(self, name: str, size: int) -> Array:
        """The integers, int64 [size], that an instruction writes an extent as."""
        return self.written.setdefault(self.extents.get(name, name), np.zeros(size, np.int64))

    def is_written(self, name: str) -> bool:
        """Whether an instruction writes an extent, so that its values change as the program runs."""
        return self.extents.get(name, name) in self.written

    def extent(self, name: str) -> tuple[int, ...]:
        """The values of an extent: those written, or those bound."""
        written = self.written.get(self.extents.get(name, name))
        return super().extent(name) if written is None else tuple(written.tolist())


def run_program(program: Program, arrays: Mapping[str, Array], binding: Binding) -> dict[str, tuple[int, ...]]:
    """Execute a program of one card on `arrays` (storage form, a name each buffer), changing them in place.

    Instructions run in the order of the text, which every wait must agree with; locals start as zeros; a queue stops at
    its `halt`. Returns the extents that instructions wrote. Raises ProgramError for arrays that do not fit their
    buffers and for instructions that cross cards.
    """
    halted: set[str] = set()
    written: dict[str, Array] = {}
    for call in program.calls:
        block = program.block[call.block]
        names = _bind(program, block, call, arrays, binding)
        memory = ArrayMemory(block, program.group_sizes, binding, names, program.extents_of(call))
        memory.written = written
        for issue in block.body:
            if issue.queue not in halted:
                with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN flow on, as on a card
                    issue.instruction.execute(memory)
            if isinstance(issue.instruction, HALT):
                halted.add(issue.queue)
    return {name: tuple(values.tolist()) for name, values in written.items()}


def _bind(
    program: Program, block: Block, call: Call, arrays: Mapping[str, Array], binding: Binding
) -> dict[str, Array]:
    """An array for every name of the block: the arguments' own, and fresh ones for locals."""
    shapes = BoundShapes(block, program.group_sizes, binding)
    names = {}
    for (name, kind), argument in zip(block.params, call.arguments, strict=True):
        if argument not in arrays:
            raise ProgramError(f"buffer {argument} has no array; given: {', '.join(arrays) or 'none'}")
        array, shape = arrays[argument], shapes.shape(Ref(name))
        if array.shape != shape or array.dtype != kind.dtype.storage:
            raise ProgramError(
                f"block {block.name}: {name} is bound to {array.dtype} {array.shape}, "
                f"must be {kind.dtype.storage} {shape}, the storage form of {kind}"
            )
        names[name] = array
    for name, kind in block.locals:
        names[name] = np.zeros(shapes.shape(Ref(name)), kind.dtype.storage)
    return names
