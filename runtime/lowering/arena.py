"""The activation arena: where each block's locals lie, so that buffers which are never live together share bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...isa.operands import Ref
from ...isa.program import Binding, Block, BoundShapes, Program
from .passes.overlap import turns

ALIGNMENT_BYTES = 512


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offset of every (block, local) and the bytes of the whole arena.

    Blocks run one after the other and their locals die with the call, so all blocks lay their locals over the same
    bytes; the arena is as large as the largest block needs.
    """

    offsets: Mapping[tuple[str, str], int]
    sizes: Mapping[tuple[str, str], int]
    num_bytes: int


def plan_arena(program: Program, binding: Binding) -> ArenaPlan:
    """Plan the locals of every block for the largest extents that will be bound."""
    offsets: dict[tuple[str, str], int] = {}
    sizes: dict[tuple[str, str], int] = {}
    for block in program.blocks:
        shapes = BoundShapes(block, program.group_sizes, binding)
        block_sizes = {name: _aligned(shapes, name) for name, _ in block.locals}
        sizes |= {(block.name, name): size for name, size in block_sizes.items()}
        offsets |= {(block.name, name): at for name, at in _place(block, block_sizes).items()}
    return ArenaPlan(offsets, sizes, max((offsets[key] + sizes[key] for key in offsets), default=0))


def _aligned(shapes: BoundShapes, name: str) -> int:
    count = 1
    for dim in shapes.shape(Ref(name)):
        count *= dim
    num_bytes = shapes.type_of(Ref(name)).dtype.bytes_of(count)
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def live_ranges(block: Block) -> dict[str, tuple[int, int]]:
    """(first, last) position in the body at which each local is used.

    Where two halves take turns, what one exchanges lives until it goes on: the bytes would else be taken by the other,
    which would have to wait for the exchange that it should run beside.
    """
    ranges: dict[str, tuple[int, int]] = {}
    names = {name for name, _ in block.locals}
    goes_on = turns(block)
    for position, issue in enumerate(block.body):
        for ref, _ in issue.instruction.refs():
            if ref.buffer in names:
                first, last = ranges.get(ref.buffer, (position, position))
                ranges[ref.buffer] = (first, max(last, goes_on.get(position, position)))
    return ranges


def _place(block: Block, sizes: Mapping[str, int]) -> dict[str, int]:
    """First fit, largest first: each local at the lowest offset free over its whole life."""
    ranges = live_ranges(block)
    placed: dict[str, int] = {}
    for name in sorted(ranges, key=lambda local: (-sizes[local], local)):
        first, last = ranges[name]
        taken = sorted(
            (placed[other], placed[other] + sizes[other])
            for other in placed
            if ranges[other][0] <= last and first <= ranges[other][1]
        )
        offset = 0
        for start, end in taken:
            if offset + sizes[name] <= start:
                break
            offset = max(offset, end)
        placed[name] = offset
    return placed
