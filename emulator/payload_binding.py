"""A card's program bound to its memory: runs of kernel thunks between the points where cards meet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..isa.arithmetic import IEEE, Arithmetic
from ..isa.control import HALT
from ..isa.dtype import decode
from ..isa.errors import ProgramError
from ..isa.instruction import Array, Instruction, elements
from ..isa.meaning import ArrayMemory
from ..isa.operands import Ref, Role
from ..isa.program import Binding, Block, BoundShapes, Call, Program
from ..isa.work import Unit
from .kernels.binding import Thunk
from .kernels.registry import KERNELS
from .payload_link import LinkOp, link_op
from .undefined import LEFT_UNDEFINED

# Read as bf16, fp16 or fp32 it is NaN, as int32 or int64 beyond any index: what unset memory holds in debug.
UNSET = np.uint16(0x7FFF)


@dataclass
class CardImage:
    """One card's memory for one program.

    `arrays` holds the storage array of every buffer of the program, host buffers too (bf16 as uint16 and so on, see
    isa.dtype). `arena` is the card's activation arena, uint8; `offsets` places every local, (block, name) -> bytes into
    the arena. `groups` names the ranks of every group in order, `rules` how the card rounds.
    """

    rank: int
    program: Program
    arrays: Mapping[str, Array]
    arena: Array
    offsets: Mapping[tuple[str, str], int]
    groups: Mapping[str, tuple[int, ...]]
    binding: Binding
    rules: Arithmetic = IEEE

    def key(self) -> Hashable:
        """What a bound program depends on: all but the values in the arrays and vector extents that count no rows."""
        extents = self.binding.extents
        scalars = tuple(extents.get(e.name) for e in self.program.extents if not e.is_vector)
        scalars += tuple(extents.get(name) for name in self.program.row_counts)
        arrays = (tuple(self.arrays), tuple(map(id, self.arrays.values())), id(self.arena))
        groups = (tuple(self.groups.items()), tuple(self.binding.group_index.items()))
        return self.rank, self.rules, id(self.program), scalars, arrays, tuple(self.offsets.items()), groups


@dataclass(frozen=True, eq=False)
class Site:
    """One instruction of one call on one card, bound to its memory."""

    image: CardImage
    call: int
    block: Block
    position: int
    instruction: Instruction
    memory: ArrayMemory


Inspect = Callable[[Site], Thunk | None]  # at binding: what is to run whenever the instruction has ended


@dataclass(frozen=True, eq=False)
class Segment:
    """Thunks of one call that need no other card, then perhaps a link instruction that does.

    `ends_call` is the index of the call that this segment ends, or -1; `where` names the call for errors.
    """

    thunks: tuple[Thunk, ...]
    link: LinkOp | None
    ends_call: int
    where: str


@dataclass(frozen=True, eq=False)
class BoundProgram:
    """A program whose every operand is a view; `partners` are the ranks that it exchanges bytes with.

    `written` holds the extents that its instructions write, as of its last run.
    """

    program: Program
    segments: tuple[Segment, ...]
    partners: frozenset[int]
    written: Mapping[str, Array]


def bind_program(image: CardImage, debug: bool = False, inspect: Inspect | None = None) -> BoundProgram:
    """Bind every instruction of every call; ProgramError for arrays, offsets or groups that do not fit."""
    program = image.program
    segments: list[Segment] = []
    halted: set[str] = set()
    where, written = "its groups", dict[str, Array]()
    try:
        _check_groups(image)
        for index, call in enumerate(program.calls):
            where = f"call {index} of {call.block}"
            block = program.block[call.block]
            names = _call_arrays(image, block, call)
            memory = ArrayMemory(
                block, program.group_sizes, image.binding, names, program.extents_of(call), image.rules
            )
            memory.written = written
            items: list[Thunk | LinkOp] = [_unset_locals(block, names)] if debug else []
            for position, issue in enumerate(block.body):
                site = Site(image, index, block, position, issue.instruction, memory)
                items += _items(site, issue.queue, halted, where)
                if debug:
                    items += _checks(issue.instruction, memory)
                if inspect is not None and (seen := inspect(site)) is not None:
                    items.append(seen)
            segments += _cut(items, index, where)
    except ProgramError as error:
        raise ProgramError(f"card {image.rank}, program {program.name}, {where}: {error}") from error
    partners = {peer for segment in segments if segment.link for peer in segment.link.partners}
    return BoundProgram(program, tuple(segments), frozenset(partners), written)


def _check_groups(image: CardImage) -> None:
    for name, size in image.program.group_sizes.items():
        ranks, index = image.groups.get(name), image.binding.group_index.get(name)
        if ranks is None or index is None:
            raise ProgramError(f"group {name!r} is not bound to ranks")
        if len(ranks) != size or len(set(ranks)) != size:
            raise ProgramError(f"group {name!r} has {size} members, bound to ranks {ranks}")
        if not 0 <= index < size or ranks[index] != image.rank:
            raise ProgramError(f"index {index} of group {name!r} {ranks} is not this card")


def _call_arrays(image: CardImage, block: Block, call: Call) -> dict[str, Array]:
    """An array for every name of the block: its arguments' own, and views into the arena for its locals."""
    names = {}
    for (name, _), argument in zip(block.params, call.arguments, strict=True):
        if argument not in image.arrays:
            raise ProgramError(f"buffer {argument} has no array; given: {', '.join(image.arrays) or 'none'}")
        names[name] = image.arrays[argument]
    shapes = BoundShapes(block, image.program.group_sizes, image.binding)
    for name, kind in block.locals:
        shape = shapes.shape(Ref(name))
        if (block.name, name) not in image.offsets:
            raise ProgramError(f"local {name} has no offset in the arena")
        start = image.offsets[block.name, name]
        size_bytes = kind.dtype.bytes_of(elements(shape))
        if start < 0 or start + size_bytes > image.arena.nbytes:
            raise ProgramError(
                f"local {name} lies at bytes {start} to {start + size_bytes} of an arena of {image.arena.nbytes}"
            )
        names[name] = image.arena[start : start + size_bytes].view(kind.dtype.storage).reshape(shape)
    return names


