"""A card's program bound to its memory: runs of kernel thunks between the points where cards meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

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
from .payload_exchange import LinkOp, link_op

# Read as bf16, fp16 or fp32 it is NaN, as int32 or int64 beyond any index: what unset memory holds in debug.
UNSET = np.uint16(0x7FFF)


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
    """A program whose every operand is a view; `partners` are the ranks that it exchanges bytes with."""

    program: Program
    segments: tuple[Segment, ...]
    partners: frozenset[int]


def bind_program(
    rank: int,
    program: Program,
    arrays: Mapping[str, Array],
    arena: Array,
    offsets: Mapping[tuple[str, str], int],
    groups: Mapping[str, tuple[int, ...]],
    binding: Binding,
    debug: bool = False,
) -> BoundProgram:
    """Bind every instruction of every call; ProgramError for arrays, offsets or groups that do not fit."""
    _check_groups(rank, program, groups, binding)
    segments: list[Segment] = []
    halted: set[str] = set()
    for index, call in enumerate(program.calls):
        where = f"call {index} of {call.block}"
        try:
            block = program.block[call.block]
            names = _call_arrays(program, block, call, arrays, arena, offsets, binding)
            memory = ArrayMemory(block, program.group_sizes, binding, names)
            items = list(_items(rank, block, memory, groups, halted, where, debug))
        except ProgramError as error:
            raise ProgramError(f"card {rank}, program {program.name}, {where}: {error}") from error
        if debug:
            items.insert(0, _unset_locals(block, names))
        segments += _cut(items, index, where)
    partners = {peer for segment in segments if segment.link for peer in segment.link.partners}
    return BoundProgram(program, tuple(segments), frozenset(partners))


def _check_groups(rank: int, program: Program, groups: Mapping[str, tuple[int, ...]], binding: Binding) -> None:
    for name, size in program.group_sizes.items():
        ranks = groups.get(name)
        index = binding.group_index.get(name)
        if ranks is None or index is None:
            raise ProgramError(f"card {rank}, program {program.name}: group {name!r} is not bound to ranks")
        if len(ranks) != size or len(set(ranks)) != size:
            raise ProgramError(
                f"card {rank}, program {program.name}: group {name!r} has {size} members, bound to ranks {ranks}"
            )
        if not 0 <= index < size or ranks[index] != rank:
            raise ProgramError(
                f"card {rank}, program {program.name}: index {index} of group {name!r} {ranks} is not this card"
            )


def _call_arrays(
    program: Program,
    block: Block,
    call: Call,
    arrays: Mapping[str, Array],
    arena: Array,
    offsets: Mapping[tuple[str, str], int],
    binding: Binding,
) -> dict[str, Array]:
    """An array for every name of the block: its arguments' own, and views into the arena for its locals."""
    names = {}
    for (name, _), argument in zip(block.params, call.arguments, strict=True):
        if argument not in arrays:
            raise ProgramError(f"buffer {argument} has no array; given: {', '.join(arrays) or 'none'}")
        names[name] = arrays[argument]
    shapes = BoundShapes(block, program.group_sizes, binding)
    for name, kind in block.locals:
        shape = shapes.shape(Ref(name))
        if (block.name, name) not in offsets:
            raise ProgramError(f"local {name} has no offset in the arena")
        start = offsets[block.name, name]
        size_bytes = kind.dtype.bytes_of(elements(shape))
        if start < 0 or start + size_bytes > arena.nbytes:
            raise ProgramError(
                f"local {name} lies at bytes {start} to {start + size_bytes} of an arena of {arena.nbytes}"
            )
        names[name] = arena[start : start + size_bytes].view(kind.dtype.storage).reshape(shape)
    return names


def _items(
    rank: int,
    block: Block,
    memory: ArrayMemory,
    groups: Mapping[str, tuple[int, ...]],
    halted: set[str],
    where: str,
    debug: bool,
) -> Iterator[Thunk | LinkOp]:
    """A thunk or a link operation for every instruction that does something, and its check in debug."""
    for issue in block.body:
        instruction = issue.instruction
        if issue.queue in halted:
            continue
        if isinstance(instruction, HALT):
            halted.add(issue.queue)
        elif instruction.unit is Unit.LINK:
            yield link_op(rank, instruction, memory, groups, where)
        elif instruction.unit is not Unit.CONTROL:
            if instruction.mnemonic not in KERNELS:
                raise ProgramError(f"{instruction.mnemonic} has no kernel (in: {instruction})")
            yield KERNELS[instruction.mnemonic](instruction, memory)
        if debug:
            yield from _checks(instruction, memory)


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
        if instruction.mnemonic == "reduce_scatter" and role is Role.INOUT:
            continue  # its source is left undefined
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
