"""Attention over a part of the context: what each query sees of a share of the cache, and the merge of such parts.

A part is fp32 [tokens, heads * (v_dim + 1)]: every head's output over the keys that its query sees in the share, the
weights of which add up to 1, then every head's log of the sum of exponentials of its scores (LSE). A query that sees
nothing has the output 0 and the LSE `NOTHING`.
"""

from __future__ import annotations

import numpy as np

from .instruction import Array, Instruction, Memory, Shapes, Sizes, bytes_of, require, require_apart, require_floats
from .operands import ExtentName, In, OptionalIn, Out, Ref
from .share import NOTHING, Seen, ShareContext, merged, part_of, soft_capped
from .work import AttentionShape, LatentShape, Order, Unit, VectorShape, Work


def _store(m: Memory, dst: Ref, before: Ref | None, out: Array, lse: Array) -> None:
    """Write a part, merged with the one before it."""
    heads, v_dim = out.shape[1:]
    if before is not None:
        held = m.get(before)
        split = heads * v_dim
        out, lse = merged(held[:, :split].reshape(out.shape), held[:, split:], out, lse)
    m.put(dst, np.concatenate([out.reshape(len(out), -1), lse], axis=1))


def _check_part(i: Instruction, t: Shapes, dst: Ref, before: Ref | None, tokens: object, row: int) -> None:
    for name, ref in (("dst", dst), ("before", before)):
        if ref is not None:
            kind = t.type_of(ref)
            require(
                kind.shape == (tokens, row) and kind.dtype.name == "fp32",
                i,
                f"{name} is {kind}, must be fp32 [{tokens}, {row}]",
            )
    if before is not None and before != dst:
        require_apart(i, dst, before)


class PARTIAL_ATTENTION(Instruction, opcode=0x78, unit=Unit.TENSOR):
    """dst = the part of softmax attention that a share of each sequence's cache gives, merged with the part `before`.

    q is [tokens, heads * qk_dim]; a row of the cache holds a token's keys, then its values, as in attention. Which rows
    each query sees is stated, so that a share may hold any of a sequence's tokens. Scores are capped to
    soft_cap * tanh(score / soft_cap) unless soft_cap is 0. Sinks belong to the whole: merge_parts adds them.
    """

    dst: Out
    q: In
    before: OptionalIn
    cache: In
    tables: In
    q_lens: In
    kv_lens: In
    visible: In
    q_extent: ExtentName
    kv_extent: ExtentName
    seen: ExtentName
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    soft_cap: float

    def _context(self) -> ShareContext:
        lengths = (self.tables, self.q_lens, self.kv_lens, self.visible)
        return ShareContext(self, self.q, self.cache, *lengths, self.q_extent, self.kv_extent, self.seen)

    def check(self, t: Shapes) -> None:
        for name in ("heads", "kv_heads", "qk_dim", "v_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        require(
            self.heads % self.kv_heads == 0, self, f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}"
        )
        require(self.soft_cap >= 0, self, "soft_cap must be 0 (none) or more")
        q, row = t.type_of(self.q), self.heads * self.qk_dim
        require(len(q.shape) == 2 and q.shape[1] == row, self, f"q is {q}, must be [tokens, {row}]")
        _check_part(self, t, self.dst, self.before, q.shape[0], self.heads * (self.v_dim + 1))
        require_floats(self, t, self.q, self.cache)
        require_apart(self, self.dst, self.q, self.cache)
        self._context().check(t, self.kv_heads * (self.qk_dim + self.v_dim))

    def work(self, s: Sizes) -> Work:
        context = self._context()
        seen = context.seen(s)
        parts = [part for one in seen for part in one.causal_parts]
        shape = AttentionShape(
            tuple(queries for queries, _ in parts),
            tuple(length for _, length in parts),
            self.heads,
            self.kv_heads,
            self.qk_dim,
            self.v_dim,
            page_tokens=context.page_tokens(s) or 1,
            soft_capped=self.soft_cap > 0,
        )
        return Work(
            Unit.TENSOR,
            ops=2 * sum(one.pairs for one in seen) * self.heads * (self.qk_dim + self.v_dim),
            read_bytes=bytes_of(s, self.q, self.before) + context.read_bytes(s),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.q).dtype,
            shape=shape,
        )

    def execute(self, m: Memory) -> None:
        q, cache, group = m.get(self.q), m.get(self.cache), self.heads // self.kv_heads
        out = np.zeros((len(q), self.heads, self.v_dim), np.float32)
        lse = np.full((len(q), self.heads), NOTHING, np.float32)
        split = self.kv_heads * self.qk_dim
        for rows, share, visible in self._context().sequences(m, cache):
            keys = share[:, :split].reshape(-1, self.kv_heads, self.qk_dim).repeat(group, axis=1)
            values = share[:, split:].reshape(-1, self.kv_heads, self.v_dim).repeat(group, axis=1)
            scores = np.einsum("qhd,khd->hqk", q[rows].reshape(-1, self.heads, self.qk_dim), keys)
            scores = soft_capped(scores * np.float32(self.scale), self.soft_cap)
            out[rows], lse[rows] = part_of(scores, values, visible)
        _store(m, self.dst, self.before, out, lse)


