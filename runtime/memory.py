"""What every card's HBM holds over a job: static buffers at load, KV pages on demand, all freed at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..emulator.hbm import Allocation, Hbm, OutOfMemory
from ..isa.instruction import elements
from ..isa.program import Binding, Buffer, Program, Space
from .kv_cache import PagePool
from .scheduler import Request, Step

KV_TAG = Space.KV.value
KV_INSTRUCTION = "scatter (writes new keys and values into their pages)"
LOAD_INSTRUCTION = "load (before the first step)"


@dataclass(frozen=True)
class Static:
    """A buffer that lives from load to the end of the job."""

    owner: str
    tag: str
    num_bytes: int


@dataclass(frozen=True)
class Footprint:
    """What one rank must hold: static buffers in load order, and the bytes of one KV page over its layers."""

    rank: int
    static: tuple[Static, ...]
    page_bytes: int


def footprint(rank: int, variants: Sequence[Program], arena_bytes: int, largest: Binding) -> Footprint:
    """The footprint of a rank whose steps run any of `variants` with extents of at most `largest`.

    Host buffers are not on the card; cache buffers are made of pages.
    """
    buffers: dict[str, Buffer] = {}
    for variant in variants:
        buffers |= variant.buffer
    static = [
        Static(buffer.name, buffer.space.value, _num_bytes(buffer, largest))
        for space in (Space.WEIGHT, Space.TABLE, Space.INPUT, Space.ACTIVATION)
        for buffer in buffers.values()
        if buffer.space is space
    ]
    static.append(Static("arena", Space.ACTIVATION.value, arena_bytes))
    page_bytes = sum(_page_bytes(buffer) for buffer in buffers.values() if buffer.space is Space.KV)
    return Footprint(rank, tuple(static), page_bytes)


def _num_bytes(buffer: Buffer, largest: Binding) -> int:
    shape = tuple(dim if isinstance(dim, int) else largest.extents[dim][0] for dim in buffer.type.shape)
    return buffer.type.dtype.bytes_of(elements(shape))


def _page_bytes(buffer: Buffer) -> int:
    """Bytes of one page of a cache buffer, whose first dimension counts pages."""
    shape = tuple(dim for dim in buffer.type.shape[1:] if isinstance(dim, int))
    return buffer.type.dtype.bytes_of(elements(shape))


def weight_bytes(program: Program) -> int:
    """Bytes of all weight buffers of a program."""
    none = Binding({}, {})
    return sum(_num_bytes(buffer, none) for buffer in program.buffers if buffer.space is Space.WEIGHT)


class JobMemory:
    """The HBM of every card through a job: the one path that runs, budgets and limits all allocate by."""

    def __init__(self, footprints: Sequence[Footprint], capacities: Mapping[int, Hbm], pool: PagePool) -> None:
        self.footprints, self.hbm, self.pool = footprints, capacities, pool
        self._static: dict[int, list[Allocation]] = {footprint.rank: [] for footprint in footprints}
        self._pages: dict[tuple[int, int], list[Allocation]] = {}

    def load(self, now_ps: int) -> None:
        """Allocate all that lives through the job; OutOfMemory names card and buffer."""
        for footprint in self.footprints:
            for static in footprint.static:
                self._static[footprint.rank] += self._allocate(
                    footprint.rank, 1, static.num_bytes, static.owner, static.tag, now_ps, LOAD_INSTRUCTION
                )

    def grow_to(self, request: Request, tokens: int, now_ps: int, step: Step | None = None) -> None:
        """Give a request the pages that `tokens` cached tokens need, on every card."""
        missing = self.pool.missing(request.index, tokens)
        if not missing:
            return
        owner = f"request {request.index}"
        for footprint in self.footprints:
            try:
                pages = self._allocate(
                    footprint.rank, missing, footprint.page_bytes, owner, KV_TAG, now_ps, KV_INSTRUCTION
                )
            except OutOfMemory as error:
                error.request = str(request.index)
                if step is not None:
                    error.step, error.step_kind = step.index, step.kind
                raise
            self._pages.setdefault((footprint.rank, request.index), []).extend(pages)
        self.pool.grow(request.index, missing)

    def begin(self, step: Step, requests: Sequence[Request], now_ps: int) -> None:
        """Allocate the pages that a step writes into."""
        for entry in step.entries:
            self.grow_to(requests[entry.request], entry.start + entry.count, now_ps, step)

    def release(self, request: Request, now_ps: int) -> None:
        """Free a request's pages on every card."""
        for footprint in self.footprints:
            for page in self._pages.pop((footprint.rank, request.index), ()):
                self.hbm[footprint.rank].free(page, now_ps)
        self.pool.release(request.index)

    def unload(self, now_ps: int) -> None:
        """Free all that lived through the job."""
        for rank, allocations in self._static.items():
            while allocations:
                self.hbm[rank].free(allocations.pop(), now_ps)

    def _allocate(
        self, rank: int, count: int, num_bytes: int, owner: str, tag: str, now_ps: int, instruction: str
    ) -> list[Allocation]:
        try:
            return self.hbm[rank].allocate_many(count, num_bytes, owner=owner, tag=tag, now_ps=now_ps)
        except OutOfMemory as error:
            error.card, error.instruction = f"card {rank}", instruction
            raise
