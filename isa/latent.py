"""Multi-head latent attention: a cache of one latent a token, from which keys and values of all heads are made."""

from __future__ import annotations

import numpy as np

from .cache import PagedCache
from .errors import ProgramError
from .instruction import (
    Array,
    Dim,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    require,
    require_apart,
    require_floats,
)
from .operands import ExtentName, In, OptionalIn, Out, Ref
from .paged import PagedContext, causal_mask
from .work import LatentShape, Order, Unit, Work


class LATENT_ATTENTION(Instruction, opcode=0x18, unit=Unit.TENSOR):
    """Softmax attention of new tokens over a paged cache of latents.

    cache is [pages, page_tokens, latent_dim + rope_dim]: a token's latent c, then the key part r that all heads share.
    w is [heads * (nope_dim + v_dim), latent_dim]: for each head the rows K that make its keys and the rows V that make
    its values. Head h of query (n, p), from q_nope [tokens, heads * nope_dim] and q_rope [tokens, heads * rope_dim],
    gives n . K c + p . r, times `scale`, to each token at or before its own; the softmax of these, in fp32, weighs
    V c. dst is [tokens, heads * v_dim]. Sequences, pages and lengths are as in attention.

    The products may be taken in two orders, which differ by rounding alone: expanded, K c and V c are made of every
    cached token; absorbed, n K and V (sum of c) are made of every new one. `order` says which; with auto each sequence
    takes the one with fewer operations. The cached tokens of all expanded sequences, one after the other, are expanded
    `piece_tokens` at a time (0: all at once), and what the pieces give is merged by their sums of exponentials. What
    stands between the products needs `workspace` bytes of device memory.

    `chosen` is int32 [tokens, top_k], as `select_keys` writes it: a query that sees more than top_k tokens attends to
    those at its row's positions alone, which must ascend; all others attend to all they see. Sequences longer than
    top_k are absorbed in any case, and only the chosen rows of the cache are gathered.

    With `cache_scales` fp32 [pages, page_tokens, groups] the cache holds codes, every `cache_group` of a row sharing a
    scale; `cache_rest` [pages, page_tokens, columns] then holds the end of the row as floats, such as r.
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
    chosen: OptionalIn = None
    cache_scales: OptionalIn = None
    cache_rest: OptionalIn = None
    cache_group: int = 0
    order: Order = "auto"
    piece_tokens: int = 0

    @property
    def paged(self) -> PagedCache:
        """The cache, its scales, and the shared key parts where they lie apart."""
        return PagedCache(self, self.cache, self.cache_scales, self.cache_rest, self.cache_group)

    def _context(self) -> PagedContext:
        return PagedContext(self, self.q_nope, self.tables, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent)

    def check(self, t: Shapes) -> None:
        for name in ("heads", "nope_dim", "rope_dim", "v_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        require(self.piece_tokens >= 0, self, "piece_tokens must be 0 (all at once) or more")
        tokens = t.type_of(self.q_nope).shape[:1]
        for name, dim in (("q_nope", self.nope_dim), ("q_rope", self.rope_dim), ("dst", self.v_dim)):
            held, whole = t.type_of(getattr(self, name)), (*tokens, self.heads * dim)
            require(held.shape == whole, self, f"{name} is {held}, must be {list(whole)}")
        cache, w = t.type_of(self.cache), t.type_of(self.w)
        row = cache.shape[-1] if self.cache_scales is None else self.paged.row(t)
        require(
            len(cache.shape) == 3
            and isinstance(cache.shape[1], int)
            and cache.shape[1] > 0
            and isinstance(row, int)
            and row > self.rope_dim,
            self,
            f"cache is {cache}, must be [pages, page_tokens, latent + {self.rope_dim}], page_tokens a number above 0",
        )
        whole_w = (self.heads * (self.nope_dim + self.v_dim), self.paged.row(t) - self.rope_dim)
        require(w.shape == whole_w, self, f"w is {w}, must be {list(whole_w)}")
        require_floats(self, t, self.dst, self.q_nope, self.q_rope, self.w)
        require_apart(self, self.dst, self.q_nope, self.q_rope, *self.paged.refs, self.w, self.chosen)
        if self.chosen is not None:
            require_choice(self, t, self.chosen, tokens[0])
        self._context().check(t)

    def shape(self, s: Sizes) -> LatentShape:
        """The geometry for bound extents."""
        cache = s.shape(self.cache)
        dims = (self.heads, self.nope_dim, self.rope_dim, self.v_dim, self.paged.row(s) - self.rope_dim)
        top_k = s.shape(self.chosen)[1] if self.chosen is not None else 0
        return LatentShape(*self._context().bound(s), *dims, cache[1], top_k, self.order, self.piece_tokens)

    def work(self, s: Sizes) -> Work:
        shape = self.shape(s)
        pairs = list(zip(shape.q_lens, shape.kv_lens, strict=True))
        row_bytes = self.paged.row_bytes(s)
        return Work(
            Unit.TENSOR,
            ops=sum(shape.taken_ops(*pair) for pair in pairs),
            read_bytes=bytes_of(s, self.q_nope, self.q_rope, self.w, self.chosen)
            + sum(shape.rows(*pair) for pair in pairs) * row_bytes,
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.q_nope).dtype,
            shape=shape,
        )

    def execute(self, m: Memory) -> None:
        q_nope, q_rope, w = (m.get(ref) for ref in (self.q_nope, self.q_rope, self.w))
        cache = self.paged.values(m)
        chosen = None if self.chosen is None else m.get(self.chosen)
        out = np.zeros(m.shape(self.dst), np.float32)
        for rows, context in self._context().sequences(m, cache):
            mask = causal_mask(rows.stop - rows.start, len(context), 0)
            if chosen is not None:
                mask = self._limited(mask, chosen[rows])
            out[rows] = self._sequence(q_nope[rows], q_rope[rows], context, w, mask)
        m.put(self.dst, out)

    def _limited(self, mask: Array, chosen: Array) -> Array:
        """The mask with the chosen positions alone in rows that see more than there are choices."""
        limited = mask.copy()
        for row, positions in enumerate(chosen):
            sees = int(mask[row].sum())
            if sees > len(positions):
                if not 0 <= positions[0] or not (np.diff(positions) > 0).all() or positions[-1] >= sees:
                    raise choice_error(self, row, positions, sees)
                limited[row] = False
                limited[row, positions] = True
        return limited

    def _sequence(self, q_nope: Array, q_rope: Array, context: Array, w: Array, mask: Array) -> Array:
        """[queries, heads * v_dim] of one sequence, expanded."""
        latent, shared = context[:, : -self.rope_dim], context[:, -self.rope_dim :]
        made = (latent @ w.T).reshape(len(context), self.heads, -1)
        keys, values = made[:, :, : self.nope_dim], made[:, :, self.nope_dim :]
        scores = np.einsum("qhd,khd->hqk", q_nope.reshape(-1, self.heads, self.nope_dim), keys)
        scores += np.einsum("qhd,kd->hqk", q_rope.reshape(-1, self.heads, self.rope_dim), shared)
        scores = np.where(mask, scores * np.float32(self.scale), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out: Array = np.einsum("hqk,khd->qhd", weights, values).reshape(len(q_nope), -1)
        return out


def require_choice(instruction: Instruction, t: Shapes, chosen: Ref, tokens: Dim) -> None:
    """Raise ProgramError unless `chosen` holds as many positions for every token."""
    kind = t.type_of(chosen)
    require(
        kind.dtype.name == "int32"
        and len(kind.shape) == 2
        and kind.shape[0] == tokens
        and isinstance(kind.shape[1], int)
        and kind.shape[1] > 0,
        instruction,
        f"{chosen} is {kind}, must be int32 [{tokens}, top_k], top_k a number above 0",
    )


def choice_error(instruction: Instruction, query: int, positions: Array, sees: int) -> ProgramError:
    """The error for chosen positions that a query cannot attend to."""
    return ProgramError(
        f"{instruction.mnemonic}: query {query} of a sequence sees {sees} tokens and chooses "
        f"{positions[:4].tolist()}...; positions must ascend from 0 to {sees - 1} (in: {instruction})"
    )
