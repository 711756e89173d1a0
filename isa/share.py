"""Shares of a context: which rows of a sequence's cache a card holds, and what each query sees of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .errors import ProgramError
from .instruction import Array, Instruction, Memory, Shapes, Sizes, bytes_of, require, require_rows, split_even
from .operands import Ref
from .paged import context_rows

NOTHING = -1e30  # the LSE of a query without keys: finite, so that sums with it stay numbers
SEEN_PER_SEQUENCE = 3  # what the extent `seen` says of each sequence


@dataclass(frozen=True)
class Seen:
    """What the queries of one sequence see of its share: how many see anything, in how many pairs, of how many keys."""

    queries: int
    pairs: int
    keys: int

    @property
    def causal_length(self) -> int:
        """The least length at which causal attention of as many queries has at least as many pairs."""
        return max(self.queries, _causal_length(self.queries, self.pairs))

    @property
    def causal_parts(self) -> list[tuple[int, int]]:
        """(queries, length) of causal attentions that together have as many queries, and pairs but for rounding up.

        One where each query sees as many keys as there are queries or more; else as many as that takes.
        """
        if not self.queries:
            return [(0, 0)]
        parts = -(-self.queries // max(1, self.pairs // self.queries))
        if _causal_length(self.queries, self.pairs) >= self.queries:
            parts = 1
        sizes = zip(split_even(self.queries, parts), split_even(self.pairs, parts), strict=True)
        return [(queries, _causal_length(queries, pairs)) for (_, queries), (_, pairs) in sizes]


def _causal_length(queries: int, pairs: int) -> int:
    """The length at which causal attention of so many queries has so many pairs, rounded up."""
    return -(-(pairs + queries * (queries - 1) // 2) // queries) if queries else 0


@dataclass(frozen=True)
class ShareContext:
    """The sequences of a batch over a share of their caches.

    `q` holds their tokens one after the other, q_lens[b] of sequence b; its share is the first kv_lens[b] rows of its
    pages (cache [pages, page_tokens, row], tables [sequences, pages]), or the rows from tables[b, 0] on (cache
    [rows, row]). Token t sees the rows visible[t, 0] to visible[t, 1] - 1 of the share. The extents say the lengths,
    and of every sequence what `Seen` does, for Work.
    """

    owner: Instruction
    q: Ref
    cache: Ref
    tables: Ref
    q_lens: Ref
    kv_lens: Ref
    visible: Ref
    q_extent: str
    kv_extent: str
    seen_extent: str

    def check(self, t: Shapes, row: int) -> None:
        """Raise ProgramError unless the cache has rows of `row` elements and the integers are of one batch."""
        cache, tables, owner = t.type_of(self.cache), t.type_of(self.tables), self.owner
        paged = len(cache.shape) == 3 and isinstance(cache.shape[1], int) and cache.shape[1] > 0
        require(
            (paged or len(cache.shape) == 2) and cache.shape[-1] == row,
            owner,
            f"cache is {cache}, must be [pages, page_tokens, {row}], page_tokens a number above 0, or [rows, {row}]",
        )
        q_lens, kv_lens, visible = (t.type_of(ref) for ref in (self.q_lens, self.kv_lens, self.visible))
        require(
            q_lens == kv_lens and len(q_lens.shape) == 1,
            owner,
            f"q_lens is {q_lens} and kv_lens is {kv_lens}, must be int32 [sequences]",
        )
        require(
            len(tables.shape) == 2 and tables.shape[:1] == q_lens.shape and (paged or tables.shape[1] == 1),
            owner,
            f"tables is {tables}, must be int32 [sequences, {'pages' if paged else 1}]",
        )
        wanted = (t.type_of(self.q).shape[0], 2)
        require(visible.shape == wanted, owner, f"visible is {visible}, must be int32 {list(wanted)}")
        kinds = {tables.dtype.name, q_lens.dtype.name, visible.dtype.name}
        require(kinds == {"int32"}, owner, "tables, lengths and visible must be int32")

    def bound(self, s: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Queries and share length of every sequence, from the extents; ProgramError for lengths that cannot be."""
        q_lens, kv_lens = s.extent(self.q_extent), s.extent(self.kv_extent)
        sequences, tokens = s.shape(self.q_lens)[0], s.shape(self.q)[0]
        if not len(q_lens) == len(kv_lens) == sequences:
            raise ProgramError(
                f"{self.owner.mnemonic}: {len(q_lens)} lengths in {self.q_extent}, {len(kv_lens)} in {self.kv_extent}, "
                f"for {sequences} sequences (in: {self.owner})"
            )
        if min((*q_lens, *kv_lens), default=0) < 0 or sum(q_lens) != tokens:
            raise ProgramError(
                f"{self.owner.mnemonic}: {tokens} rows for q_lens {list(q_lens)}, kv_lens {list(kv_lens)} "
                f"(in: {self.owner})"
            )
        return q_lens, kv_lens

    def seen(self, s: Sizes) -> list[Seen]:
        """What every sequence's queries see, from the extents; ProgramError for what cannot be."""
        values = s.extent(self.seen_extent)
        q_lens, kv_lens = self.bound(s)
        if len(values) != SEEN_PER_SEQUENCE * len(q_lens):
            raise ProgramError(
                f"{self.owner.mnemonic}: {self.seen_extent} has {len(values)} entries, "
                f"{SEEN_PER_SEQUENCE} a sequence of {len(q_lens)} are needed (in: {self.owner})"
            )
        found = [Seen(*values[at : at + SEEN_PER_SEQUENCE]) for at in range(0, len(values), SEEN_PER_SEQUENCE)]
        for one, queries, length in zip(found, q_lens, kv_lens, strict=True):
            fits = 0 <= one.queries <= queries and 0 <= one.keys <= length
            if not (fits and one.queries <= max(one.pairs, 0) <= one.queries * one.keys):
                raise ProgramError(
                    f"{self.owner.mnemonic}: {one} of {queries} queries over {length} rows (in: {self.owner})"
                )
        return found

    def read_bytes(self, s: Sizes) -> int:
        """Bytes of the share's rows that are looked at, and of what says which."""
        row_bytes = s.type_of(self.cache).dtype.bytes_of(s.shape(self.cache)[-1])
        return sum(one.keys for one in self.seen(s)) * row_bytes + bytes_of(s, self.visible)

    def page_tokens(self, s: Sizes) -> int:
        """Rows of a page; 0 where the share is one run of rows."""
        shape = s.shape(self.cache)
        return shape[1] if len(shape) == 3 else 0

    def sequences(self, m: Memory, cache: Array) -> Iterator[tuple[slice, Array, Array]]:
        """(rows of q, share rows, what each query sees of them) of every sequence that has queries.

        Raises ProgramError where memory does not say what is bound, or points to what is not there.
        """
        tables, visible, bound = m.get(self.tables), m.get(self.visible), self.bound(m)
        for held, lengths in zip((m.get(self.q_lens), m.get(self.kv_lens)), bound, strict=True):
            if tuple(held.tolist()) != lengths:
                raise ProgramError(
                    f"{self.owner.mnemonic}: {held.tolist()} in memory, {list(lengths)} bound (in: {self.owner})"
                )
        start = 0
        for table, queries, length in zip(tables, *bound, strict=True):
            rows = slice(start, start + queries)
            start += queries
            if not queries:
                continue
            seen = visible[rows]
            if (seen[:, 0] < 0).any() or (seen[:, 0] > seen[:, 1]).any() or (seen[:, 1] > length).any():
                raise ProgramError(f"{self.owner.mnemonic}: visible is {seen.tolist()} of {length} rows")
            yield rows, self._share(cache, table, length), seen

    def _share(self, cache: Array, table: Array, length: int) -> Array:
        if cache.ndim == 2:
            first = int(table[0])
            if length and not 0 <= first <= len(cache) - length:
                raise ProgramError(f"{self.owner.mnemonic}: rows {first} to {first + length} of {len(cache)}")
            share: Array = cache[first : first + length]
            return share
        pages = table[: -(-length // cache.shape[1])]
        require_rows(self.owner, pages, len(cache), "page")
        return context_rows(cache, table, length)


def part_of(scores: Array, values: Array, visible: Array) -> tuple[Array, Array]:
    """(output [queries, heads, v_dim], LSE [queries, heads]) from scores [heads, queries, keys] and values per head."""
    key = np.arange(scores.shape[-1])
    mask = (key >= visible[:, :1]) & (key < visible[:, 1:])
    some = mask.any(axis=1)
    scores = np.where(mask, scores, np.float32(-np.inf))
    best = np.where(some, scores.max(axis=-1, initial=-np.inf), np.float32(0))
    weights = np.exp(scores - best[..., None])
    total = weights.sum(axis=-1)
    safe = np.where(some, total, np.float32(1))
    out = np.einsum("hqk,khd->qhd", weights / safe[..., None], values)
    lse = np.where(some, best + np.log(safe), np.float32(NOTHING))
    return out, lse.T


def merged(out: Array, lse: Array, other: Array, other_lse: Array) -> tuple[Array, Array]:
    """Two parts [queries, heads, v_dim] with their LSE [queries, heads] as one."""
    best = np.maximum(lse, other_lse)
    mine, theirs = np.exp(lse - best), np.exp(other_lse - best)
    total = mine + theirs
    return (out * mine[..., None] + other * theirs[..., None]) / total[..., None], best + np.log(total)


def soft_capped(scores: Array, cap: float) -> Array:
    """cap * tanh(scores / cap); the scores themselves where cap is 0."""
    return np.asarray(np.float32(cap) * np.tanh(scores / np.float32(cap))) if cap else scores
