"""What attention is composed of: batched products with a paged cache, a masked softmax, and products a head.

Scores and weights are [tokens, heads, context]: a row for each query and head, a column for each cached token of the
query's sequence, as many columns as the longest sequence has or more. The batched products are padded to that length,
as a library's are; rows of the cache are read for as many tokens as there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

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
)
from .latent import require_choice
from .operands import ExtentName, In, OptionalIn, Out, Ref
from .paged import Lengths, PagedContext, causal_mask
from .rowwise import check_map
from .work import GroupedShape, MatmulShape, Unit, VectorShape, Work


def _check_cache(instruction: Instruction, t: Shapes, cache: Ref, first: int, columns: int) -> None:
    kind = t.type_of(cache)
    row = kind.shape[-1]
    require(
        len(kind.shape) == 3 and isinstance(kind.shape[1], int) and kind.shape[1] > 0 and isinstance(row, int),
        instruction,
        f"cache is {kind}, must be [pages, page_tokens, row], page_tokens and row numbers above 0",
    )
    require(
        0 <= first and first + columns <= int(row),
        instruction,
        f"columns {first} to {first + columns} are not all of a cache row of {row}",
    )


def _check_heads(instruction: Instruction, heads: int, kv_heads: int, dim: int) -> None:
    require(min(heads, kv_heads, dim) > 0, instruction, "heads, kv_heads and dim must be above 0")
    require(heads % kv_heads == 0, instruction, f"heads={heads} is not a multiple of kv_heads={kv_heads}")


def _check_scores(instruction: Instruction, t: Shapes, scores: Ref, rows: Ref, heads: int, dim: int) -> None:
    """scores [tokens, heads, context] beside rows [tokens, heads * dim]."""
    kind, held = t.type_of(scores), t.type_of(rows)
    whole = (*held.shape[:1], heads * dim)
    require(held.shape == whole, instruction, f"{rows} is {held}, must be {list(whole)}")
    require(
        len(kind.shape) == 3 and kind.shape[:2] == (held.shape[0], heads),
        instruction,
        f"{scores} is {kind}, must be [{held.shape[0]}, {heads}, context]",
    )
    require_floats(instruction, t, scores, rows)


def _padded_work(
    s: Sizes,
    context: PagedContext,
    scores: Ref,
    cache: Ref,
    heads: tuple[int, int, int],
    width: tuple[int, int],
    moved: tuple[tuple[Ref | None, ...], Ref],
) -> Work:
    """A product for each sequence and kv head of (query heads, kv heads, dim), [queries * group, k] x [k, n].

    `width` is (n, k); `moved` is what is read beside the cache's rows, and what is written.
    """
    count, kv_heads, dim = heads
    q_lens, kv_lens = context.bound(s)
    longest, columns = max(kv_lens, default=0), s.shape(scores)[2]
    require(longest <= columns, context.owner, f"{scores} has {columns} columns for {longest} cached tokens")
    rows = tuple(queries * (count // kv_heads) for queries in q_lens if queries) * kv_heads
    seen = sum(length for queries, length in zip(q_lens, kv_lens, strict=True) if queries)
    reads, written = moved
    return Work(
        Unit.TENSOR,
        ops=2 * sum(rows) * width[0] * width[1],
        read_bytes=bytes_of(s, *reads) + seen * s.type_of(cache).dtype.bytes_of(kv_heads * dim),
        write_bytes=bytes_of(s, written),
        dtype=s.type_of(reads[0]).dtype if reads[0] is not None else None,
        shape=GroupedShape(rows, *width),
    )


class PAGED_SCORES(Instruction, opcode=0xA0, unit=Unit.TENSOR):
    """dst[t, h, j] = (what `onto` holds, or 0) + scale * (head h of query t . key j of its sequence); 0 beyond these.

    q is [tokens, heads * dim], sequences one after the other. cache is [pages, page_tokens, row]; the keys of kv head g
    are columns first + g * dim on, and head h uses kv head h * kv_heads // heads. Tables, lengths and extents are as in
    attention. `onto` may only be dst itself.
    """

    dst: Out
    q: In
    cache: In
    onto: OptionalIn
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    heads: int
    kv_heads: int
    first: int
    dim: int
    scale: float

    def _context(self) -> PagedContext:
        return PagedContext(self, self.q, self.tables, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent)

    def check(self, t: Shapes) -> None:
        _check_heads(self, self.heads, self.kv_heads, self.dim)
        _check_cache(self, t, self.cache, self.first, self.kv_heads * self.dim)
        _check_scores(self, t, self.dst, self.q, self.heads, self.dim)
        require_floats(self, t, self.cache)
        require_apart(self, self.dst, self.q, self.cache)
        require_floats(self, t, self.onto)
        require(self.onto in (None, self.dst), self, f"onto is {self.onto}, must be {self.dst} or absent")
        self._context().check(t)

    def work(self, s: Sizes) -> Work:
        heads = (self.heads, self.kv_heads, self.dim)
        width = (s.shape(self.dst)[2], self.dim)
        return _padded_work(s, self._context(), self.dst, self.cache, heads, width, ((self.q, self.onto), self.dst))

    def execute(self, m: Memory) -> None:
        q, cache = m.get(self.q), m.get(self.cache)
        out = np.zeros(m.shape(self.dst), np.float32)
        held = None if self.onto is None else m.get(self.onto)
        for rows, context in self._context().sequences(m, cache):
            keys = context[:, self.first : self.first + self.kv_heads * self.dim]
            keys = keys.reshape(-1, self.kv_heads, self.dim).repeat(self.heads // self.kv_heads, axis=1)
            queries = q[rows].reshape(-1, self.heads, self.dim)
            scores = np.einsum("qhd,khd->qhk", queries, keys) * np.float32(self.scale)
            before = 0 if held is None else held[rows, :, : len(context)]
            out[rows, :, : len(context)] = before + scores
        m.put(self.dst, out)


class PAGED_VALUES(Instruction, opcode=0xA1, unit=Unit.TENSOR):
    """dst[t, h] = the sum over j of weights[t, h, j] * value j of query t's sequence.

    dst is [tokens, heads * dim]; the values of kv head g are columns first + g * dim of a cache row on. All else is as
    in paged_scores.
    """

    dst: Out
    weights: In
    cache: In
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    heads: int
    kv_heads: int
    first: int
    dim: int

    def _context(self) -> PagedContext:
        return PagedContext(self, self.dst, self.tables, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent)

    def check(self, t: Shapes) -> None:
        _check_heads(self, self.heads, self.kv_heads, self.dim)
        _check_cache(self, t, self.cache, self.first, self.kv_heads * self.dim)
        _check_scores(self, t, self.weights, self.dst, self.heads, self.dim)
        require_floats(self, t, self.cache)
        require_apart(self, self.dst, self.weights, self.cache)
        self._context().check(t)

    def work(self, s: Sizes) -> Work:
        heads = (self.heads, self.kv_heads, self.dim)
        width = (self.dim, s.shape(self.weights)[2])
        return _padded_work(s, self._context(), self.weights, self.cache, heads, width, ((self.weights,), self.dst))

    def execute(self, m: Memory) -> None:
        weights, cache = m.get(self.weights), m.get(self.cache)
        out = np.zeros(m.shape(self.dst), np.float32)
        for rows, context in self._context().sequences(m, cache):
            values = context[:, self.first : self.first + self.kv_heads * self.dim]
            values = values.reshape(-1, self.kv_heads, self.dim).repeat(self.heads // self.kv_heads, axis=1)
            summed = np.einsum("qhk,khd->qhd", weights[rows, :, : len(context)], values)
            out[rows] = summed.reshape(summed.shape[0], -1)
        m.put(self.dst, out)


class MASKED_SOFTMAX(Instruction, opcode=0xA2, unit=Unit.VECTOR):
    """dst = softmax of every row of x over the tokens that its query may see, in fp32; 0 in all other columns.

    A query sees the tokens at or before its own position, at most `window` of them (0: all), or those from the last
    multiple of `chunk` on (0: all). `chosen` is int32 [tokens, top_k]: a query that may see more than top_k tokens sees
    those at its row's positions alone. `sinks` holds a logit a head that joins the softmax and is then dropped.
    """

    dst: Out
    x: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    window: int
    chunk: int
    sinks: OptionalIn
    chosen: OptionalIn = None

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)
        kind, q_lens, kv_lens = t.type_of(self.x), t.type_of(self.q_lens), t.type_of(self.kv_lens)
        heads = kind.shape[1:2]
        require(
            len(kind.shape) == 3 and isinstance(heads[0], int), self, f"x is {kind}, must be [tokens, heads, context]"
        )
        require(
            q_lens == kv_lens and len(q_lens.shape) == 1 and q_lens.dtype.name == "int32",
            self,
            f"q_lens is {q_lens} and kv_lens is {kv_lens}, must be int32 [sequences]",
        )
        require(min(self.window, self.chunk) >= 0, self, "window and chunk must be 0 (none) or more")
        if self.sinks is not None:
            sinks = t.type_of(self.sinks)
            require(sinks.shape == heads, self, f"sinks is {sinks}, must be [{heads[0]}]")
            require_floats(self, t, self.sinks)
            require_apart(self, self.dst, self.sinks)
        if self.chosen is not None:
            require_choice(self, t, self.chosen, kind.shape[0])

    def work(self, s: Sizes) -> Work:
        tokens, heads, columns = s.shape(self.x)
        longest = max(self._bound(s)[1], default=0)
        require(longest <= columns, self, f"x has {columns} columns for {longest} cached tokens")
        return Work(
            Unit.VECTOR,
            ops=6 * tokens * heads * columns,
            read_bytes=bytes_of(s, self.x, self.sinks, self.chosen),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(tokens * heads, columns, 3),
        )

    def execute(self, m: Memory) -> None:
        x, out = m.get(self.x), np.zeros(m.shape(self.dst), np.float32)
        sinks = np.full(x.shape[1], -np.inf, np.float32) if self.sinks is None else m.get(self.sinks)
        for rows, length in self._sequences(m):
            scores = x[rows, :, :length].transpose(1, 0, 2)
            mask = causal_mask(rows.stop - rows.start, length, self.window, self.chunk)
            scores = np.where(self._narrowed(m, mask, rows), scores, -np.inf)
            best = np.maximum(scores.max(axis=-1, keepdims=True), sinks[:, None, None])
            weights = np.exp(scores - best)
            weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sinks[:, None, None] - best)
            out[rows, :, :length] = weights.transpose(1, 0, 2)
        m.put(self.dst, out)

    def _narrowed(self, m: Memory, mask: Array, rows: slice) -> Array:
        """The mask of some queries, narrowed to the chosen tokens where there are more than are chosen."""
        if self.chosen is None:
            return mask
        chosen = m.get(self.chosen)[rows]
        for row, places in zip(mask, chosen, strict=True):
            if row.sum() > len(places):
                require_rows(self, places, len(row), "chosen position")
                picked = np.zeros(len(row), bool)
                picked[places] = True
                row &= picked
        return mask

    def _bound(self, s: Sizes) -> tuple[Lengths, Lengths]:
        """New and cached tokens of every sequence; the tables, which a softmax has none of, are not asked for."""
        return PagedContext(self, self.x, self.x, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent).bound(s)

    def _sequences(self, m: Memory) -> Iterator[tuple[slice, int]]:
        """(rows of x, cached tokens) of every sequence that has new tokens."""
        start = 0
        for queries, length in zip(*self._bound(m), strict=True):
            if queries:
                yield slice(start, start + queries), length
            start += queries


class HEADS_MATMUL(Instruction, opcode=0xA3, unit=Unit.TENSOR):
    """A product for each head: dst[t, h] = a[t, h] @ w_h^T, or a[t, h] @ w_h.

    a is [tokens, heads * k] and dst [tokens, heads * n]. w is [heads * rows, columns]; w_h are rows of head h from
    `first` on: n of them, of k columns, where its `rows` are the outputs, and k of them, of n, where its `columns` are.
    """

    dst: Out
    a: In
    w: In
    heads: int
    first: int
    outputs: Literal["rows", "columns"]

    def _sizes(self, t: Shapes) -> tuple[int, int, int]:
        """(n, k, rows of w a head); ProgramError where they do not fit."""
        require(self.heads > 0, self, "heads must be above 0")
        sides = []
        for ref in (self.dst, self.a, self.w):
            kind = t.type_of(ref)
            require(len(kind.shape) == 2 and isinstance(kind.shape[1], int), self, f"{ref} is {kind}, must be [m, n]")
            sides.append(int(kind.shape[1]))
        rows = t.type_of(self.w).shape[0]
        require(isinstance(rows, int), self, f"w is {t.type_of(self.w)}, must be numbers")
        for name, size in (("dst", sides[0]), ("a", sides[1]), ("w", int(rows))):
            require(size % self.heads == 0, self, f"{name} has {size}, not a multiple of {self.heads} heads")
        return sides[0] // self.heads, sides[1] // self.heads, int(rows) // self.heads

    def check(self, t: Shapes) -> None:
        n, k, rows = self._sizes(t)
        dst, a, columns = t.type_of(self.dst), t.type_of(self.a), t.type_of(self.w).shape[1]
        require(dst.shape[0] == a.shape[0], self, f"dst is {dst} and a is {a}: they must have as many rows")
        used, other = (n, k) if self.outputs == "rows" else (k, n)
        require(columns == other, self, f"w has {columns} columns, must have {other}")
        require(
            0 <= self.first and self.first + used <= rows,
            self,
            f"w has {rows} rows a head, not {used} from {self.first} on",
        )
        require_floats(self, t, self.dst, self.a, self.w)
        require_apart(self, self.dst, self.a, self.w)

    def work(self, s: Sizes) -> Work:
        n, k, _ = self._sizes(s)
        m = s.shape(self.a)[0]
        return Work(
            Unit.TENSOR,
            ops=2 * m * self.heads * n * k,
            read_bytes=bytes_of(s, self.a) + s.type_of(self.w).dtype.bytes_of(self.heads * n * k),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.a).dtype,
            shape=MatmulShape(m, n, k, self.heads),
        )

    def execute(self, m: Memory) -> None:
        n, k, rows = self._sizes(m)
        a, w = m.get(self.a).reshape(-1, self.heads, k), m.get(self.w).reshape(self.heads, rows, -1)
        used = w[:, self.first : self.first + (n if self.outputs == "rows" else k)]
        product: Array = np.einsum("thk,hnk->thn" if self.outputs == "rows" else "thk,hkn->thn", a, used)
        m.put(self.dst, product.reshape(m.shape(self.dst)))
