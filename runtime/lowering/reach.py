"""Reach: how far back the layers of a cache look, and so which of a sequence's pages they must keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ...isa.program import Buffer
from ...models.blocks import Attention, DecoderLayer

KvPages = Literal["unified", "ideal"]
KV_PAGES: tuple[KvPages, ...] = ("unified", "ideal")


@dataclass(frozen=True, order=True)
class Reach:
    """A token reads the `window` last tokens, itself among them, or those from the last multiple of `chunk` on.

    Both 0: every token before it. Layers of one reach share pages and tables, whose buffers carry its name.
    """

    window: int = 0
    chunk: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is ever let go."""
        return not (self.window or self.chunk)

    @property
    def suffix(self) -> str:
        """What the names of its buffers and extents end in."""
        return f".window{self.window}" if self.window else f".chunk{self.chunk}" if self.chunk else ""

    @property
    def pages(self) -> str:
        """The extent that counts the pages of its pool."""
        return f"pages{self.suffix}"

    def oldest(self, position: int) -> int:
        """The first position that a token at `position` reads."""
        if self.chunk:
            return position // self.chunk * self.chunk
        return max(0, position - self.window + 1) if self.window else 0

    def named(self, buffer: Buffer) -> Buffer:
        """An input of the whole cache as that of this reach."""
        return replace(buffer, name=buffer.name + self.suffix)

    def most_pages(self, length: int, new_tokens: int, page_tokens: int) -> int:
        """Pages that a sequence of `length` tokens holds at most where no step computes more than `new_tokens`."""
        whole = -(-length // page_tokens)
        if self.is_whole:
            return whole
        kept = max(self.window, self.chunk) - 1 + new_tokens
        return min(whole, (kept - 1) // page_tokens + 2)


WHOLE = Reach()


def reach_of(attention: object, kv_pages: KvPages) -> Reach:
    """The reach of a layer's cache; unified pages hold all tokens whatever the layer reads."""
    if kv_pages == "ideal" and isinstance(attention, Attention):
        return Reach(attention.window, attention.chunk)
    return WHOLE


def limited_reaches(layers: Iterable[DecoderLayer], kv_pages: KvPages) -> tuple[Reach, ...]:
    """The reaches of some layers that let pages go, each once, in order."""
    reaches = {reach_of(layer.attention, kv_pages) for layer in layers}
    return tuple(sorted(reach for reach in reaches if not reach.is_whole))
