"""Instructions of the tensor unit: matrix product and attention over a paged KV cache."""

from __future__ import annotations

import numpy as np

from .errors import ProgramError
from .instruction import (
    Array,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    require,
    require_apart,
    require_floats,
    require_rows,
    rows_cols,
)
from .operands import ExtentName, In, OptionalIn, Out
from .work import AttentionShape, MatmulShape, Unit, Work


class MATMUL(Instruction, opcode=0x10, unit=Unit.TENSOR):
    """dst[m, n] = a[m, k] @ w[n, k]^T (+ bias[n]), accumulated in fp32 and rounded once to dst's dtype.

    Leading dimensions of `a` and `dst` count as rows; weights lie as checkpoints store them, one output a row.
    """

    dst: Out
    a: In
    w: In
    bias: OptionalIn

    def check(self, t: Shapes) -> None:
        dst, a, w = t.type_of(self.dst), t.type_of(self.a), t.type_of(self.w)
        require(len(w.shape) == 2, self, f"w must be [n, k], is {w}")
        require(a.shape[-1] == w.shape[1], self, f"a is {a} and w is {w}: their k differ")
        require(
            dst.shape == (*a.shape[:-1], w.shape[0]),
            self,
            f"dst is {dst}, must be {(*a.shape[:-1], w.shape[0])}",
        )
        require_floats(self, t, self.dst, self.a, self.w, self.bias)
        require_apart(self, self.dst, self.a, self.w, self.bias)
        if self.bias is not None:
            bias = t.type_of(self.bias)
            require(bias.shape == w.shape[:1], self, f"bias is {bias}, must be [{w.shape[0]}]")

    def work(self, s: Sizes) -> Work:
        m, k = rows_cols(s.shape(self.a))
        n = s.shape(self.w)[0]
        return Work(
            Unit.TENSOR,
            ops=2 * m * n * k + (m * n if self.bias is not None else 0),
            read_bytes=bytes_of(s, self.a, self.w, self.bias),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.a).dtype,
            shape=MatmulShape(m, n, k),
        )

    def execute(self, m: Memory) -> None:
        product = m.get(self.a) @ m.get(self.w).T
        m.put(self.dst, product if self.bias is None else product + m.get(self.bias))


