"""Instructions of the tensor unit: matrix product and attention over a paged KV cache."""

from __future__ import annotations

import numpy as np

from .cache import PagedCache
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
    rows_cols,
)
from .operands import ExtentName, In, OptionalIn, Out
from .paged import PagedContext, causal_mask
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
        product = m.rules.product(m.get(self.a), m.get(self.w))
        m.put(self.dst, product if self.bias is None else product + m.get(self.bias))


class ATTENTION(Instruction, opcode=0x11, unit=Unit.TENSOR):
    """Softmax attention of new tokens over a paged KV cache: prefill, decode, or both in one batch.

    q and dst are [tokens, heads * dim], the sequences' new tokens one after the other. cache is
    [pages, page_tokens, kv_heads * (qk_dim + v_dim)]: a token's keys, then its values. tables[b] lists the pages of
    sequence b; q_lens[b] and kv_lens[b] count its new tokens and its tokens in the cache, new ones included. A query
    sees the keys at or before its own position, at most `window` of them (0: all), or those from the last multiple of
    `chunk` on (0: all). A score s becomes cap * tanh(s / cap) under a `soft_cap` above 0. The softmax is in fp32; query
    head h uses key head h * kv_heads // heads. `sinks` holds a logit a head that joins the softmax and is then dropped.
    The extents hold the same lengths, for Work. `cache_scales` fp32 [pages, page_tokens, groups] scale a cache of
    codes, every `cache_group` of a row one.
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
    chunk: int = 0
    soft_cap: float = 0.0
    cache_scales: OptionalIn = None
    cache_group: int = 0

    @property
    def paged(self) -> PagedCache:
        """The cache and its scales."""
        return PagedCache(self, self.cache, self.cache_scales, None, self.cache_group)

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
        self.paged.row(t)
        require_floats(self, t, self.dst, self.q, self.sinks)
        require_apart(self, self.dst, self.q, *self.paged.refs, self.sinks)
        if self.sinks is not None:
            sinks = t.type_of(self.sinks)
            require(sinks.shape == (self.heads,), self, f"sinks is {sinks}, must be [{self.heads}]")
        self._context().check(t)

    def _check_heads(self) -> None:
        for name in ("heads", "kv_heads", "qk_dim", "v_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        require(
            self.heads % self.kv_heads == 0, self, f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}"
        )
        for name in ("window", "chunk", "soft_cap"):
            require(getattr(self, name) >= 0, self, f"{name} must be 0 (none) or more")
        require(not (self.window and self.chunk), self, "window and chunk exclude each other")

    def _context(self) -> PagedContext:
        return PagedContext(self, self.q, self.tables, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent)

    def work(self, s: Sizes) -> Work:
        q_lens, kv_lens = self._context().bound(s)
        pairs = sum(visible(q, kv, self.window, self.chunk) for q, kv in zip(q_lens, kv_lens, strict=True))
        seen = sum(touched(q, kv, self.window, self.chunk) for q, kv in zip(q_lens, kv_lens, strict=True))
        row_bytes = self.paged.row_bytes(s)
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
                self.chunk,
                self.soft_cap > 0,
            ),
        )

    def execute(self, m: Memory) -> None:
        q, cache = m.get(self.q), self.paged.values(m)
        out = np.zeros(m.shape(self.dst), np.float32)
        sinks = np.full(self.heads, -np.inf, np.float32) if self.sinks is None else m.get(self.sinks)
        for rows, context in self._context().sequences(m, cache):
            out[rows] = self._sequence(q[rows], context, sinks[:, None, None])
        m.put(self.dst, out)

    def _sequence(self, q: Array, rows: Array, sinks: Array) -> Array:
        """[queries, heads * v_dim] of one sequence from its queries and its cache rows."""
        split = self.kv_heads * self.qk_dim
        group = self.heads // self.kv_heads
        keys = rows[:, :split].reshape(-1, self.kv_heads, self.qk_dim).repeat(group, axis=1)
        values = rows[:, split:].reshape(-1, self.kv_heads, self.v_dim).repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q.reshape(-1, self.heads, self.qk_dim), keys) * np.float32(self.scale)
        if self.soft_cap:
            scores = np.float32(self.soft_cap) * np.tanh(scores / np.float32(self.soft_cap))
        scores = np.where(causal_mask(len(q), len(rows), self.window, self.chunk), scores, -np.inf)
        best = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
        weights = np.exp(scores - best)
        weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sinks - best)
        out: Array = np.einsum("hqk,khd->qhd", weights, values).reshape(len(q), -1)
        return out


def visible(queries: int, length: int, window: int, chunk: int = 0) -> int:
    """Query-key pairs that attention computes for one sequence."""
    if chunk:
        return _chunked_pairs(length, chunk) - _chunked_pairs(length - queries, chunk)
    first = length - queries + 1  # keys that the first query could see
    if not window or length <= window:
        return queries * first + queries * (queries - 1) // 2
    ramp = max(0, min(queries, window - first))  # queries that still see fewer than `window` keys
    return ramp * first + ramp * (ramp - 1) // 2 + (queries - ramp) * window


def _chunked_pairs(length: int, chunk: int) -> int:
    """Query-key pairs of a whole sequence in chunks."""
    whole, rest = divmod(length, chunk)
    return (whole * chunk * (chunk + 1) + rest * (rest + 1)) // 2


def touched(queries: int, length: int, window: int, chunk: int = 0) -> int:
    """Cache rows of one sequence that some query looks at."""
    if chunk and queries:
        return length - (length - queries) // chunk * chunk
    return min(length, window + queries - 1) if window and queries else length * bool(queries)