class PARTIAL_LATENT_ATTENTION(Instruction, opcode=0x79, unit=Unit.TENSOR):
    """dst = the part of latent attention that a share of each sequence's cache gives, merged with the part `before`.

    Queries, cache rows, w, the two orders of products and pieces are as in latent_attention; the share, and which of
    its rows each query sees, as in partial_attention. With order auto a sequence takes the one that is cheaper for the
    causal attention of as many queries and pairs.
    """

    dst: Out
    q_nope: In
    q_rope: In
    before: OptionalIn
    cache: In
    w: In
    tables: In
    q_lens: In
    kv_lens: In
    visible: In
    q_extent: ExtentName
    kv_extent: ExtentName
    seen: ExtentName
    heads: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    order: Order = "auto"
    piece_tokens: int = 0

    def _context(self) -> ShareContext:
        lengths = (self.tables, self.q_lens, self.kv_lens, self.visible)
        return ShareContext(self, self.q_nope, self.cache, *lengths, self.q_extent, self.kv_extent, self.seen)

    def check(self, t: Shapes) -> None:
        for name in ("heads", "nope_dim", "rope_dim", "v_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        require(self.piece_tokens >= 0, self, "piece_tokens must be 0 (all at once) or more")
        tokens = t.type_of(self.q_nope).shape[0]
        for name, dim in (("q_nope", self.nope_dim), ("q_rope", self.rope_dim)):
            held, whole = t.type_of(getattr(self, name)), (tokens, self.heads * dim)
            require(held.shape == whole, self, f"{name} is {held}, must be {list(whole)}")
        w, made = t.type_of(self.w), self.heads * (self.nope_dim + self.v_dim)
        require(
            len(w.shape) == 2 and w.shape[0] == made and isinstance(w.shape[1], int),
            self,
            f"w is {w}, must be [{made}, latent]",
        )
        assert isinstance(w.shape[1], int), "checked above"
        _check_part(self, t, self.dst, self.before, tokens, self.heads * (self.v_dim + 1))
        require_floats(self, t, self.q_nope, self.q_rope, self.cache, self.w)
        require_apart(self, self.dst, self.q_nope, self.q_rope, self.cache, self.w)
        self._context().check(t, w.shape[1] + self.rope_dim)

    def shape(self, s: Sizes) -> LatentShape:
        """The geometry for bound extents: causal attention of as many queries and pairs."""
        context, seen = self._context(), self._context().seen(s)
        lengths = tuple(one.queries for one in seen), tuple(one.causal_length for one in seen)
        dims = (self.heads, self.nope_dim, self.rope_dim, self.v_dim, s.shape(self.w)[1])
        page_tokens = context.page_tokens(s) or 1
        return LatentShape(*lengths, *dims, page_tokens, order=self.order, piece_tokens=self.piece_tokens)

    def work(self, s: Sizes) -> Work:
        context, shape = self._context(), self.shape(s)
        seen = context.seen(s)
        return Work(
            Unit.TENSOR,
            ops=sum(self._ops(one, shape) for one in seen),
            read_bytes=bytes_of(s, self.q_nope, self.q_rope, self.before, self.w) + context.read_bytes(s),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.q_nope).dtype,
            shape=shape,
        )

    def _ops(self, one: Seen, shape: LatentShape) -> int:
        """Operations of one sequence, in the order that it takes."""
        made = shape.latent_dim * (self.nope_dim + self.v_dim)
        if shape.expands(one.queries, one.causal_length):
            return 2 * self.heads * (one.keys * made + one.pairs * (self.nope_dim + self.rope_dim + self.v_dim))
        return 2 * self.heads * (one.queries * made + one.pairs * (2 * shape.latent_dim + self.rope_dim))

    def execute(self, m: Memory) -> None:
        q_nope, q_rope, cache, w = (m.get(ref) for ref in (self.q_nope, self.q_rope, self.cache, self.w))
        out = np.zeros((len(q_nope), self.heads, self.v_dim), np.float32)
        lse = np.full((len(q_nope), self.heads), NOTHING, np.float32)
        for rows, share, visible in self._context().sequences(m, cache):
            latent, shared = share[:, : -self.rope_dim], share[:, -self.rope_dim :]
            made = (latent @ w.T).reshape(len(share), self.heads, self.nope_dim + self.v_dim)
            scores = np.einsum(
                "qhd,khd->hqk", q_nope[rows].reshape(-1, self.heads, self.nope_dim), made[:, :, : self.nope_dim]
            )
            scores += np.einsum("qhd,kd->hqk", q_rope[rows].reshape(-1, self.heads, self.rope_dim), shared)
            out[rows], lse[rows] = part_of(scores * np.float32(self.scale), made[:, :, self.nope_dim :], visible)
        _store(m, self.dst, self.before, out, lse)


