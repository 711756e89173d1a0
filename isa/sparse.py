"""The choice of sparse attention: an indexer scores cached keys of its own and keeps the best for every new token."""

from __future__ import annotations

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
)
from .latent import require_choice
from .operands import ExtentName, In, Out
from .paged import PagedContext
from .work import IndexShape, Unit, Work

SCORE_OPS = 3  # a pair and head beside their product: relu, weight, sum
CHOICE_OPS = 4  # a score: compared in two passes of a radix select, and its position written


class SELECT_KEYS(Instruction, opcode=0x1F, unit=Unit.TENSOR):
    """For every new token the positions in its sequence of the top_k cached keys that score best.

    q is [tokens, heads * dim], weights [tokens, heads], cache [pages, page_tokens, dim]. A key k at or before the
    query's own position scores the sum over heads of weights * relu(q . k * scale), in fp32. dst is int32
    [tokens, top_k]: the positions of the best in ascending order; the earlier key wins a tie, and a NaN loses to all. A
    query that sees no more than top_k keys takes them all, unscored, and -1 fills up its row. Sequences, pages and
    lengths are as in attention.
    """

    dst: Out
    q: In
    weights: In
    cache: In
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    heads: int
    dim: int
    scale: float

    def _context(self) -> PagedContext:
        return PagedContext(self, self.q, self.tables, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent)

    def check(self, t: Shapes) -> None:
        for name in ("heads", "dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        tokens = t.type_of(self.q).shape[:1]
        for name, columns in (("q", self.heads * self.dim), ("weights", self.heads)):
            kind = t.type_of(getattr(self, name))
            require(kind.shape == (*tokens, columns), self, f"{name} is {kind}, must be {[*tokens, columns]}")
        cache = t.type_of(self.cache)
        require(
            len(cache.shape) == 3
            and cache.shape[2] == self.dim
            and isinstance(cache.shape[1], int)
            and cache.shape[1] > 0,
            self,
            f"cache is {cache}, must be [pages, page_tokens, {self.dim}], page_tokens a number above 0",
        )
        require_choice(self, t, self.dst, tokens[0])
        require_floats(self, t, self.q, self.weights, self.cache)
        require_apart(self, self.dst, self.q, self.weights, self.cache)
        self._context().check(t)

    def shape(self, s: Sizes) -> IndexShape:
        """The geometry for bound extents."""
        lengths, page_tokens = self._context().bound(s), s.shape(self.cache)[1]
        return IndexShape(*lengths, self.heads, self.dim, s.shape(self.dst)[1], page_tokens)

    def work(self, s: Sizes) -> Work:
        shape = self.shape(s)
        scored = shape.scored
        pairs = sum(entry[1] for entry in scored)
        q, weights, cache = (s.type_of(ref).dtype for ref in (self.q, self.weights, self.cache))
        query_bytes = q.bytes_of(self.heads * self.dim) + weights.bytes_of(self.heads)
        return Work(
            Unit.TENSOR,
            ops=pairs * (self.heads * (2 * self.dim + SCORE_OPS) + CHOICE_OPS),
            read_bytes=sum(queries * query_bytes + length * cache.bytes_of(self.dim) for queries, _, length in scored),
            write_bytes=bytes_of(s, self.dst),
            dtype=q,
            shape=shape,
        )

    def execute(self, m: Memory) -> None:
        q, weights, cache = (m.get(ref) for ref in (self.q, self.weights, self.cache))
        chosen = np.full(m.shape(self.dst), -1, np.int32)
        for rows, keys in self._context().sequences(m, cache):
            for row in range(rows.start, rows.stop):
                sees = len(keys) - (rows.stop - 1 - row)
                best = self._best(q[row].reshape(self.heads, self.dim), weights[row], keys[:sees], chosen.shape[1])
                chosen[row, : len(best)] = best
        m.put(self.dst, chosen)

    def _best(self, q: Array, weights: Array, keys: Array, top_k: int) -> Array:
        """Positions of the best keys for one query, ascending."""
        if len(keys) <= top_k:
            return np.arange(len(keys))
        scores = weights @ np.maximum(q @ keys.T * np.float32(self.scale), np.float32(0))
        scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
        return np.sort(np.argsort(-scores, kind="stable")[:top_k])
