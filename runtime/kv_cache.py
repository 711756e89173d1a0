"""The paged KV cache: which page of the pool holds which tokens of which request, and which row of states is whose."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from .lowering.reach import Reach

PAGE_TOKENS = 16


@dataclass
class PagePool:
    """Logical pages of `page_tokens` tokens, handed out on demand, lowest number first.

    Every card of a holder has its own layers' and heads' bytes of each page, so one table serves them all. A request
    also has one slot, the row of its fixed-size states in layers that have such. `limited` are the pools of layers that
    look back only so far: their leading pages are let go, and stand in the tables as page 0, which is not read there.
    """

    page_tokens: int = PAGE_TOKENS
    tables: dict[int, list[int]] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    limited: dict[Reach, PagePool] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _made: int = 0
    _free_slots: list[int] = field(default_factory=list)
    _let_go: dict[int, int] = field(default_factory=dict)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold this many tokens of one sequence."""
        return -(-tokens // self.page_tokens)

    def missing(self, request: int, tokens: int) -> int:
        """Pages that a request lacks to hold `tokens` tokens."""
        return max(0, self.pages_for(tokens) - len(self.tables.get(request, ())))

    def grow(self, request: int, pages: int) -> None:
        """Give a request `pages` more pages."""
        table, reused = self.tables.setdefault(request, []), min(pages, len(self._free))
        table += [heapq.heappop(self._free) for _ in range(reused)]
        made = self._made
        self._made += pages - reused
        table += range(made, self._made)

    def let_go(self, request: int, tokens: int) -> int:
        """Take back the pages whose tokens all stand before position `tokens`; returns how many were held.

        Of a request without pages as yet, these are never given.
        """
        first, table = tokens // self.page_tokens, self.tables.setdefault(request, [])
        before, held = self._let_go.get(request, 0), len(table)
        table += [0] * (first - held)
        for index in range(before, min(first, held)):
            heapq.heappush(self._free, table[index])
            table[index] = 0
        self._let_go[request] = max(before, first)
        return max(0, min(first, held) - before)

    def lend(self, request: int, first: int | None) -> None:
        """Let the pages that were let go stand in the table as those from `first` on, or again as page 0 (None)."""
        for index in range(self._let_go.get(request, 0)):
            self.tables[request][index] = 0 if first is None else first + index

    def take_slot(self, request: int) -> None:
        """Give a request the lowest free slot."""
        lowest = heapq.heappop(self._free_slots) if self._free_slots else len(self.slots)
        self.slots[request] = lowest

    def release(self, request: int) -> int:
        """Take a request's pages and slot back; returns how many pages."""
        if request in self.slots:
            heapq.heappush(self._free_slots, self.slots.pop(request))
        table = self.tables.pop(request, [])[self._let_go.pop(request, 0) :]
        if len(table) > len(self._free) // 8:
            self._free += table
            heapq.heapify(self._free)
        else:
            for page in table:
                heapq.heappush(self._free, page)
        for pool in self.limited.values():
            pool.release(request)
        return len(table)

    def slot(self, request: int, position: int) -> int:
        """The row of the pool that holds a position of a request."""
        page, row = divmod(position, self.page_tokens)
        return self.tables[request][page] * self.page_tokens + row


class PagePools:
    """A pool for each holder of a layout: sets of cards that hold the same tokens."""

    def __init__(self, holders: int, page_tokens: int = PAGE_TOKENS, limited: Sequence[Reach] = ()) -> None:
        self._pools = tuple(
            PagePool(page_tokens, limited={reach: PagePool(page_tokens) for reach in limited}) for _ in range(holders)
        )

    def __getitem__(self, holder: int) -> PagePool:
        return self._pools[holder]
