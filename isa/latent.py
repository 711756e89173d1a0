"""Multi-head latent attention: a cache of one latent a token, from which keys and values of all heads are made."""

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
from .operands import ExtentName, In, Out
from .paged import PagedContext, causal_mask
from .work import LatentShape, Unit, Work


class LATENT_ATTENTION(Instruction, opcode=0x18, unit=Unit.TENSOR):
    """Softmax attention of new tokens over a paged cache of latents.

    cache is [pages, page_tokens, latent_dim + rope_dim]: a token's latent c, then the key part r that all heads share.
    w is [heads * (nope_dim + v_dim), latent_dim]: for each head the rows K that make its keys and the rows V that make
    its values. Head h of query (n, p), from q_nope [tokens, heads * nope_dim] and q_rope [tokens, heads * rope_dim],
    gives n . K c + p . r, times `scale`, to each token at or before its own; the softmax of these, in fp32, weighs
    V c. dst is [tokens, heads * v_dim]. Sequences, pages and lengths are as in attention.

    The products may be taken in two orders, which differ by rounding alone: expanded, K c and V c are made of every
    cached token; absorbed, n K and V (sum of c) are made of every new one. Each sequence takes the order with fewer
    operations, and Work says which.
    """

    dst: Out
    q_nope: In
    q_rope: In
    cache: In
    w: In
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    heads: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float

    def _context(self) -> PagedContext:
        return PagedContext(self, self.q_nope, self.tables, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent)

    def check(self, t: Shapes) -> None:
        for name in ("heads", "nope_dim", "rope_dim", "v_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        tokens = t.type_of(self.q_nope).shape[:1]
        for name, dim in (("q_nope", self.nope_dim), ("q_rope", self.rope_dim), ("dst", self.v_dim)):
            held, whole = t.type_of(getattr(self, name)), (*tokens, self.heads * dim)
            require(held.shape == whole, self, f"{name} is {held}, must be {list(whole)}")
        cache, w = t.type_of(self.cache), t.type_of(self.w)
        require(
            len(cache.shape) == 3
            and isinstance(cache.shape[1], int)
            and cache.shape[1] > 0
            and isinstance(cache.shape[2], int)
            and cache.shape[2] > self.rope_dim,
            self,
            f"cache is {cache}, must be [pages, page_tokens, latent + {self.rope_dim}], page_tokens a number above 0",
        )
        assert isinstance(cache.shape[2], int)
        whole_w = (self.heads * (self.nope_dim + self.v_dim), cache.shape[2] - self.rope_dim)
        require(w.shape == whole_w, self, f"w is {w}, must be {list(whole_w)}")
        require_floats(self, t, self.dst, self.q_nope, self.q_rope, self.cache, self.w)
        require_apart(self, self.dst, self.q_nope, self.q_rope, self.cache, self.w)
        self._context().check(t)

    def work(self, s: Sizes) -> Work:
        q_lens, kv_lens = self._context().bound(s)
        shape = LatentShape(
            q_lens,
            kv_lens,
            self.heads,
            self.nope_dim,
            self.rope_dim,
            self.v_dim,
            s.shape(self.cache)[2] - self.rope_dim,
            s.shape(self.cache)[1],
        )
        seen = sum(length for queries, length in zip(q_lens, kv_lens, strict=True) if queries)
        row_bytes = s.type_of(self.cache).dtype.bytes_of(s.shape(self.cache)[2])
        return Work(
            Unit.TENSOR,
            ops=sum(min(shape.ops(*lengths)) for lengths in zip(q_lens, kv_lens, strict=True)),
            read_bytes=bytes_of(s, self.q_nope, self.q_rope, self.w) + seen * row_bytes,
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.q_nope).dtype,
            shape=shape,
        )

    def execute(self, m: Memory) -> None:
        q_nope, q_rope, cache, w = (m.get(ref) for ref in (self.q_nope, self.q_rope, self.cache, self.w))
        out = np.zeros(m.shape(self.dst), np.float32)
        for rows, context in self._context().sequences(m, cache):
            out[rows] = self._sequence(q_nope[rows], q_rope[rows], context, w)
        m.put(self.dst, out)

    def _sequence(self, q_nope: Array, q_rope: Array, context: Array, w: Array) -> Array:
        """[queries, heads * v_dim] of one sequence, expanded."""
        latent, shared = context[:, : -self.rope_dim], context[:, -self.rope_dim :]
        made = (latent @ w.T).reshape(len(context), self.heads, -1)
        keys, values = made[:, :, : self.nope_dim], made[:, :, self.nope_dim :]
        scores = np.einsum("qhd,khd->hqk", q_nope.reshape(-1, self.heads, self.nope_dim), keys)
        scores += np.einsum("qhd,kd->hqk", q_rope.reshape(-1, self.heads, self.rope_dim), shared)
        scores = np.where(causal_mask(len(q_nope), len(context), 0), scores * np.float32(self.scale), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out: Array = np.einsum("hqk,khd->qhd", weights, values).reshape(len(q_nope), -1)
        return out
