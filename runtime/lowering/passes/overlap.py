"""Overlap: every block over two halves of a step's tokens, in turn, so that one half computes while the other's
exchanges are on the wires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any

from ....isa.instruction import Instruction, TensorType
from ....isa.operands import NameKind, Ref
from ....isa.program import Block, Buffer, Call, Extent, Issue, Program, Space
from ....isa.work import Unit
from ..builder import Signature
from .rewrite import Rewritten

NAME = "overlap halves"
SECOND = ".b"  # what the names of the second half's buffers and extents end in
CARRIED = "carried."  # buffers of the second half that live from one layer's call to the next
_DOUBLED = frozenset({Space.ACTIVATION, Space.INPUT, Space.HOST, Space.COMMUNICATION})
_LAYER = "layer"


def of_half(name: str, half: int) -> str:
    """A buffer or an extent as the first (0) or the second half (1) calls it."""
    return name + SECOND if half else name


def is_second(instruction: Instruction) -> bool:
    """Whether an instruction works on the second half of a step: the first names nothing so."""
    return any(ref.buffer.endswith(SECOND) for ref, _ in instruction.refs())


def carried_here(program: Program, call: int) -> int:
    """How many of the second half's instructions in a call, its first ones, belong to the call before."""
    left = 0
    for each in program.calls[:call]:
        body = program.block[each.block].body
        seconds = sum(is_second(issue.instruction) for issue in body)
        left += len(body) - 2 * seconds  # what the first half did and the second has yet to do
    return left


def turns(block: Block) -> dict[int, int]:
    """For every exchange, where its own half goes on behind the turn of the other; nothing in plain blocks."""
    seconds = [is_second(issue.instruction) for issue in block.body]
    if not any(seconds):
        return {}
    found, following = dict[int, int](), [len(seconds), len(seconds)]
    for at in range(len(seconds) - 1, -1, -1):
        if type(block.body[at].instruction).unit is Unit.LINK:
            found[at] = following[seconds[at]]
        following[seconds[at]] = at
    return found


@dataclass(frozen=True)
class _Carry:
    """What a layer leaves of its second half to the next layer's call: its last exchange and all that comes after.

    `params` and `extents` say what the names in the body are bound to in the program.
    """

    body: tuple[Issue, ...] = ()
    params: Mapping[str, tuple[TensorType, str]] = field(default_factory=dict)
    locals: Mapping[str, TensorType] = field(default_factory=dict)
    extents: Mapping[str, str] = field(default_factory=dict)


def overlap_halves(program: Program) -> tuple[Program, tuple[Rewritten, ...], Mapping[str, str]]:
    """The program over two halves of its tokens. Also what was added, and of which block each new one is a copy.

    Weights, tables, caches and states are shared; all else there is twice. Blocks are cut behind their exchanges, and
    the halves take turns, cut by cut: queues run in order, so the second half's work stands where the first waits.
    What follows a layer's last exchange would wait with nothing beside it: the second half does it, and issues that
    exchange, only in the next layer's call, after and beside what the first half does there.
    """
    doubling = _Doubling(program)
    calls, carry = list[Call](), _Carry()
    for index, call in enumerate(program.calls):
        following = program.calls[index + 1].block if index + 1 < len(program.calls) else ""
        goes_on = _root(call.block) == _root(following) == _LAYER
        made, carry = doubling.call(call, carry, goes_on)
        calls.append(made)
    blocks = tuple(doubling.blocks.values())
    return doubling.program(blocks, tuple(calls)), tuple(doubling.added), doubling.copies


def _root(block: str) -> str:
    return block.partition(".")[0]