def context_rows(cache: Array, table: Array, length: int) -> Array:
    """The first `length` token rows of a sequence, gathered from its pages: [length, row]."""
    page_tokens = cache.shape[1]
    pages = table[: -(-length // page_tokens)]
    return cache[pages].reshape(-1, cache.shape[2])[:length]


def causal_mask(queries: int, length: int, window: int) -> Array:
    """True where a query may look: not ahead of itself, nor further back than `window` tokens (itself included)."""
    position = np.arange(length - queries, length)[:, None]
    key = np.arange(length)[None, :]
    mask: Array = key <= position
    return mask & (key > position - window) if window else mask


class ATTENTION(Instruction, opcode=0x11, unit=Unit.TENSOR):
    """Softmax attention of new tokens over a paged KV cache: prefill, decode, or both in one batch.

    q and dst are [tokens, heads * dim], the sequences' new tokens one after the other. cache is
    [pages, page_tokens, kv_heads * (qk_dim + v_dim)]: a token's keys, then its values. tables[b] lists the pages of
    sequence b; q_lens[b] and kv_lens[b] count its new tokens and its tokens in the cache, new ones included. A query
    sees the keys at or before its own position, at most `window` of them (0: all). The softmax is in fp32; query head h
    uses key head h * kv_heads // heads. `sinks` holds a logit a head that joins the softmax and is then dropped. The
    extents hold the same lengths, for Work.
    """

    dst: Out
    q: In
    cache: In
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    window: int
    sinks: OptionalIn = None

    def check(self, t: Shapes) -> None:
        self._check_heads()
        q, dst, cache = t.type_of(self.q), t.type_of(self.dst), t.type_of(self.cache)
        row = self.kv_heads * (self.qk_dim + self.v_dim)
        q_row = self.heads * self.qk_dim
        require(len(q.shape) == 2 and q.shape[1] == q_row, self, f"q is {q}, must be [tokens, {q_row}]")
        whole = (q.shape[0], self.heads * self.v_dim)
        require(dst.shape == whole, self, f"dst is {dst}, must be {list(whole)}")
        require(
            len(cache.shape) == 3 and cache.shape[2] == row and isinstance(cache.shape[1], int) and cache.shape[1] > 0,
            self,
            f"cache is {cache}, must be [pages, page_tokens, {row}], page_tokens a number above 0",
        )
        require_floats(self, t, self.dst, self.q, self.cache, self.sinks)
        require_apart(self, self.dst, self.q, self.cache, self.sinks)
        if self.sinks is not None:
            sinks = t.type_of(self.sinks)
            require(sinks.shape == (self.heads,), self, f"sinks is {sinks}, must be [{self.heads}]")
        self._check_lengths(t)

    def _check_heads(self) -> None:
        for name in ("heads", "kv_heads", "qk_dim", "v_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        require(
            self.heads % self.kv_heads == 0, self, f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}"
        )
        require(self.window >= 0, self, "window must be 0 (none) or more")

    def _check_lengths(self, t: Shapes) -> None:
        tables, q_lens, kv_lens = t.type_of(self.tables), t.type_of(self.q_lens), t.type_of(self.kv_lens)
        require(
            q_lens == kv_lens and len(q_lens.shape) == 1,
            self,
            f"q_lens is {q_lens} and kv_lens is {kv_lens}, must be int32 [sequences]",
        )
        require(
            len(tables.shape) == 2 and tables.shape[:1] == q_lens.shape,
            self,
            f"tables is {tables}, must be int32 [sequences, pages]",
        )
        require({tables.dtype.name, q_lens.dtype.name} == {"int32"}, self, "tables and lengths must be int32")

    def work(self, s: Sizes) -> Work:
        q_lens, kv_lens = self._bound_lengths(s)
        pairs = sum(_visible(q, kv, self.window) for q, kv in zip(q_lens, kv_lens, strict=True))
        seen = sum(_touched(q, kv, self.window) for q, kv in zip(q_lens, kv_lens, strict=True))
        row_bytes = s.type_of(self.cache).dtype.bytes_of(s.shape(self.cache)[2])
        return Work(
            Unit.TENSOR,
            ops=2 * pairs * self.heads * (self.qk_dim + self.v_dim),
            read_bytes=bytes_of(s, self.q, self.sinks) + seen * row_bytes,
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.q).dtype,
            shape=AttentionShape(
                q_lens,
                kv_lens,
                self.heads,
                self.kv_heads,
                self.qk_dim,
                self.v_dim,
                self.window,
                s.shape(self.cache)[1],
            ),
        )

    def _bound_lengths(self, s: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """New and cached tokens of every sequence, from the extents; ProgramError for lengths that cannot be."""
        q_lens, kv_lens = s.extent(self.q_extent), s.extent(self.kv_extent)
        if len(q_lens) != len(kv_lens) or len(q_lens) != s.shape(self.q_lens)[0]:
            raise ProgramError(
                f"attention: {len(q_lens)} lengths in {self.q_extent}, {len(kv_lens)} in {self.kv_extent}, "
                f"for {s.shape(self.q_lens)[0]} sequences (in: {self})"
            )
        for queries, length in zip(q_lens, kv_lens, strict=True):
            if not 0 <= queries <= length:
                raise ProgramError(f"attention: {queries} new tokens in a cache of {length} (in: {self})")
        if sum(q_lens) != s.shape(self.q)[0]:
            raise ProgramError(f"attention: q has {s.shape(self.q)[0]} rows for {sum(q_lens)} new tokens (in: {self})")
        return q_lens, kv_lens

    def execute(self, m: Memory) -> None:
        q, cache, tables = m.get(self.q), m.get(self.cache), m.get(self.tables)
        self._check_tables(m, cache, tables)
        out = np.zeros(m.shape(self.dst), np.float32)
        sinks = np.full(self.heads, -np.inf, np.float32) if self.sinks is None else m.get(self.sinks)
        start = 0
        for index, (queries, length) in enumerate(zip(m.get(self.q_lens), m.get(self.kv_lens), strict=True)):
            stop = start + int(queries)
            if queries:
                rows = context_rows(cache, tables[index], int(length))
                out[start:stop] = self._sequence(q[start:stop], rows, sinks[:, None, None])
            start = stop
        m.put(self.dst, out)

    def _check_tables(self, m: Memory, cache: Array, tables: Array) -> None:
        """The lengths in memory are the bound ones, and the pages that they reach are there."""
        lengths = m.get(self.kv_lens)
        for held, bound in zip((m.get(self.q_lens), lengths), self._bound_lengths(m), strict=True):
            if tuple(held.tolist()) != bound:
                raise ProgramError(f"attention: lengths {held.tolist()} in memory, {list(bound)} bound (in: {self})")
        for table, length in zip(tables, lengths, strict=True):
            pages = -(-int(length) // cache.shape[1])
            if pages > len(table):
                raise ProgramError(f"attention: {length} tokens need {pages} pages, the table has {len(table)}")
            require_rows(self, table[:pages], len(cache), "page")

    def _sequence(self, q: Array, rows: Array, sinks: Array) -> Array:
        """[queries, heads * v_dim] of one sequence from its queries and its cache rows."""
        split = self.kv_heads * self.qk_dim
        group = self.heads // self.kv_heads
        keys = rows[:, :split].reshape(-1, self.kv_heads, self.qk_dim).repeat(group, axis=1)
        values = rows[:, split:].reshape(-1, self.kv_heads, self.v_dim).repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q.reshape(-1, self.heads, self.qk_dim), keys) * np.float32(self.scale)
        scores = np.where(causal_mask(len(q), len(rows), self.window), scores, -np.inf)
        best = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
        weights = np.exp(scores - best)
        weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sinks - best)
        out: Array = np.einsum("hqk,khd->qhd", weights, values).reshape(len(q), -1)
        return out


def _visible(queries: int, length: int, window: int) -> int:
    """Query-key pairs that attention computes for one sequence."""
    first = length - queries + 1  # keys that the first query could see
    if not window or length <= window:
        return queries * first + queries * (queries - 1) // 2
    ramp = max(0, min(queries, window - first))  # queries that still see fewer than `window` keys
    return ramp * first + ramp * (ramp - 1) // 2 + (queries - ramp) * window


def _touched(queries: int, length: int, window: int) -> int:
    """Cache rows of one sequence that some query looks at."""
    return min(length, window + queries - 1) if window and queries else length * bool(queries)
