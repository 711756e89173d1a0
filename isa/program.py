"""Program: what one card is told to do, as calls of blocks over named buffers, with a table of extents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType

from .control import SIGNAL
from .errors import ProgramError
from .instruction import Instruction, TensorType
from .operands import NameKind, Ref
from .work import Unit


class Space(Enum):
    """What a buffer holds, which is also the tag its device memory is accounted under."""

    WEIGHT = "weight"
    TABLE = "table"
    KV = "kv"
    STATE = "state"
    ACTIVATION = "activation"
    INPUT = "input"
    COMMUNICATION = "communication"
    HOST = "host"
    SCALE = "scale"


@dataclass(frozen=True)
class Buffer:
    """A named buffer of a program; host buffers lie in host memory, all others on the device."""

    name: str
    type: TensorType
    space: Space


@dataclass(frozen=True)
class Issue:
    """An instruction in its queue, with what it waits for.

    Each wait is (semaphore, count). The semaphore is one that the program declares, or a queue's name: a queue's
    semaphore grows by one as each of its instructions ends. Counts are relative to the call: all that the calls before
    it signal, plus `count`. What a wait counts on in its own call stands above it: the order of the text can run.
    """

    queue: str
    instruction: Instruction
    waits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Block:
    """Straight-line instructions over parameters (bound by each call) and locals (dead when the call ends).

    `extents` are parameters too: names of vector extents, which the body's operands may mention and each call binds.
    """

    name: str
    params: tuple[tuple[str, TensorType], ...]
    locals: tuple[tuple[str, TensorType], ...]
    body: tuple[Issue, ...]
    extents: tuple[str, ...] = ()

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Type of every name that the body may mention."""
        return dict(self.params) | dict(self.locals)

    @cached_property
    def signals(self) -> Counter[str]:
        """What one call adds to every semaphore, queue semaphores included."""
        total = Counter(issue.queue for issue in self.body)
        for issue in self.body:
            if isinstance(issue.instruction, SIGNAL):
                total[issue.instruction.semaphore] += issue.instruction.count
        return total


@dataclass(frozen=True)
class Call:
    """One execution of a block: a program buffer for each of its parameters, in order, and an extent likewise."""

    block: str
    arguments: tuple[str, ...]
    extents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extent:
    """A named integer that the host binds at submission; a vector extent holds several, such as one a sequence.

    A vector extent that an instruction writes is bound when that instruction ends.
    """

    name: str
    is_vector: bool = False


@dataclass(frozen=True)
class Group:
    """A named group of ranks that the program communicates in; which ranks, the cluster binding says."""

    name: str
    size: int


