"""Sequences in a paged cache: the lengths and page tables that every attention reads, and their rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .errors import ProgramError
from .instruction import Array, Instruction, Memory, Shapes, Sizes, require, require_rows
from .operands import Ref

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class PagedContext:
    """The sequences of a batch: `q` holds their new tokens one after the other (None: nothing does), `tables` the pages
    of each.

    `q_lens` and `kv_lens` count a sequence's new tokens and its tokens in the cache, new ones included; the extents
    hold the same lengths, for Work.
    """

    owner: Instruction
    q: Ref | None
    tables: Ref
    q_lens: Ref
    kv_lens: Ref
    q_extent: str
    kv_extent: str

    def check(self, t: Shapes) -> None:
        """Raise ProgramError unless tables and lengths are int32 and of one batch."""
        tables, q_lens, kv_lens = t.type_of(self.tables), t.type_of(self.q_lens), t.type_of(self.kv_lens)
        require(
            q_lens == kv_lens and len(q_lens.shape) == 1,
            self.owner,
            f"q_lens is {q_lens} and kv_lens is {kv_lens}, must be int32 [sequences]",
        )
        require(
            len(tables.shape) == 2 and tables.shape[:1] == q_lens.shape,
            self.owner,
            f"tables is {tables}, must be int32 [sequences, pages]",
        )
        require({tables.dtype.name, q_lens.dtype.name} == {"int32"}, self.owner, "tables and lengths must be int32")

    def bound(self, s: Sizes) -> tuple[Lengths, Lengths]:
        """New and cached tokens of every sequence, from the extents; ProgramError for lengths that cannot be."""
        name, owner = self.owner.mnemonic, self.owner
        q_lens, kv_lens = s.extent(self.q_extent), s.extent(self.kv_extent)
        if len(q_lens) != len(kv_lens) or len(q_lens) != s.shape(self.q_lens)[0]:
            raise ProgramError(
                f"{name}: {len(q_lens)} lengths in {self.q_extent}, {len(kv_lens)} in {self.kv_extent}, "
                f"for {s.shape(self.q_lens)[0]} sequences (in: {owner})"
            )
        for queries, length in zip(q_lens, kv_lens, strict=True):
            if not 0 <= queries <= length:
                raise ProgramError(f"{name}: {queries} new tokens in a cache of {length} (in: {owner})")
        if self.q is not None and sum(q_lens) != s.shape(self.q)[0]:
            raise ProgramError(f"{name}: q has {s.shape(self.q)[0]} rows for {sum(q_lens)} new tokens (in: {owner})")
        return q_lens, kv_lens

    def lengths(self, m: Memory, cache: tuple[int, ...]) -> tuple[Lengths, Lengths]:
        """New and cached tokens of every sequence, where the pages of a cache of this shape are read.

        Raises ProgramError where lengths in memory are not the bound ones, or a page that they reach is not there.
        """
        bound = self.bound(m)
        for held, lengths in zip((m.get(self.q_lens), m.get(self.kv_lens)), bound, strict=True):
            if tuple(held.tolist()) != lengths:
                held_and_bound = f"lengths {held.tolist()} in memory, {list(lengths)} bound"
                raise ProgramError(f"{self.owner.mnemonic}: {held_and_bound} (in: {self.owner})")
        for table, length in zip(m.get(self.tables), bound[1], strict=True):
            pages = -(-length // cache[1])
            if pages > len(table):
                raise ProgramError(
                    f"{self.owner.mnemonic}: {length} tokens need {pages} pages, the table has {len(table)}"
                )
            require_rows(self.owner, table[:pages], cache[0], "page")
        return bound

    def sequences(self, m: Memory, cache: Array) -> Iterator[tuple[slice, Array]]:
        """(rows of q, cache rows [length, row]) of every sequence that has new tokens; errors as `lengths`."""
        start = 0
        for table, queries, length in zip(m.get(self.tables), *self.lengths(m, cache.shape), strict=True):
            if queries:
                yield slice(start, start + queries), context_rows(cache, table, length)
            start += queries


def context_rows(cache: Array, table: Array, length: int) -> Array:
    """The first `length` token rows of a sequence, gathered from its pages: [length, row]."""
    page_tokens = cache.shape[1]
    pages = table[: -(-length // page_tokens)]
    return cache[pages].reshape(-1, cache.shape[2])[:length]


def causal_mask(queries: int, length: int, window: int, chunk: int = 0) -> Array:
    """True where a query may look: not ahead of itself, nor further back than `window` tokens (itself included), nor
    before the multiple of `chunk` at or before its position; 0 sets no such limit.
    """
    position = np.arange(length - queries, length)[:, None]
    key = np.arange(length)[None, :]
    mask: Array = key <= position
    if chunk:
        mask = mask & (key >= position // chunk * chunk)
    return mask & (key > position - window) if window else mask
