"""Legality: whether a Program obeys the rules of the instruction set, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import ProgramError
from .operands import NAME, NameKind
from .program import Block, BlockShapes, Call, Program


def check_program(program: Program) -> None:
    """Raise ProgramError at the first broken rule: names, types, operands, queues, waits, calls."""
    for what, names in (
        ("queue", program.queues),
        ("extent", [extent.name for extent in program.extents]),
        ("group", [group.name for group in program.groups]),
        ("buffer", [buffer.name for buffer in program.buffers]),
        ("block", [block.name for block in program.blocks]),
        ("semaphore or queue", [*program.queues, *program.semaphores]),
    ):
        _distinct(what, names)
    for group in program.groups:
        if group.size < 1:
            raise ProgramError(f"group {group.name} has {group.size} ranks; a group has at least 1")
    for buffer in program.buffers:
        _check_dims(program, f"buffer {buffer.name}", buffer.type.shape)
    for block in program.blocks:
        _check_block(program, block)
    for index, call in enumerate(program.calls):
        _check_call(program, index, call)


def _distinct(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not NAME.match(name):
            raise ProgramError(f"{name!r} is not a legal {what} name")
        if name in seen:
            raise ProgramError(f"two {what}s are named {name!r}")
        seen.add(name)


def _check_dims(program: Program, where: str, shape: tuple[int | str, ...]) -> None:
    scalars = {extent.name for extent in program.extents if not extent.is_vector}
    if not shape:
        raise ProgramError(f"{where}: a buffer needs at least one dimension")
    for dim in shape:
        if isinstance(dim, str) and dim not in scalars:
            raise ProgramError(
                f"{where}: dimension {dim!r} is no declared extent; declared: {', '.join(sorted(scalars))}"
            )
        if isinstance(dim, int) and dim < 0:
            raise ProgramError(f"{where}: dimension {dim} is negative")


def _check_block(program: Program, block: Block) -> None:
    _distinct(f"buffer of block {block.name}", [name for name, _ in (*block.params, *block.locals)])
    for name, kind in (*block.params, *block.locals):
        _check_dims(program, f"block {block.name}: {name}", kind.shape)
    shapes = BlockShapes(block, program.group_sizes)
    known = {*program.queues, *program.semaphores}
    for position, issue in enumerate(block.body):
        where = f"block {block.name}, instruction {position}"
        if issue.queue not in program.queues:
            raise ProgramError(f"{where}: no queue {issue.queue!r}; the program has {', '.join(program.queues)}")
        for semaphore, _ in issue.waits:
            if semaphore not in known:
                raise ProgramError(f"{where}: waits for {semaphore!r}, which is neither a queue nor a semaphore")
        try:
            for ref, _ in issue.instruction.refs():
                shapes.type_of(ref)
            _check_names(program, issue.instruction)
            issue.instruction.check(shapes)
        except ProgramError as error:
            raise ProgramError(f"{where}: {error}") from None


def _check_names(program: Program, instruction: object) -> None:
    declared = {
        NameKind.EXTENT: {extent.name for extent in program.extents},
        NameKind.GROUP: set(program.group_sizes),
        NameKind.SEMAPHORE: {*program.semaphores, *program.queues},
    }
    for name, kind in type(instruction).operands.items():  # type: ignore[attr-defined]
        if kind.names and getattr(instruction, name) not in declared[kind.names]:
            raise ProgramError(f"{kind.names.value} {getattr(instruction, name)!r} is not declared")


def _check_call(program: Program, index: int, call: Call) -> None:
    where = f"call {index} of {call.block}"
    if call.block not in program.block:
        raise ProgramError(f"{where}: no such block; the program has {', '.join(program.block)}")
    params = program.block[call.block].params
    if len(params) != len(call.arguments):
        raise ProgramError(f"{where}: {len(call.arguments)} arguments for {len(params)} parameters")
    for (name, kind), argument in zip(params, call.arguments, strict=True):
        if argument not in program.buffer:
            raise ProgramError(f"{where}: {name}={argument!r} is no buffer of the program")
        if program.buffer[argument].type != kind:
            actual = program.buffer[argument].type
            raise ProgramError(f"{where}: {name} is declared {kind} and {argument} is {actual}")
