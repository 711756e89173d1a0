"""Legality: whether a Program obeys the rules of the instruction set, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .control import HALT, SIGNAL, WAIT
from .errors import ProgramError
from .instruction import Instruction, TensorType
from .link import BROADCAST, LINK_SCATTER
from .operands import MAX_UINT, NAME, Kind, NameKind, Role, is_integer
from .program import Block, BlockShapes, Call, Issue, Program, Space

MAX_RANK = 16
MAX_GROUP = 1 << 20
FILLED_BY_ROOT = (BROADCAST, LINK_SCATTER)  # what the other members bring is never read
READ_ONLY = (Space.WEIGHT, Space.TABLE, Space.SCALE)  # only host_load fills them

LEGAL = "legal"  # what `Program.passed` says of a program that breaks no rule

Place = tuple[str | int, ...]


class IllegalProgramError(ProgramError):
    """A broken rule and its place: (section, index), or ("block", index, "param" | "local" | "body", position)."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True)
class _Declared:
    """The names that a program declares, by what they may be used for."""

    scalars: frozenset[str]
    names: dict[NameKind, frozenset[str]]

    @classmethod
    def by(cls, program: Program) -> _Declared:
        vectors = frozenset(extent.name for extent in program.extents if extent.is_vector)
        scalars = frozenset(extent.name for extent in program.extents if not extent.is_vector)
        return cls(
            scalars=scalars,
            names={
                NameKind.EXTENT: vectors,
                NameKind.EXTENT_OUT: vectors,
                NameKind.NUMBER: scalars,
                NameKind.GROUP: frozenset(program.group_sizes),
                NameKind.SEMAPHORE: frozenset((*program.semaphores, *program.queues)),
            },
        )


@dataclass(frozen=True)
class _Use:
    """How a block uses one of its buffers: reached by host transfers only, and filled by anything but host_load."""

    on_host: bool
    computed: bool
    written: bool


def check_program(program: Program) -> None:
    """Raise ProgramError at the first broken rule: names, types, operands, queues, waits, buffers' uses, calls.

    A program that has passed is not looked at again.
    """
    if LEGAL not in program.passed:
        _check_all(program)
        program.passed.add(LEGAL)


def _check_all(program: Program) -> None:
    if not NAME.match(program.name):
        raise IllegalProgramError(f"{program.name!r} is not a legal program name", ("program", 0))
    declared = _Declared.by(program)
    _check_declarations(program, declared)
    uses: dict[str, dict[str, _Use]] = {}
    fine: set[tuple[object, ...]] = set()
    for index, block in enumerate(program.blocks):
        uses[block.name] = _check_block(program, declared, index, block, fine)
    extents = _Extents(program)
    for index, call in enumerate(program.calls):
        try:
            _check_call(program, uses, call)
            extents.add(call)
        except ProgramError as error:
            raise IllegalProgramError(f"call {index} of {call.block}: {error}", ("call", index)) from None


def _check_declarations(program: Program, declared: _Declared) -> None:
    _distinct("queue", "queue", program.queues)
    _distinct("semaphore", "semaphore", program.semaphores, taken=program.queues)
    _distinct("extent", "extent", [extent.name for extent in program.extents])
    _distinct("group", "group", [group.name for group in program.groups])
    _distinct("buffer", "buffer", [buffer.name for buffer in program.buffers])
    _distinct("block", "block", [block.name for block in program.blocks])
    for index, group in enumerate(program.groups):
        if type(group.size) is not int or not 1 <= group.size <= MAX_GROUP:
            raise IllegalProgramError(
                f"group {group.name} has {group.size!r} ranks; a group has 1 to {MAX_GROUP}", ("group", index)
            )
    for index, buffer in enumerate(program.buffers):
        _check_dims(declared, f"buffer {buffer.name}", buffer.type, ("buffer", index))


def _distinct(what: str, section: str, names: Iterable[str], taken: Iterable[str] = (), at: Place = ()) -> None:
    seen = set(taken)
    for index, name in enumerate(names):
        place = (*at, section, index)
        if not NAME.match(name):
            raise IllegalProgramError(f"{name!r} is not a legal {what} name", place)
        if name in taken:
            raise IllegalProgramError(f"{what} {name!r} has the name of a queue, which has a semaphore already", place)
        if name in seen:
            raise IllegalProgramError(f"{what} {name!r} is declared twice", place)
        seen.add(name)


def _check_dims(declared: _Declared, where: str, kind: TensorType, place: Place) -> None:
    if not 1 <= len(kind.shape) <= MAX_RANK:
        raise IllegalProgramError(f"{where}: {len(kind.shape)} dimensions; a buffer has 1 to {MAX_RANK}", place)
    for dim in kind.shape:
        if isinstance(dim, str) and dim not in declared.scalars:
            known = ", ".join(sorted(declared.scalars)) or "none"
            raise IllegalProgramError(
                f"{where}: dimension {dim!r} is no declared scalar extent; declared: {known}", place
            )
        if not isinstance(dim, str) and (type(dim) is not int or not 0 <= dim <= MAX_UINT):
            raise IllegalProgramError(f"{where}: dimension {dim!r} is not an integer from 0 to {MAX_UINT}", place)


