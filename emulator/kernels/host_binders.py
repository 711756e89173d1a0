"""Binders of caches in host memory, HOST_LOAD_PAGES and HOST_STORE_ROWS: stored elements are copied as they are."""

from __future__ import annotations

from ...isa.errors import ProgramError
from ...isa.host_pages import HOST_LOAD_PAGES, HOST_STORE_ROWS
from ...isa.instruction import Array
from ...isa.meaning import ArrayMemory
from .binding import Thunk, integers, kernel_of, operand, out_of_range


@kernel_of(HOST_LOAD_PAGES)
def bind_host_load_pages(i: HOST_LOAD_PAGES, memory: ArrayMemory) -> Thunk:
    """Pages of device memory = pages of host memory."""
    count, page_tokens, _ = memory.shape(i.dst)
    dst, src = (operand(i, memory, ref).rows.reshape(count, -1) for ref in (i.dst, i.src))
    tables = operand(i, memory, i.tables).view
    q_lens, kv_lens = (integers(i, memory, ref) for ref in (i.q_lens, i.kv_lens))

    def thunk() -> None:
        for pages in i.pages(tables, q_lens, kv_lens, page_tokens):
            _refuse_beyond(i, pages, count)
            dst[pages] = src[pages]

    return thunk


def _refuse_beyond(i: HOST_LOAD_PAGES, pages: Array, count: int) -> None:
    bad = pages[(pages < 0) | (pages >= count)]
    if bad.size:
        raise ProgramError(f"{i.mnemonic}: page {bad[0]} is outside 0 to {count - 1} (in: {i})")


@kernel_of(HOST_STORE_ROWS)
def bind_host_store_rows(i: HOST_STORE_ROWS, memory: ArrayMemory) -> Thunk:
    """Rows of host memory = rows of device memory."""
    dst, src = operand(i, memory, i.dst), operand(i, memory, i.src)
    index = integers(i, memory, i.index)

    def thunk() -> None:
        beyond = index >= dst.count
        if beyond.any():
            raise out_of_range(i, "index", index, int(beyond.argmax()), dst.count)
        kept = index[index >= 0]
        dst.view[kept] = src.view[kept]

    return thunk
