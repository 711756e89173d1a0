"""Caches in host memory: the pages that a step reads come over the host link, and the rows that it adds go back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .instruction import Array, Instruction, Memory, Shapes, Sizes, elements, require, require_rows, rows_cols
from .operands import ExtentName, HostIn, HostInOut, In, InOut
from .paged import PagedContext
from .work import MoveShape, Unit, Work


class HOST_LOAD_PAGES(Instruction, opcode=0x37, unit=Unit.HOST):
    """The pages of dst (device) that the step's sequences have filled before it = those of src (host memory).

    `tables` name the pages of each sequence. With `window` above 0 its oldest new token reads so many tokens, itself
    among them, and with `chunk` those from the last multiple of it on: pages that hold older ones alone stay where they
    are, and so do those of a sequence without new tokens.
    """

    dst: InOut
    src: HostIn
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    window: int
    chunk: int

    @property
    def context(self) -> PagedContext:
        """The sequences whose pages come."""
        return PagedContext(self, None, self.tables, self.q_lens, self.kv_lens, self.q_extent, self.kv_extent)

    def check(self, t: Shapes) -> None:
        to, of = t.type_of(self.dst), t.type_of(self.src)
        require(to == of, self, "dst and src must have one type")
        sized = len(to.shape) == 3 and all(isinstance(side, int) and side > 0 for side in to.shape[1:])
        require(sized, self, f"dst is {to}, must be [pages, page_tokens, row], the last two numbers above 0")
        for name in ("dst", "src"):
            require(getattr(self, name).size is None, self, f"{name} must be a whole buffer")
        for name in ("window", "chunk"):
            require(getattr(self, name) >= 0, self, f"{name}={getattr(self, name)} must be 0 or more")
        self.context.check(t)

    def span(self, queries: int, length: int, page_tokens: int) -> tuple[int, int]:
        """The columns of a sequence's table, first and last (exclusive), whose pages come."""
        before = length - queries
        oldest = max(0, before - self.window + 1) if self.window else 0
        oldest = max(oldest, before // self.chunk * self.chunk) if self.chunk else oldest
        stop = -(-before // page_tokens) if queries else 0
        return min(oldest // page_tokens, stop), stop

    def work(self, s: Sizes) -> Work:
        _, page_tokens, row = s.shape(self.dst)
        spans = (self.span(*lengths, page_tokens) for lengths in zip(*self.context.bound(s), strict=True))
        pages = sum(stop - first for first, stop in spans)
        page_bytes = s.type_of(self.dst).dtype.bytes_of(page_tokens * row)
        return Work(Unit.HOST, write_bytes=pages * page_bytes, shape=MoveShape(pages, page_bytes))

    def pages(self, tables: Array, q_lens: Array, kv_lens: Array, page_tokens: int) -> Iterator[Array]:
        """The pages that come, sequence by sequence."""
        for table, queries, length in zip(tables, q_lens.tolist(), kv_lens.tolist(), strict=True):
            first, stop = self.span(queries, length, page_tokens)
            yield table[first:stop]

    def execute(self, m: Memory) -> None:
        dst, src = m.get(self.dst).copy(), m.get(self.src)
        q_lens, kv_lens = (np.array(lengths) for lengths in self.context.lengths(m, dst.shape))
        for pages in self.pages(m.get(self.tables), q_lens, kv_lens, dst.shape[1]):
            dst[pages] = src[pages]
        m.put(self.dst, dst)


class HOST_STORE_ROWS(Instruction, opcode=0x38, unit=Unit.HOST):
    """dst[index[i]] (host memory) = src[index[i]] (device) over rows (the last dimension); negative indices skip."""

    dst: HostInOut
    src: In
    index: In

    def check(self, t: Shapes) -> None:
        to, index = t.type_of(self.dst), t.type_of(self.index)
        require(to == t.type_of(self.src), self, "dst and src must have one type")
        require(len(to.shape) >= 2, self, f"dst is {to}, must have rows")
        require(
            index.dtype.name == "int32" and len(index.shape) == 1,
            self,
            f"{self.index} is {index}, must be int32 [rows]",
        )

    def work(self, s: Sizes) -> Work:
        count, shape = elements(s.shape(self.index)), s.shape(self.src)
        row_bytes = s.type_of(self.src).dtype.bytes_of(shape[-1])
        return Work(Unit.HOST, read_bytes=count * row_bytes, shape=MoveShape(count, row_bytes))

    def execute(self, m: Memory) -> None:
        dst, src, index = m.get(self.dst).copy(), m.get(self.src), m.get(self.index)
        kept, whole = index[index >= 0], rows_cols(dst.shape)
        require_rows(self, kept, whole[0], "row")
        dst.reshape(whole)[kept] = src.reshape(whole)[kept]
        m.put(self.dst, dst)
