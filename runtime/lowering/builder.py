"""ProgramBuilder: blocks written once, called often; equal blocks are found and shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...isa.dtype import DType
from ...isa.instruction import Dim, Instruction, TensorType
from ...isa.operands import Ref
from ...isa.program import Block, Buffer, Call, Extent, Group, Issue, Program, Space
from ...isa.work import Unit

Typed = tuple[tuple[str, TensorType], ...]
Signature = tuple[Typed, Typed, tuple[Issue, ...], tuple[str, ...]]


class BlockBuilder:
    """One block and the arguments of its call, under construction. Issues carry no waits yet: `sync` adds them."""

    def __init__(self, name: str, queue_of: Mapping[Unit, str]) -> None:
        self.name, self._queue_of = name, queue_of
        self.params: dict[str, TensorType] = {}
        self.arguments: dict[str, Buffer] = {}
        self.locals: dict[str, TensorType] = {}
        self.body: list[Issue] = []
        self.extents: dict[str, str] = {}

    def param(self, name: str, buffer: Buffer) -> Ref:
        """A parameter, bound in this call to `buffer`."""
        self.params[name] = buffer.type
        self.arguments[name] = buffer
        return Ref(name)

    def local(self, name: str, dtype: DType, *shape: Dim) -> Ref:
        """A buffer that lives within the block."""
        self.locals[name] = TensorType(dtype, shape)
        return Ref(name)

    def extent(self, name: str, bound: str) -> str:
        """A vector extent as a parameter, bound in this call to the program's extent `bound`."""
        self.extents[name] = bound
        return name

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction to the queue that serves its unit."""
        self.body.append(Issue(self._queue_of[type(instruction).unit], instruction))

    @property
    def signature(self) -> Signature:
        """What makes two blocks the same."""
        return tuple(self.params.items()), tuple(self.locals.items()), tuple(self.body), tuple(self.extents)


class ProgramBuilder:
    """A program under construction: buffers, blocks shared by signature, calls in order."""

    def __init__(self, name: str, queue_of: Mapping[Unit, str]) -> None:
        self.name, self.queue_of = name, queue_of
        self.buffers: dict[str, Buffer] = {}
        self.calls: list[Call] = []
        self.scalars: dict[str, Extent] = {}
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
        arguments = tuple(buffer.name for buffer in block.arguments.values())
        self.calls.append(Call(name, arguments, tuple(block.extents.values())))

    def repeat(self, call: Call, buffers: Iterable[Buffer]) -> None:
        """Append a call of a block that stands already, and declare the buffers it binds."""
        for buffer in buffers:
            self.buffers.setdefault(buffer.name, buffer)
        self.calls.append(call)

    def scalar(self, name: str) -> str:
        """A scalar extent beside those that every program has, declared once however often it is asked for."""
        self.scalars[name] = Extent(name)
        return name

    def build(self, extents: tuple[Extent, ...], groups: tuple[Group, ...]) -> Program:
        """The program, its blocks still without waits; extents that calls bind are declared after the given ones."""
        bound = dict.fromkeys(name for call in self.calls for name in call.extents)
        vectors = tuple(Extent(name, is_vector=True) for name in bound)
        return Program(
            name=self.name,
            queues=tuple(dict.fromkeys(self.queue_of.values())),
            extents=(*extents, *self.scalars.values(), *vectors),
            groups=groups,
            semaphores=(),
            buffers=tuple(self.buffers.values()),
            blocks=tuple(Block(name, *signature) for signature, name in self._blocks.items()),
            calls=tuple(self.calls),
        )


def buffer(name: str, space: Space, dtype: DType, *shape: Dim) -> Buffer:
    """A program buffer; it is declared by the first call that binds it."""
    return Buffer(name, TensorType(dtype, shape), space)