class _Doubling:
    """The blocks of one program as they are doubled, equal ones once."""

    def __init__(self, program: Program) -> None:
        self.source = program
        self.buffers = dict(program.buffer)
        shared = [buffer for buffer in program.buffers if buffer.space not in _DOUBLED]
        self.fixed = {dim for buffer in shared for dim in buffer.type.shape}  # extents that shape what both halves use
        self.blocks: dict[object, Block] = {}
        self.copies: dict[str, str] = {}
        self.added: list[Rewritten] = []

    def call(self, call: Call, carry: _Carry, goes_on: bool) -> tuple[Call, _Carry]:
        """A call over both halves that first ends what `carry` left; where it `goes_on` it leaves something itself."""
        block = self.source.block[call.block]
        merged = _Merged(block, call)
        second = self._second(block, call)
        cut = _last_cut(second.body, second.types) if goes_on else None
        kept, left = second.body[:cut], () if cut is None else second.body[cut:]
        crossing = _names(kept) & _names(left) & second.locals.keys()
        for name in sorted(crossing):
            second.params[name] = (second.locals[name], self._carried(name, second.locals.pop(name)))
        merged.include(second, kept)
        carried = merged.resolve(carry)
        merged.body = list(_in_turn(block.body, kept, carried, merged.types))
        rest = {name: kind for name, kind in second.locals.items() if name in _names(left)}
        leaves = _Carry(left, second.params, rest, second.extents) if left else _Carry()
        return self._issued(merged), leaves

    def _issued(self, merged: _Merged) -> Call:
        """The call, and the block that it calls once."""
        signature = merged.signature
        if signature not in self.blocks:
            old = merged.block
            new = Block(f"{old.name}.halves{len(self.blocks)}", *signature)
            self.blocks[signature], self.copies[new.name] = new, old.name
            seconds = tuple(one.instruction for one in new.body if is_second(one.instruction))
            self.added.append(Rewritten(NAME, new.name, (), seconds))
        return Call(self.blocks[signature].name, merged.arguments, tuple(merged.extents.values()))

    def _second(self, block: Block, call: Call) -> _Second:
        """What the second half does in a call, under its own names."""
        arguments = dict(zip((name for name, _ in block.params), call.arguments, strict=True))
        doubled = {name for name, argument in arguments.items() if self.buffers[argument].space in _DOUBLED}
        doubled |= dict(block.locals).keys()
        params = dict[str, tuple[TensorType, str]]()
        for name, kind in block.params:
            own = self._twin(arguments[name]) if name in doubled else arguments[name]
            params[of_half(name, name in doubled)] = (self._type(kind) if name in doubled else kind, own)
        extents = {name + SECOND: bound + SECOND for name, bound in self.source.extents_of(call).items()}
        names = {name: name + SECOND for name in doubled}
        body = tuple(replace(issue, instruction=_renamed(issue.instruction, names)) for issue in block.body)
        return _Second(body, params, {name + SECOND: self._type(kind) for name, kind in block.locals}, extents)

    def _twin(self, name: str) -> str:
        """The second half's own of a buffer."""
        buffer = self.source.buffer[name]
        twin = Buffer(name + SECOND, self._type(buffer.type), buffer.space)
        return self.buffers.setdefault(twin.name, twin).name

    def _carried(self, name: str, kind: TensorType) -> str:
        """The buffer of a local that outlives its call; locals of one name and type share it."""
        number = 0
        while True:
            buffer = Buffer(f"{CARRIED}{number}.{name}", kind, Space.ACTIVATION)
            if self.buffers.setdefault(buffer.name, buffer) == buffer:
                return buffer.name
            number += 1

    def _type(self, kind: TensorType) -> TensorType:
        shape = (d if isinstance(d, int) or d in self.fixed else d + SECOND for d in kind.shape)
        return TensorType(kind.dtype, tuple(shape))

    def program(self, blocks: tuple[Block, ...], calls: tuple[Call, ...]) -> Program:
        """The program of these blocks, its second half's extents declared."""
        seconds = (
            Extent(one.name + SECOND, one.is_vector) for one in self.source.extents if one.name not in self.fixed
        )
        return replace(
            self.source,
            name=f"{self.source.name}-halves",
            extents=(*self.source.extents, *seconds),
            buffers=tuple(self.buffers.values()),
            blocks=blocks,
            calls=calls,
        )


@dataclass
class _Second:
    """What the second half does in a call."""

    body: tuple[Issue, ...]
    params: dict[str, tuple[TensorType, str]]
    locals: dict[str, TensorType]
    extents: dict[str, str]

    @property
    def types(self) -> dict[str, TensorType]:
        """Type of every name that the body may mention."""
        return {name: kind for name, (kind, _) in self.params.items()} | self.locals


class _Merged:
    """A block over both halves under construction, and what its call binds."""

    def __init__(self, block: Block, call: Call) -> None:
        self.block = block
        self.params = {name: (kind, own) for (name, kind), own in zip(block.params, call.arguments, strict=True)}
        self.locals = dict(block.locals)
        self.extents = dict(zip(block.extents, call.extents, strict=True))
        self.body: list[Issue] = []

    def include(self, second: _Second, body: Sequence[Issue]) -> None:
        """Declare what a part of the second half uses."""
        used, read = _names(body), _extents(body)
        self.params |= {name: own for name, own in second.params.items() if name in used}
        self.locals |= {name: kind for name, kind in second.locals.items() if name in used}
        self.extents |= {name: bound for name, bound in second.extents.items() if name in read}

    def resolve(self, carry: _Carry) -> tuple[Issue, ...]:
        """What was carried here, in this block's names: a buffer that it knows already goes by the name it has.

        Two names of one buffer would hide that their users must wait for one another.
        """
        known, used = {own: name for name, (_, own) in self.params.items()}, _names(carry.body)
        names, extents = dict[str, str](), dict[str, str]()
        for name, (kind, own) in carry.params.items():
            if name in used and own in known:
                names[name] = known[own]
            elif name in used:
                names[name] = self._new(name)
                self.params[names[name]] = (kind, own)
        for name, kind in carry.locals.items():
            names[name] = self._new(name)
            self.locals[names[name]] = kind
        for name in sorted(_extents(carry.body) & carry.extents.keys()):
            extents[name] = self._new(name)
            self.extents[extents[name]] = carry.extents[name]
        renamed = (_renamed(one.instruction, names, lambda name: extents.get(name, name)) for one in carry.body)
        return tuple(replace(one, instruction=made) for one, made in zip(carry.body, renamed, strict=True))

    def _new(self, name: str) -> str:
        made = CARRIED + name
        assert not ({made} & (self.params.keys() | self.locals.keys() | self.extents.keys())), f"{made} is taken"
        return made

    @property
    def types(self) -> dict[str, TensorType]:
        """Type of every name that the body may mention."""
        return {name: kind for name, (kind, _) in self.params.items()} | self.locals

    @property
    def arguments(self) -> tuple[str, ...]:
        """The buffers that the call binds."""
        return tuple(own for _, own in self.params.values())

    @property
    def signature(self) -> Signature:
        """What makes two blocks the same."""
        params = tuple((name, kind) for name, (kind, _) in self.params.items())
        return params, tuple(self.locals.items()), tuple(self.body), tuple(self.extents)