class MERGE_PARTS(Instruction, opcode=0x7A, unit=Unit.VECTOR):
    """dst[t] = the attention of token t from its parts in the rows t, tokens + t, 2 * tokens + t, ... of `parts`.

    A part weighs exp(LSE); `sinks` holds a logit a head that joins the sum of the weights and is then dropped.
    """

    dst: Out
    parts: In
    sinks: OptionalIn
    heads: int
    count: int

    def check(self, t: Shapes) -> None:
        dst, parts = t.type_of(self.dst), t.type_of(self.parts)
        require(self.heads > 0 and self.count > 0, self, "heads and count must be above 0")
        require(len(dst.shape) == 2 and len(parts.shape) == 2, self, f"dst is {dst} and parts is {parts}")
        columns = dst.shape[1]
        require(
            isinstance(columns, int) and columns > 0 and columns % self.heads == 0,
            self,
            f"dst is {dst}, must have {self.heads} equal heads",
        )
        assert isinstance(columns, int), "checked above"
        require(
            parts.shape[1] == columns + self.heads and parts.dtype.name == "fp32",
            self,
            f"parts is {parts}, must be fp32 [{self.count} x tokens, {columns + self.heads}]",
        )
        require(
            self.count > 1 or parts.shape[0] == dst.shape[0],
            self,
            f"one part of {dst} has as many rows, parts is {parts}",
        )
        if self.sinks is not None:
            sinks = t.type_of(self.sinks)
            require(sinks.shape == (self.heads,), self, f"sinks is {sinks}, must be [{self.heads}]")
        require_floats(self, t, self.dst, self.sinks)
        require_apart(self, self.dst, self.parts, self.sinks)

    def _rows(self, s: Sizes) -> int:
        tokens, rows = s.shape(self.dst)[0], s.shape(self.parts)[0]
        require(rows == self.count * tokens, self, f"{rows} rows of parts for {self.count} x {tokens} tokens")
        return tokens

    def work(self, s: Sizes) -> Work:
        tokens, columns = self._rows(s), s.shape(self.parts)[1]
        return Work(
            Unit.VECTOR,
            ops=tokens * self.count * (2 * columns + 4 * self.heads),
            read_bytes=bytes_of(s, self.parts, self.sinks),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.parts).dtype,
            shape=VectorShape(tokens, self.count * columns, 2),
        )

    def execute(self, m: Memory) -> None:
        tokens, split = self._rows(m), m.shape(self.dst)[1]
        parts = m.get(self.parts).reshape(self.count, tokens, -1)
        lse = parts[:, :, split:]
        best = lse.max(axis=0)
        sinks = None if self.sinks is None else m.get(self.sinks)
        if sinks is not None:
            best = np.maximum(best, sinks)
        weights = np.exp(lse - best)
        total = weights.sum(axis=0) + (0 if sinks is None else np.exp(sinks - best))
        outs = parts[:, :, :split].reshape(self.count, tokens, self.heads, -1)
        out = (outs * (weights / total)[..., None]).sum(axis=0)
        m.put(self.dst, out.reshape(tokens, split).astype(np.float32))
