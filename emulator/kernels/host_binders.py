"""Binders of caches in host memory, HOST_LOAD_PAGES and HOST_STORE_ROWS: stored elements are copied as they are."""

from __future__ import annotations

from ...isa.host_pages import HOST_LOAD_PAGES, HOST_STORE_ROWS
from ...isa.instruction import require_rows
from ...isa.meaning import ArrayMemory
from .binding import Thunk, integers, kernel_of, operand


@kernel_of(HOST_LOAD_PAGES)
def bind_host_load_pages(i: HOST_LOAD_PAGES, memory: ArrayMemory) -> Thunk:
    """Pages of device memory = pages of host memory."""
    count, page_tokens, _ = memory.shape(i.dst)
    dst, src = (operand(i, memory, ref).rows.reshape(count, -1) for ref in (i.dst, i.src))
    tables = operand(i, memory, i.tables).view
    q_lens, kv_lens = (integers(i, memory, ref) for ref in (i.q_lens, i.kv_lens))

    def thunk() -> None:
        for pages in i.pages(tables, q_lens, kv_lens, page_tokens):
            require_rows(i, pages, count, "page")
            dst[pages] = src[pages]

    return thunk


@kernel_of(HOST_STORE_ROWS)
def bind_host_store_rows(i: HOST_STORE_ROWS, memory: ArrayMemory) -> Thunk:
    """Rows of host memory = rows of device memory."""
    dst, src = operand(i, memory, i.dst), operand(i, memory, i.src)
    index = integers(i, memory, i.index)

    def thunk() -> None:
        kept = index[index >= 0]
        require_rows(i, kept, dst.count, "row")
        dst.view[kept] = src.view[kept]

    return thunk