def _renamed(
    instruction: Instruction, names: Mapping[str, str], extent: Callable[[str], str] = lambda name: name + SECOND
) -> Instruction:
    """An instruction over other buffers and vector extents; what stands at an operand as a number stays."""
    fields: dict[str, Any] = {name: getattr(instruction, name) for name in instruction.operands}
    for name, kind in instruction.operands.items():
        value = fields[name]
        if isinstance(value, Ref) and value.buffer in names:
            fields[name] = replace(value, buffer=names[value.buffer])
        elif kind.names in (NameKind.EXTENT, NameKind.EXTENT_OUT) and value:
            fields[name] = extent(value)
    return type(instruction)(**fields)


def _names(body: Iterable[Issue]) -> set[str]:
    return {ref.buffer for issue in body for ref, _ in issue.instruction.refs()}


def _extents(body: Iterable[Issue]) -> set[str]:
    """Vector extents that a body mentions."""
    kinds = (NameKind.EXTENT, NameKind.EXTENT_OUT)
    found = (one.instruction for one in body)
    return {getattr(one, name) for one in found for name, kind in one.operands.items() if kind.names in kinds}


def _last_cut(body: Sequence[Issue], types: Mapping[str, TensorType]) -> int | None:
    """Where the last exchange stands behind which a body is cut."""
    return next((at for at in range(len(body) - 1, -1, -1) if _is_cut(body[at], types)), None)


def _is_cut(issue: Issue, types: Mapping[str, TensorType]) -> bool:
    """Whether it is an exchange that grows with the tokens: counts, of fixed size, are over at once."""
    if type(issue.instruction).unit is not Unit.LINK:
        return False
    shapes = (types[ref.buffer].shape for ref, _ in issue.instruction.refs())
    return not all(isinstance(dim, int) for shape in shapes for dim in shape)


def _in_turn(
    first: Sequence[Issue], second: Sequence[Issue], carried: Sequence[Issue], types: Mapping[str, TensorType]
) -> Iterator[Issue]:
    """The halves' turns one after the other; the second half's begin with the exchange that was carried here.

    A piece without products would hide nothing: it has no turn, and stands before the last product of the other half's
    next turn, when the exchange that it waits for has had most of that to end, and its own has the rest.
    """
    firsts, seconds = _cuts(first, types), _cuts([*carried, *second], types)
    if carried:
        yield from seconds.pop(0)
    between: list[Issue] = []
    for turn, light in chain.from_iterable(zip_longest(_turns(firsts), _turns(seconds), fillvalue=([], []))):
        at = next((at for at in range(len(turn) - 1, -1, -1) if _is_product(turn[at])), len(turn))
        yield from (*turn[:at], *between, *turn[at:])
        between = light
    yield from between


def _turns(pieces: Sequence[Sequence[Issue]]) -> list[tuple[list[Issue], list[Issue]]]:
    """Pieces with products, each with those without that follow it; the first and the last have turns in any case."""
    found: list[tuple[list[Issue], list[Issue]]] = []
    for number, piece in enumerate(pieces):
        if number in (0, len(pieces) - 1) or any(map(_is_product, piece)):
            found.append((list(piece), []))
        else:
            found[-1][1].extend(piece)
    return found


def _is_product(issue: Issue) -> bool:
    return type(issue.instruction).unit is Unit.TENSOR


def _cuts(body: Sequence[Issue], types: Mapping[str, TensorType]) -> list[Sequence[Issue]]:
    """A body in pieces, each but the last ending with an exchange; the last may be empty."""
    ends = [at + 1 for at, issue in enumerate(body) if _is_cut(issue, types)]
    return [body[start:end] for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]
