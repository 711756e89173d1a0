"""A paged cache that attention reads: rows of floats, or of codes with scales, and floats beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dtype import FP32
from .instruction import Array, Instruction, Memory, Shapes, Sizes, require
from .operands import Ref

CODED = ("int8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class PagedCache:
    """The buffers of one cache: a token's row is codes x scales, every `group` codes sharing one, then `rest`.

    `cache` is [pages, page_tokens, codes]. Without `scales` it holds floats; with them, fp32 [pages, page_tokens,
    groups], codes of 8 bits. `rest` is floats [pages, page_tokens, columns].
    """

    owner: Instruction
    cache: Ref
    scales: Ref | None
    rest: Ref | None
    group: int

    @property
    def refs(self) -> tuple[Ref | None, ...]:
        """All of them."""
        return (self.cache, self.scales, self.rest)

    def row(self, t: Shapes) -> int:
        """Elements of a token's row; ProgramError unless the buffers are those of one cache."""
        owner, cache = self.owner, t.type_of(self.cache)
        sized = len(cache.shape) == 3 and all(isinstance(side, int) and side > 0 for side in cache.shape[1:])
        require(sized, owner, f"cache is {cache}, must be [pages, page_tokens, row], the last two numbers above 0")
        columns = int(cache.shape[2])
        require(cache.dtype.is_float or self.scales is not None, owner, f"cache is {cache}: integers need scales")
        if self.scales is None:
            require(self.rest is None and self.group == 0, owner, "rest and group go with scales")
            return columns
        require(cache.dtype.name in CODED, owner, f"cache is {cache}: only {', '.join(CODED)} have scales")
        require(self.group > 0, owner, f"group={self.group} must be above 0")
        scales, wanted = t.type_of(self.scales), (*cache.shape[:2], -(-columns // self.group))
        require(
            scales.shape == wanted and scales.dtype is FP32, owner, f"scales is {scales}, must be fp32 {list(wanted)}"
        )
        if self.rest is None:
            return columns
        rest = t.type_of(self.rest)
        fits = rest.shape[:-1] == cache.shape[:2] and isinstance(rest.shape[-1], int) and rest.dtype.is_float
        require(fits, owner, f"rest is {rest}, must hold floats [{cache.shape[0]}, {cache.shape[1]}, columns]")
        return columns + int(rest.shape[-1])

    def row_bytes(self, s: Sizes) -> int:
        """Bytes of a token's row in all buffers."""
        return sum(s.type_of(ref).dtype.bytes_of(s.shape(ref)[2]) for ref in self.refs if ref is not None)

    def values(self, m: Memory) -> Array:
        """float32 [pages, page_tokens, row]."""
        held = m.get(self.cache)
        if self.scales is None:
            return held
        parts = [held.astype(np.float32) * m.get(self.scales).repeat(self.group, axis=-1)[..., : held.shape[-1]]]
        parts += [m.get(self.rest)] if self.rest is not None else []
        return np.concatenate(parts, axis=-1)
