"""Native instructions: which mnemonics of the instruction set a card executes itself, as a short list says it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator

from ..isa.registry import INSTRUCTIONS
from ..isa.work import Unit

ALL, WITHOUT = "all", "-"
EVERYTHING = (ALL,)
COMPUTING = (Unit.TENSOR, Unit.VECTOR)


def _known(entry: str) -> str:
    mnemonic = entry.removeprefix(WITHOUT)
    if entry != ALL and mnemonic not in INSTRUCTIONS:
        near = get_close_matches(mnemonic, INSTRUCTIONS, n=3)
        hint = f"; near it: {', '.join(near)}" if near else f"; known: {', '.join(INSTRUCTIONS)}"
        raise ValueError(f"{entry!r} is neither {ALL!r} nor an instruction, or one with {WITHOUT!r} before it{hint}")
    return entry


NativeEntry = Annotated[str, AfterValidator(_known)]


def native_instructions(entries: Sequence[str]) -> frozenset[str]:
    """The mnemonics that a card executes, from the entries of its file.

    `all` is every instruction, and so is a list that only takes some away; otherwise instructions of the tensor and
    vector units are native where they are listed, and those that move bytes always. `-name` takes one away.
    """
    without = {entry.removeprefix(WITHOUT) for entry in entries if entry.startswith(WITHOUT)}
    named = {entry for entry in entries if not entry.startswith(WITHOUT)}
    if ALL in named or not named:
        return frozenset(INSTRUCTIONS) - without
    movers = {name for name, kind in INSTRUCTIONS.items() if kind.unit not in COMPUTING}
    return frozenset((named | movers) - without)
