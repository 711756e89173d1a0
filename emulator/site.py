"""Site: a place in a block of a program, where an instruction is costed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..isa.instruction import Instruction
from ..isa.operands import NameKind
from ..isa.program import Block

NO_EXTENTS: Mapping[str, str] = MappingProxyType({})
EXTENTS = (NameKind.EXTENT, NameKind.EXTENT_OUT)


class Site(NamedTuple):
    """A place in a block: what is costed once, however often the block is called.

    An instruction that names an extent parameter has a site for each binding of those parameters, which `extents` is:
    the program's extent behind every parameter.
    """

    block: Block
    position: int
    queue: str
    instruction: Instruction
    extents: Mapping[str, str] = NO_EXTENTS

    def __str__(self) -> str:
        return f"block {self.block.name}, instruction {self.position} ({self.instruction})"
