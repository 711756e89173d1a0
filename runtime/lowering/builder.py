"""ProgramBuilder: blocks written once, called often; equal blocks are found and shared."""

from __future__ import annotations

from collections.abc import Mapping

from ...isa.dtype import DType
from ...isa.instruction import Dim, Instruction, TensorType
from ...isa.operands import Ref
from ...isa.program import Block, Buffer, Call, Extent, Group, Issue, Program, Space
from ...isa.work import Unit

Signature = tuple[tuple[tuple[str, TensorType], ...], tuple[tuple[str, TensorType], ...], tuple[Issue, ...]]


class BlockBuilder:
    """One block and the arguments of its call, under construction. Issues carry no waits yet: `sync` adds them."""

    def __init__(self, name: str, queue_of: Mapping[Unit, str]) -> None:
        self.name, self._queue_of = name, queue_of
        self.params: dict[str, TensorType] = {}
        self.arguments: dict[str, Buffer] = {}
        self.locals: dict[str, TensorType] = {}
        self.body: list[Issue] = []

    def param(self, name: str, buffer: Buffer) -> Ref:
        """A parameter, bound in this call to `buffer`."""
        self.params[name] = buffer.type
        self.arguments[name] = buffer
        return Ref(name)

    def local(self, name: str, dtype: DType, *shape: Dim) -> Ref:
        """A buffer that lives within the block."""
        self.locals[name] = TensorType(dtype, shape)
        return Ref(name)

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction to the queue that serves its unit."""
        self.body.append(Issue(self._queue_of[type(instruction).unit], instruction))

    @property
    def signature(self) -> Signature:
        """What makes two blocks the same."""
        return tuple(self.params.items()), tuple(self.locals.items()), tuple(self.body)


class ProgramBuilder:
    """A program under construction: buffers, blocks shared by signature, calls in order."""

    def __init__(self, name: str, queue_of: Mapping[Unit, str]) -> None:
        self.name, self.queue_of = name, queue_of
        self.buffers: dict[str, Buffer] = {}
        self.calls: list[Call] = []
        self._blocks: dict[Signature, str] = {}

    def block(self, name: str) -> BlockBuilder:
        """Start a block."""
        return BlockBuilder(name, self.queue_of)

    def call(self, block: BlockBuilder) -> None:
        """Append a call of the block, reusing an equal one that stands already, and declare the buffers it binds."""
        name = self._blocks.get(block.signature)
        if name is None:
            taken = sum(known.split(".")[0] == block.name for known in self._blocks.values())
            name = f"{block.name}.{taken}" if taken else block.name
            self._blocks[block.signature] = name
        for buffer in block.arguments.values():
            known = self.buffers.setdefault(buffer.name, buffer)
            assert known == buffer, f"buffer {buffer.name} is {known} and {buffer}"
        self.calls.append(Call(name, tuple(buffer.name for buffer in block.arguments.values())))

    def build(self, extents: tuple[Extent, ...], groups: tuple[Group, ...]) -> Program:
        """The program, its blocks still without waits."""
        return Program(
            name=self.name,
            queues=tuple(dict.fromkeys(self.queue_of.values())),
            extents=extents,
            groups=groups,
            semaphores=(),
            buffers=tuple(self.buffers.values()),
            blocks=tuple(Block(name, *signature) for signature, name in self._blocks.items()),
            calls=tuple(self.calls),
        )


def buffer(name: str, space: Space, dtype: DType, *shape: Dim) -> Buffer:
    """A program buffer; it is declared by the first call that binds it."""
    return Buffer(name, TensorType(dtype, shape), space)
