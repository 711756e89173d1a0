"""Windows on a block's body in which fusions find their places, and the table of fusions by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ....isa.instruction import Instruction
from ....isa.operands import Ref, Role
from ....isa.program import Issue
from .rewrite import BlockEditor


class Window:
    """A block's body while fusions look for their places: who reads what, and what may move past whom."""

    def __init__(self, editor: BlockEditor, body: Sequence[Issue], native: Collection[str]) -> None:
        self.editor, self.native = editor, native
        self.body: list[Instruction | None] = [issue.instruction for issue in body]
        self.issues = list(body)

    def at(self, kind: type[Instruction] | tuple[type[Instruction], ...]) -> Iterator[int]:
        """Places of instructions of a kind that still stand."""
        for index, instruction in enumerate(self.body):
            if isinstance(instruction, kind):
                yield index

    def only_readers(self, index: int, ref: Ref) -> list[int] | None:
        """Places after `index` that read a local before all of it is written anew; None where that cannot be told.

        It cannot where it is a parameter, which outlives the block, or where only a part of it is written anew.
        """
        if ref.buffer not in self.editor.locals:
            return None
        readers: list[int] = []
        for place in range(index + 1, len(self.body)):
            instruction = self.body[place]
            roles = [] if instruction is None else [role for used, role in instruction.refs() if used.overlaps(ref)]
            if any(role is not Role.OUT for role in roles):
                readers.append(place)
            elif roles and instruction is not None:
                written = [used for used, role in instruction.refs() if role is Role.OUT]
                return readers if any(_covers(used, ref) for used in written) else None
        return readers

    def untouched(self, refs: Collection[Ref | None], first: int, last: int, *, reads: bool = False) -> bool:
        """Whether nothing strictly between two places writes any of these (or, with `reads`, uses any)."""
        for instruction in self.body[first + 1 : last]:
            if instruction is None:
                continue
            for used, role in instruction.refs():
                if (reads or role is not Role.IN) and any(used.overlaps(ref) for ref in refs):
                    return False
        return True

    def replace(self, places: Sequence[int], fused: Instruction) -> tuple[Instruction, ...]:
        """Put `fused` where the last of these stood; returns what gave way to it."""
        old = tuple(found for place in places if (found := self.body[place]) is not None)
        for place in places:
            self.body[place] = None
        self.body[places[-1]] = fused
        self.issues[places[-1]] = self.editor.issue(fused)
        return old

    @property
    def result(self) -> list[Issue]:
        """The body as it stands now."""
        return [issue for issue, kept in zip(self.issues, self.body, strict=True) if kept is not None]


def _covers(written: Ref, ref: Ref) -> bool:
    if written.buffer != ref.buffer:
        return False
    if written.size is None or written == ref:
        return True
    if ref.size is None or ref.at != written.at:
        return False
    return written.start <= ref.start and ref.start + ref.size <= written.start + written.size


Found = tuple[tuple[Instruction, ...], Instruction]  # what gave way, and what stands in its place


@dataclass(frozen=True)
class Fusion:
    """A fusion: `makes` is what it may put in place; `apply` does so wherever it can, and tells where."""

    name: str
    makes: tuple[type[Instruction], ...]
    apply: Callable[[Window], Iterator[Found]]


FUSIONS: dict[str, Fusion] = {}
# Acts before all others, wherever the card's products read packed weights: what their kernel libraries do.
DEQUANTISE_MATMUL = "dequantise-matmul"
DEFAULT_FUSIONS = (DEQUANTISE_MATMUL,)


def fusion(name: str, *makes: type[Instruction]) -> Callable[[Callable[[Window], Iterator[Found]]], Fusion]:
    """Register a fusion under the name that --fuse takes; they act in the order in which they are registered."""

    def register(apply: Callable[[Window], Iterator[Found]]) -> Fusion:
        FUSIONS[name] = Fusion(name, makes, apply)
        return FUSIONS[name]

    return register
