"""Composition: instructions that a card lacks, rewritten as several that it has; what cannot be, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ....isa.errors import UnsupportedError
from ....isa.instruction import Instruction
from ....isa.program import Issue, Program
from ....isa.work import Unit
from .compositions import COMPOSERS, Composing, NotComposed
from .rewrite import BlockEditor, Rewritten, with_blocks


@dataclass(frozen=True)
class Missing:
    """An instruction of a block that the card lacks and nothing it has composes, and why not."""

    instruction: Instruction
    block: str
    reason: str


@dataclass(frozen=True)
class Composed:
    """A program of which every instruction that could be is native, what was composed and what is missing."""

    program: Program
    rewritten: tuple[Rewritten, ...]
    missing: tuple[Missing, ...]


def compose(program: Program, native: Collection[str], queue_of: Mapping[Unit, str]) -> Composed:
    """The program for a card that executes the `native` mnemonics only."""
    used = {issue.instruction.mnemonic for block in program.blocks for issue in block.body}
    if used <= set(native):
        return Composed(program, (), ())
    blocks, rewritten, missing = [], list[Rewritten](), list[Missing]()
    for block in program.blocks:
        editor = BlockEditor(program, block, queue_of)
        body: list[Issue] = []
        for issue in block.body:
            if issue.instruction.mnemonic in native:
                body.append(issue)
                continue
            try:
                parts = parts_of(issue.instruction, native, editor)
            except NotComposed as reason:
                missing.append(Missing(issue.instruction, block.name, str(reason)))
                body.append(issue)
                continue
            name = f"compose {issue.instruction.mnemonic}"
            rewritten.append(Rewritten(name, block.name, (issue.instruction,), tuple(parts)))
            body += [editor.issue(part) for part in parts]
        blocks.append(editor.done(body))
    return Composed(with_blocks(program, blocks), tuple(rewritten), tuple(missing))


def parts_of(
    instruction: Instruction, native: Collection[str], editor: BlockEditor, within: tuple[str, ...] = ()
) -> list[Instruction]:
    """Native instructions that together do what one does; NotComposed says why there are none."""
    mnemonic = instruction.mnemonic
    if mnemonic in native:
        return [instruction]
    if mnemonic not in COMPOSERS or mnemonic in within:
        if not within:
            raise NotComposed("nothing composes it")
        raise NotComposed(f"{mnemonic} is not native, and {within[-1]} is composed of it")
    composing = Composing(editor)
    COMPOSERS[mnemonic](instruction, composing)
    found: list[Instruction] = []
    for part in composing.parts:
        found += parts_of(part, native, editor, (*within, mnemonic))
    return found


def refuse_missing(missing: Collection[Missing], card: str) -> None:
    """UnsupportedError naming every instruction that a card cannot run, and why."""
    if not missing:
        return
    reasons = {item.instruction.mnemonic: item.reason for item in missing}
    names = ", ".join(reasons)
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise UnsupportedError(
        f"{card} has no {names}, which the model needs ({why}); choose another card, or add it to the card's `native` "
        "(--set native=...)"
    )