def _check_block(
    program: Program, declared: _Declared, index: int, block: Block, fine: set[tuple[object, ...]]
) -> dict[str, _Use]:
    """Check one block; returns how it uses its buffers, by name.

    `fine` are instructions, with the types of their operands, that blocks before it have shown to be legal.
    """
    at: Place = ("block", index)
    params = [name for name, _ in block.params]
    _distinct(f"buffer of block {block.name}", "param", params, at=at)
    _distinct(f"buffer of block {block.name}", "local", [name for name, _ in block.locals], at=at)
    for section, typed in (("param", block.params), ("local", block.locals)):
        for position, (name, kind) in enumerate(typed):
            place = (*at, section, position)
            if section == "local" and name in params:
                raise IllegalProgramError(f"buffer of block {block.name} {name!r} is declared twice", place)
            _check_dims(declared, f"block {block.name}: {name}", kind, place)
    _distinct(f"extent of block {block.name}", "extent", block.extents, at=at)
    for position, name in enumerate(block.extents):
        if name in declared.scalars or name in declared.names[NameKind.EXTENT]:
            place = (*at, "extent", position)
            raise IllegalProgramError(f"block {block.name}: extent {name!r} is one of the program's already", place)
    shapes, tracker, counts = BlockShapes(block, program.group_sizes), _Uses(block), _Counts()
    for position, issue in enumerate(block.body):
        try:
            _check_issue(program, declared, shapes, issue, fine)
            tracker.add(issue.instruction)
            counts.add(issue)
        except ProgramError as error:
            place = (*at, "body", position)
            raise IllegalProgramError(f"block {block.name}, instruction {position}: {error}", place) from None
    return tracker.uses


def _check_issue(
    program: Program, declared: _Declared, shapes: BlockShapes, issue: Issue, fine: set[tuple[object, ...]]
) -> None:
    if issue.queue not in program.queues:
        raise ProgramError(f"no queue {issue.queue!r}; the program has {', '.join(program.queues) or 'none'}")
    for semaphore, count in issue.waits:
        if semaphore not in declared.names[NameKind.SEMAPHORE]:
            raise ProgramError(f"waits for {semaphore!r}, which is neither a queue nor a semaphore")
        if not is_integer(count):
            raise ProgramError(f"waits for {semaphore!r} and {count!r}, which is no integer of 64 bits")
    _check_instruction(program, declared, shapes, issue.instruction, fine)


def _check_instruction(
    program: Program,
    declared: _Declared,
    shapes: BlockShapes,
    instruction: Instruction,
    fine: set[tuple[object, ...]],
) -> None:
    for name, kind, value in _operands(instruction):
        if not kind.legal(value):
            raise ProgramError(f"{instruction.mnemonic}: {name} is {value!r}, must be: {kind.label}")
        if kind.names is NameKind.NUMBER and is_integer(value):
            continue
        if kind.names and value not in declared.names[kind.names] and not _is_parameter(shapes.block, kind, value):
            raise ProgramError(f"{instruction.mnemonic}: {kind.names.value} {value!r} is not declared")
    if isinstance(instruction, SIGNAL) and instruction.semaphore in program.queues:
        raise ProgramError(f"signal: {instruction.semaphore!r} is a queue, whose semaphore counts its instructions")
    types = shapes.block.types
    known = (instruction, *[types.get(ref.buffer) for ref, _ in instruction.refs()])
    if known in fine:
        return
    for ref, _ in instruction.refs():
        shapes.type_of(ref)
        if ref.at is not None and ref.at not in declared.scalars:
            raise ProgramError(
                f"{instruction.mnemonic}: {ref} begins at {ref.at!r}, which is no declared scalar extent"
            )
    instruction.check(shapes)
    fine.add(known)


def _is_parameter(block: Block, kind: Kind, value: object) -> bool:
    """Whether an operand names an extent that each call binds."""
    return kind.names in (NameKind.EXTENT, NameKind.EXTENT_OUT) and value in block.extents


def _operands(instruction: Instruction) -> Iterator[tuple[str, Kind, object]]:
    return ((name, kind, getattr(instruction, name)) for name, kind in instruction.operands.items())


