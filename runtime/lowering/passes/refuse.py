"""What a card cannot run: instructions of a program that it neither has nor can be given by a composition."""

from __future__ import annotations

from collections.abc import Collection

from ....isa.errors import UnsupportedError
from ....isa.program import Program


def refuse_foreign(program: Program, native: Collection[str], card: str) -> None:
    """UnsupportedError naming every instruction of the program that is not native to the card."""
    used = dict.fromkeys(issue.instruction.mnemonic for block in program.blocks for issue in block.body)
    foreign = [name for name in used if name not in native]
    if foreign:
        raise UnsupportedError(
            f"{card} has no {', '.join(foreign)}, which program {program.name} needs and nothing it has composes; "
            "choose another card, or add it to the card's `native`"
        )