@dataclass(frozen=True)
class Program:
    """All that one card executes for one step; a pure value that can be printed, saved, compared and run."""

    name: str
    queues: tuple[str, ...]
    extents: tuple[Extent, ...]
    groups: tuple[Group, ...]
    semaphores: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    blocks: tuple[Block, ...]
    calls: tuple[Call, ...]

    @cached_property
    def block(self) -> dict[str, Block]:
        """Blocks by name."""
        return {block.name: block for block in self.blocks}

    @cached_property
    def buffer(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def passed(self) -> set[str]:
        """The names of checks that it has passed, for it never changes."""
        return set()

    @cached_property
    def row_counts(self) -> tuple[str, ...]:
        """Names of the vector extents by which link instructions cut buffers into rows, each once."""
        return self._named(NameKind.EXTENT, Unit.LINK)

    @cached_property
    def written_extents(self) -> tuple[str, ...]:
        """Names of the vector extents that instructions write, each once; all others are the host's to bind."""
        return self._named(NameKind.EXTENT_OUT)

    def _named(self, kind: NameKind, unit: Unit | None = None) -> tuple[str, ...]:
        """The program's extents in operands of one kind, of the instructions of one unit (None: of any)."""
        mentioned = {
            block.name: [
                getattr(issue.instruction, name)
                for issue in block.body
                if unit in (None, issue.instruction.unit)
                for name, operand in issue.instruction.operands.items()
                if operand.names is kind
            ]
            for block in self.blocks
        }
        names: dict[str, None] = {}
        for call in self.calls:
            bound = self.extents_of(call) if call.extents else {}
            names |= dict.fromkeys([bound.get(name, name) for name in mentioned[call.block]])
        return tuple(names)

    def extents_of(self, call: Call) -> dict[str, str]:
        """The program's extent behind each extent parameter of the block that is called."""
        return dict(zip(self.block[call.block].extents, call.extents, strict=True))

    @cached_property
    def group_sizes(self) -> dict[str, int]:
        """Group sizes by name."""
        return {group.name: group.size for group in self.groups}


def column_slice(kind: TensorType, ref: Ref) -> TensorType:
    """The type of `ref` into a buffer of type `kind`; ProgramError when the columns are not there."""
    if ref.size is None:
        return kind
    last = kind.shape[-1] if kind.shape else 0
    if not isinstance(last, int) or ref.start + ref.size > last:  # columns that begin at an extent: seen once bound
        raise ProgramError(f"{ref} takes columns that {kind} does not have")
    return TensorType(kind.dtype, (*kind.shape[:-1], ref.size))


class BlockShapes:
    """Symbolic types of a block's operands: what the legality check reads."""

    def __init__(self, block: Block, group_sizes: Mapping[str, int]) -> None:
        self.block, self.group_sizes = block, group_sizes

    def type_of(self, ref: Ref) -> TensorType:
        """Type of an operand, its column range applied."""
        if ref.buffer not in self.block.types:
            known = ", ".join(self.block.types)
            raise ProgramError(f"block {self.block.name}: no buffer {ref.buffer!r}; it has {known}")
        return column_slice(self.block.types[ref.buffer], ref)

    def group_size(self, group: str) -> int:
        """Ranks in a group."""
        if group not in self.group_sizes:
            known = ", ".join(self.group_sizes) or "none"
            raise ProgramError(f"block {self.block.name}: group {group!r} is not declared; declared: {known}")
        return self.group_sizes[group]


@dataclass(frozen=True)
class Binding:
    """What a submission binds: a value for every extent, and this card's index in every group."""

    extents: Mapping[str, tuple[int, ...]]
    group_index: Mapping[str, int]


class BoundShapes(BlockShapes):
    """A block's operands with every extent a number: what Work is computed from.

    `extents` are the program's names behind the block's extent parameters, as a call binds them.
    """

    def __init__(
        self,
        block: Block,
        group_sizes: Mapping[str, int],
        binding: Binding,
        extents: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(block, group_sizes)
        self.binding, self.extents = binding, extents

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Dimensions of an operand."""
        return tuple(d if isinstance(d, int) else self.scalar(d) for d in self.type_of(ref).shape)

    def scalar(self, name: str) -> int:
        """The value of an extent that is a dimension or a number of this card."""
        values = self.extent(name)
        if len(values) != 1 or values[0] < 0:
            raise ProgramError(f"extent {name!r} is a scalar and must be one number, 0 or more; it is {values}")
        return values[0]

    def number(self, value: int | str) -> int:
        """An operand that is an integer, or what the scalar extent that it names is bound to."""
        return self.scalar(value) if isinstance(value, str) else value

    def columns(self, ref: Ref) -> slice:
        """The columns of its buffer that an operand takes; ProgramError where it begins too far on."""
        if ref.size is None:
            return slice(None)
        start = ref.start if ref.at is None else self.scalar(ref.at)
        last = self.type_of(Ref(ref.buffer)).shape[-1]
        if not isinstance(last, int) or start + ref.size > last:
            raise ProgramError(f"{ref} takes columns {start} to {start + ref.size} of {last}")
        return slice(start, start + ref.size)

    def extent(self, name: str) -> tuple[int, ...]:
        """The values of an extent (one for a scalar)."""
        name = self.extents.get(name, name)
        if name not in self.binding.extents:
            raise ProgramError(f"extent {name!r} is not bound; bound: {', '.join(self.binding.extents) or 'none'}")
        return self.binding.extents[name]

    def group_index(self, group: str) -> int:
        """This card's place in a group."""
        size = self.group_size(group)
        if group not in self.binding.group_index:
            bound = ", ".join(self.binding.group_index) or "none"
            raise ProgramError(f"this card's index in group {group!r} is not bound; bound: {bound}")
        index = self.binding.group_index[group]
        if not 0 <= index < size:
            raise ProgramError(f"this card's index in group {group!r} is {index}; the group has {size} ranks")
        return index
