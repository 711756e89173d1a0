"""Rewriting blocks: new locals, instructions in place of others, and what a pass did, told by block and instruction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ....isa.dtype import DType
from ....isa.instruction import Dim, Instruction, TensorType
from ....isa.operands import Ref
from ....isa.program import Block, BlockShapes, Extent, Issue, Program
from ....isa.work import Unit

CONTEXT = "context"  # cached tokens of the step's longest sequence, rounded up to whole pages


@dataclass(frozen=True)
class Rewritten:
    """One place that a pass changed: in `block`, `old` instructions gave way to `new` ones."""

    name: str
    block: str
    old: tuple[Instruction, ...]
    new: tuple[Instruction, ...]


class BlockEditor:
    """A block under rewriting: types of all that its body may mention, and the locals that have been added."""

    def __init__(self, program: Program, block: Block, queue_of: Mapping[Unit, str]) -> None:
        self.block, self._queue_of = block, queue_of
        self._group_sizes = program.group_sizes
        self.locals = dict(block.locals)
        self.body: list[Issue] = []

    def type_of(self, ref: Ref) -> TensorType:
        """Type of an operand, its column range applied."""
        block = replace(self.block, locals=tuple(self.locals.items()))
        return BlockShapes(block, self._group_sizes).type_of(ref)

    def local(self, label: str, dtype: DType, *shape: Dim) -> Ref:
        """A new buffer within the block; its name is made unlike any other."""
        number = len(self.locals)
        while f"{label}.{number}" in self.block.types or f"{label}.{number}" in self.locals:
            number += 1
        name = f"{label}.{number}"
        self.locals[name] = TensorType(dtype, shape)
        return Ref(name)

    def issue(self, instruction: Instruction) -> Issue:
        """An instruction in the queue that serves its unit."""
        return Issue(self._queue_of[type(instruction).unit], instruction)

    def done(self, body: Iterable[Issue]) -> Block:
        """The block with another body; locals that nothing mentions any more are gone."""
        issues = tuple(body)
        used = {ref.buffer for issue in issues for ref, _ in issue.instruction.refs()}
        kept = tuple((name, kind) for name, kind in self.locals.items() if name in used)
        return replace(self.block, locals=kept, body=issues)


def with_blocks(program: Program, blocks: Iterable[Block]) -> Program:
    """The program with other blocks; the extent of the context is declared where one of them mentions it."""
    made = tuple(blocks)
    mentioned = any(CONTEXT in kind.shape for block in made for _, kind in block.locals)
    extents = program.extents
    if mentioned and CONTEXT not in {extent.name for extent in extents}:
        extents = (Extent(CONTEXT), *extents)
    return replace(program, blocks=made, extents=extents)