class _Uses:
    """Follows a block's instructions in order: which buffers lie where, and which locals hold something by then."""

    def __init__(self, block: Block) -> None:
        self.uses: dict[str, _Use] = {}
        self.locals = {name for name, _ in block.locals}

    def add(self, instruction: Instruction) -> None:
        """Note the operands of the next instruction; ProgramError where they cannot be used so."""
        from_host = any(kind.on_host and kind.role is Role.IN for kind in instruction.operands.values())
        operands = [(kind, getattr(instruction, name)) for name, kind in instruction.operands.items() if kind.role]
        for kind, ref in operands:
            if ref is not None:
                self._check(ref.buffer, kind, fills=isinstance(instruction, FILLED_BY_ROOT))
        for kind, ref in operands:
            if ref is not None:
                self._note(ref.buffer, kind, from_host)

    def _check(self, name: str, kind: Kind, fills: bool) -> None:
        before = self.uses.get(name)
        if before and before.on_host != kind.on_host:
            raise ProgramError(f"%{name} lies in host memory for one instruction and on the device for another")
        if name not in self.locals:
            return
        if kind.on_host:
            raise ProgramError(f"%{name} is a local, which lies on the device; host transfers need a host buffer")
        if kind.role is not Role.OUT and not fills and not (before and before.written):
            raise ProgramError(f"%{name} is a local that is read before anything writes it")

    def _note(self, name: str, kind: Kind, from_host: bool) -> None:
        before = self.uses.get(name) or _Use(kind.on_host, False, False)
        written = kind.role is not Role.IN
        self.uses[name] = _Use(kind.on_host, before.computed or (written and not from_host), before.written or written)


class _Counts:
    """Follows a block's semaphores in the order of the text, which must be an order that can run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.halted: set[str] = set()

    def add(self, issue: Issue) -> None:
        """Count what the next instruction signals; ProgramError where it waits for what does not stand above it.

        So no block can lock itself, and executing a block in the order of its text gives the numbers of any timing.
        """
        instruction = issue.instruction
        if issue.queue in self.halted:
            raise ProgramError(f"queue {issue.queue!r} has halted above: this is never issued")
        own = ((instruction.semaphore, instruction.count),) if isinstance(instruction, WAIT) else ()
        for semaphore, need in (*issue.waits, *own):
            have = self.counts[semaphore]
            if need > have:
                raise ProgramError(f"waits for {semaphore}+{need}, and the instructions above it only give +{have}")
        self.counts[issue.queue] += 1
        if isinstance(instruction, SIGNAL):
            self.counts[instruction.semaphore] += instruction.count
        if isinstance(instruction, HALT):
            self.halted.add(issue.queue)


class _Extents:
    """Follows the calls in order: an extent that an instruction writes is written once, and not read before."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.vectors = {extent.name for extent in program.extents if extent.is_vector}
        self.uses = {block.name: self._uses(block) for block in program.blocks}
        self.read: set[str] = set()
        self.written: set[str] = set()

    @staticmethod
    def _uses(block: Block) -> list[tuple[str, bool]]:
        """(name, whether it is written) of every extent that a block's operands name, in order."""
        named = (
            (getattr(issue.instruction, name), kind.names is NameKind.EXTENT_OUT)
            for issue in block.body
            for name, kind in issue.instruction.operands.items()
            if kind.names in (NameKind.EXTENT, NameKind.EXTENT_OUT)
        )
        return list(dict.fromkeys(named))

    def add(self, call: Call) -> None:
        """Note the extents of the next call."""
        params = self.program.block[call.block].extents
        if len(params) != len(call.extents):
            raise ProgramError(f"{len(call.extents)} extents for {len(params)} extent parameters")
        for name in call.extents:
            if name not in self.vectors:
                known = ", ".join(sorted(self.vectors)) or "none"
                raise ProgramError(f"{name!r} is no vector extent of the program; declared: {known}")
        bound = dict(zip(params, call.extents, strict=True))
        for name, writes in self.uses[call.block]:
            actual = bound.get(name, name)
            if writes and actual in self.written | self.read:
                done = "written" if actual in self.written else "read"
                raise ProgramError(f"it writes extent {actual!r}, which is {done} before: an extent has one value")
            (self.written if writes else self.read).add(actual)


def _check_call(program: Program, uses: dict[str, dict[str, _Use]], call: Call) -> None:
    if call.block not in program.block:
        raise ProgramError(f"no such block; the program has {', '.join(program.block) or 'none'}")
    params = program.block[call.block].params
    if len(params) != len(call.arguments):
        raise ProgramError(f"{len(call.arguments)} arguments for {len(params)} parameters")
    bound: dict[str, str] = {}
    for (name, kind), argument in zip(params, call.arguments, strict=True):
        if argument not in program.buffer:
            raise ProgramError(f"{name}={argument!r} is no buffer of the program")
        buffer, use = program.buffer[argument], uses[call.block].get(name)
        if buffer.type != kind:
            raise ProgramError(f"{name} is declared {kind} and {argument} is {buffer.type}")
        other = bound.setdefault(argument, name)
        if use is None:
            continue
        if use.on_host != (buffer.space is Space.HOST):
            needed = "host memory" if use.on_host else "device memory"
            raise ProgramError(f"{name} must lie in {needed}, and {argument} is of space {buffer.space.value}")
        if use.computed and buffer.space in READ_ONLY:
            raise ProgramError(f"the block writes {name}, and {argument} is of space {buffer.space.value}")
        if other != name and any(u.written for u in (use, uses[call.block].get(other)) if u):
            raise ProgramError(f"{other} and {name} are both {argument}, and the block writes one of them")
