"""The binder of LATENT_ATTENTION."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...isa.errors import ProgramError
from ...isa.latent import LATENT_ATTENTION, choice_error
from ...isa.meaning import ArrayMemory
from ...isa.work import LatentShape
from .attention import check_attention
from .binding import Operand, Thunk, floats, integers, kernel_of, operand
from .coded_cache import cache_operand
from .latent import CHOICE_BLOCK, CHOSEN, chosen_attention, latent_attention
from .tensor_binders import attention_error
from .threads import over_rows

UNCUT = 1 << 62  # tokens


def first_cuts(lengths: Sequence[int], expands: Sequence[bool], piece_tokens: int) -> Iterator[int]:
    """For each sequence how many of its tokens fill the piece that they begin in: expanded ones stand in a row.

    More than any sequence has where there are no pieces.
    """
    taken = 0
    for length, is_expanded in zip(lengths, expands, strict=True):
        yield piece_tokens - taken % piece_tokens if piece_tokens else UNCUT
        taken += length if is_expanded else 0


@kernel_of(LATENT_ATTENTION)
def bind_latent_attention(i: LATENT_ATTENTION, memory: ArrayMemory) -> Thunk:
    """Softmax attention of each sequence's new tokens over the latents of its pages."""
    dst, own, turned, w = floats(i, memory, i.dst, i.q_nope, i.q_rope, i.w)
    if i.tables.size is not None:
        raise ProgramError(f"{i.mnemonic}: tables must be a whole buffer, not columns of one (in: {i})")
    tables = operand(i, memory, i.tables).rows
    q_lens, kv_lens = integers(i, memory, i.q_lens), integers(i, memory, i.kv_lens)
    cache, decode = cache_operand(i.paged, memory, tables, kv_lens)
    pages, page_tokens = cache.shape[0], cache.shape[1]
    ways, cuts = np.empty(len(q_lens), np.uint8), np.empty(len(q_lens), np.int64)
    places = (dst.rows, dst.start, own.rows, own.start, turned.rows, turned.start, cache.rows, cache.start, page_tokens)
    dims = (i.heads, i.nope_dim, i.rope_dim, i.v_dim, w.cols)
    arguments = (
        *places,
        w.rows,
        w.start,
        tables,
        q_lens,
        kv_lens,
        ways,
        cuts,
        i.piece_tokens,
        *dims,
        np.float32(i.scale),
    )
    units = len(q_lens) * i.heads
    chosen = None if i.chosen is None else operand(i, memory, i.chosen)
    top_k = 0 if chosen is None else chosen.cols
    choice = () if chosen is None else (chosen.rows, chosen.start, top_k)

    def run(first: int, last: int) -> int:
        return int(latent_attention(*arguments, first, last))

    def run_chosen(first: int, last: int) -> int:
        return int(chosen_attention(*arguments, *choice, first, last))

    def thunk() -> None:
        wrong, sequence, at = check_attention(q_lens, kv_lens, tables, pages, page_tokens, own.count)
        if wrong:
            raise attention_error(i, wrong, sequence, at, q_lens, kv_lens, tables, pages, own.count)
        if decode is not None:
            decode()
        pairs = list(zip(map(int, q_lens), map(int, kv_lens), strict=True))
        shape = LatentShape((), (), *dims, page_tokens, top_k, i.order)
        expands = [pair[0] > 0 and shape.expands(*pair) for pair in pairs]
        ways[:] = [CHOSEN if shape.chooses(pair[1]) else found for pair, found in zip(pairs, expands, strict=True)]
        cuts[:] = list(first_cuts([length for _, length in pairs], expands, i.piece_tokens))
        operations = sum(shape.taken_ops(*pair) for pair in pairs) // 16
        if not (ways == CHOSEN).all():
            over_rows(run, units, operations)
        blocks = sum(-(-pair[0] // CHOICE_BLOCK) for pair, way in zip(pairs, ways, strict=True) if way == CHOSEN)
        if blocks and (token := over_rows(run_chosen, blocks, operations)) >= 0:
            raise _unseen(i, token, pairs, chosen)

    return thunk


def _unseen(i: LATENT_ATTENTION, token: int, pairs: list[tuple[int, int]], chosen: Operand | None) -> ProgramError:
    """The error for a token whose chosen positions do not ascend within what it sees."""
    assert chosen is not None
    query = token
    for queries, length in pairs:
        if query < queries:
            return choice_error(i, query, chosen.view[token], length - queries + query + 1)
        query -= queries
    raise AssertionError(f"token {token} is of no sequence")