def _items(site: Site, queue: str, halted: set[str], where: str) -> Iterator[Thunk | LinkOp]:
    """The thunk or the link operation of an instruction, if it does something."""
    instruction, memory = site.instruction, site.memory
    if queue in halted:
        return
    if isinstance(instruction, HALT):
        halted.add(queue)
    elif instruction.unit is Unit.LINK:
        yield link_op(site.image.rank, instruction, memory, site.image.groups, where)
    elif instruction.unit is not Unit.CONTROL:
        if instruction.mnemonic not in KERNELS:
            raise ProgramError(f"{instruction.mnemonic} has no kernel (in: {instruction})")
        yield KERNELS[instruction.mnemonic](instruction, memory)


def _cut(items: list[Thunk | LinkOp], call: int, where: str) -> Iterator[Segment]:
    """Cut one call's items after every link operation; the last segment ends the call."""
    thunks: list[Thunk] = []
    for item in items:
        if isinstance(item, LinkOp):
            yield Segment(tuple(thunks), item, -1, where)
            thunks = []
        else:
            thunks.append(item)
    yield Segment(tuple(thunks), None, call, where)


def _unset_locals(block: Block, names: Mapping[str, Array]) -> Thunk:
    """Fills a block's locals with UNSET."""
    views = [names[name].reshape(-1).view(np.uint8) for name, _ in block.locals]
    low, high = UNSET.tobytes()

    def thunk() -> None:
        for view in views:
            view[0::2], view[1::2] = low, high

    return thunk


def _checks(instruction: Instruction, memory: ArrayMemory) -> Iterator[Thunk]:
    """Checks that what an instruction has written is finite; a cache that rows are scattered into may be half unset."""
    for ref, role in instruction.refs():
        dtype = memory.type_of(ref).dtype
        into_cache = role is Role.INOUT and instruction.unit is Unit.DMA
        if role is Role.IN or not dtype.is_float or into_cache:
            continue
        if (instruction.mnemonic, role) in LEFT_UNDEFINED or getattr(instruction, "starts", None) is not None:
            continue
        view, bits = memory.raw(ref), dtype.bits
        if bits < 8:
            continue

        def check(view: Array = view, ref: Ref = ref) -> None:
            values = decode(np.ascontiguousarray(view), memory.type_of(ref).dtype)
            wrong = ~np.isfinite(values)
            if wrong.any():
                place = tuple(int(i) for i in np.argwhere(wrong)[0])
                raise ProgramError(
                    f"{instruction.mnemonic} wrote {values[place]} at {list(place)} of {ref}, {int(wrong.sum())} "
                    f"of {values.size} elements are not finite (in: {instruction})"
                )

        yield check
