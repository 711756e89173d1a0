"""Binders of attention over parts of the context: PARTIAL_ATTENTION, PARTIAL_LATENT_ATTENTION and MERGE_PARTS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...isa.errors import ProgramError
from ...isa.instruction import Array
from ...isa.meaning import ArrayMemory
from ...isa.partial import MERGE_PARTS, PARTIAL_ATTENTION, PARTIAL_LATENT_ATTENTION
from ...isa.share import NOTHING, Seen
from ...isa.work import LatentShape
from . import partial
from .binding import Operand, Thunk, floats, integers, kernel_of, operand
from .latent_binders import first_cuts
from .threads import over_rows

Partial = PARTIAL_ATTENTION | PARTIAL_LATENT_ATTENTION
NO_PART = np.empty((0, 0), np.float32)


class _Share:
    """The share and the integers about it, as kernels read them."""

    def __init__(self, i: Partial, memory: ArrayMemory, cache: Operand, tokens: int) -> None:
        if i.tables.size is not None or i.visible.size is not None:
            raise ProgramError(f"{i.mnemonic}: tables and visible must be whole buffers, not columns (in: {i})")
        self.instruction, self.tokens = i, tokens
        self.pages, self.page_tokens = cache.shape[0], cache.shape[1] if len(cache.shape) == 3 else 0
        self.tables, self.visible = operand(i, memory, i.tables).rows, operand(i, memory, i.visible).rows
        self.q_lens, self.kv_lens = integers(i, memory, i.q_lens), integers(i, memory, i.kv_lens)
        self.seen = np.zeros((len(self.q_lens), 2), np.int64)

    def refresh(self) -> None:
        """Check what memory says, and count what the queries see; ProgramError for what cannot be."""
        wrong, sequence, at = partial.check_share(
            self.q_lens, self.kv_lens, self.tables, self.visible, self.pages, self.page_tokens, self.tokens
        )
        if wrong:
            raise self._error(wrong, sequence, at)
        partial.seen_of(self.q_lens, self.visible, self.seen)

    def _error(self, wrong: int, sequence: int, at: int) -> ProgramError:
        i = self.instruction
        if wrong == partial.TOKENS:
            return ProgramError(f"{i.mnemonic}: q_lens add up to {at} tokens, q has {self.tokens} rows (in: {i})")
        what = (
            f"{i.mnemonic}: sequence {sequence} has q_len {self.q_lens[sequence]} and kv_len {self.kv_lens[sequence]}"
        )
        if wrong == partial.LENGTHS:
            return ProgramError(f"{what}; both must be 0 or more (in: {i})")
        if wrong == partial.TABLE_SHORT:
            return ProgramError(f"{what}, more than the {self.tables.shape[1]} pages of its table hold (in: {i})")
        if wrong == partial.RANGE:
            return ProgramError(f"{what}; visible[{at}] is {self.visible[at].tolist()} (in: {i})")
        return ProgramError(
            f"{what}; tables[{sequence}, {at}] is {self.tables[sequence, at]} of {self.pages} pages or rows (in: {i})"
        )


def _before(i: Partial, memory: ArrayMemory) -> tuple[Array, int]:
    if i.before is None:
        return NO_PART, 0
    bound = floats(i, memory, i.before)[0]
    return bound.rows, bound.start


def _thunk(kernel: Callable[..., int], arguments: tuple[object, ...], share: _Share, heads: int, dims: int) -> Thunk:
    def run(first: int, last: int) -> int:
        return int(kernel(*arguments, first, last))

    def thunk() -> None:
        share.refresh()
        over_rows(run, len(share.q_lens) * heads, int(share.seen[:, 1].sum()) * heads * dims // 8)

    return thunk


@kernel_of(PARTIAL_ATTENTION)
def bind_partial_attention(i: PARTIAL_ATTENTION, memory: ArrayMemory) -> Thunk:
    """The part of attention that a share gives."""
    dst, q, cache = floats(i, memory, i.dst, i.q, i.cache)
    share = _Share(i, memory, cache, q.count)
    places = (dst.rows, dst.start, q.rows, q.start, *_before(i, memory), cache.rows, cache.start, share.page_tokens)
    dims = (i.heads, i.kv_heads, i.qk_dim, i.v_dim)
    numbers = (np.float32(i.scale), np.float32(i.soft_cap), np.float32(NOTHING))
    arguments = (*places, share.tables, share.q_lens, share.visible, *dims, *numbers)
    return _thunk(partial.partial_attention, arguments, share, i.heads, i.qk_dim + i.v_dim)


@kernel_of(PARTIAL_LATENT_ATTENTION)
def bind_partial_latent_attention(i: PARTIAL_LATENT_ATTENTION, memory: ArrayMemory) -> Thunk:
    """The part of latent attention that a share gives."""
    dst, own, turned, cache, w = floats(i, memory, i.dst, i.q_nope, i.q_rope, i.cache, i.w)
    share = _Share(i, memory, cache, own.count)
    dims = (i.heads, i.nope_dim, i.rope_dim, i.v_dim, w.cols)
    expands, cuts = np.empty(len(share.q_lens), np.bool_), np.empty(len(share.q_lens), np.int64)
    places = (dst.rows, dst.start, own.rows, own.start, turned.rows, turned.start, *_before(i, memory))
    held = (cache.rows, cache.start, share.page_tokens, w.rows, w.start, share.tables, share.q_lens, share.visible)
    arguments = (*places, *held, expands, cuts, i.piece_tokens, *dims, np.float32(i.scale), np.float32(NOTHING))
    run = _thunk(partial.partial_latent, arguments, share, i.heads, 2 * w.cols)

    def thunk() -> None:
        share.refresh()
        found = [Seen(queries, pairs, 0) for queries, pairs in share.seen.tolist()]
        lengths = tuple(one.queries for one in found), tuple(one.causal_length for one in found)
        shape = LatentShape(*lengths, *dims, order=i.order)
        chosen = [pair[0] > 0 and shape.expands(*pair) for pair in zip(*lengths, strict=True)]
        expands[:], cuts[:] = chosen, list(first_cuts(lengths[1], chosen, i.piece_tokens))
        run()

    return thunk


@kernel_of(MERGE_PARTS)
def bind_merge_parts(i: MERGE_PARTS, memory: ArrayMemory) -> Thunk:
    """dst = the parts of every token, weighed by their LSE."""
    i.work(memory)  # which checks the rows
    dst, parts = floats(i, memory, i.dst, i.parts)
    sinks = np.empty(0, np.float32) if i.sinks is None else floats(i, memory, i.sinks)[0].flat
    places = (dst.rows, dst.start, parts.rows, parts.start, sinks, i.heads, dst.cols // i.heads)
    arguments = (*places, i.count, dst.count)

    def run(first: int, last: int) -> int:
        return int(partial.merge_parts(*arguments, first, last))

    def thunk() -> None:
        over_rows(run, dst.count, 4 * parts.count * parts.cols)

    return thunk
