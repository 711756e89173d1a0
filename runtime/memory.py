"""What every card's HBM holds over a job: static buffers at load, KV pages on demand, all freed at the end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..emulator.hbm import Allocation, Hbm, OutOfMemory
from ..isa.instruction import elements
from ..isa.program import Binding, Buffer, Program, Space
from .kv_cache import PagePool, PagePools
from .kv_policy import KvPolicy
from .layout import Layout
from .lowering.reach import WHOLE, Reach
from .lowering.stage import STATES
from .scheduler import Request, Step

# What stands from load to the end of a job, in load order.
DEVICE_SPACES = (Space.WEIGHT, Space.SCALE, Space.TABLE, Space.INPUT, Space.ACTIVATION)
KV_TAG = Space.KV.value
WORKSPACE_TAG = "workspace"  # what stands between the products of one instruction, while it runs
STATE_TAG = Space.STATE.value
STATE_INSTRUCTION = "gated_delta (keeps a sequence's states)"
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
    """What one rank must hold: static buffers in load order, and over its layers a KV page and a sequence's states.

    `page_bytes` are those of the pages that hold all tokens, `limited` those of each extent of others; `caches` counts
    the buffers of the former by the bytes of a page.
    """

    rank: int
    static: tuple[Static, ...]
    page_bytes: int
    state_bytes: int = 0
    limited: Mapping[str, int] = field(default_factory=dict)
    caches: Mapping[int, int] = field(default_factory=dict)

    def bytes_of_page(self, reach: Reach) -> int:
        """Bytes of a page over the layers of a reach."""
        return self.page_bytes if reach.is_whole else self.limited.get(reach.pages, 0)


def footprint(
    rank: int, variants: Sequence[Program], arena_bytes: int, largest: Binding, workspace_bytes: int = 0
) -> Footprint:
    """The footprint of a rank whose steps run any of `variants` with extents of at most `largest`.

    Host buffers are not on the card; cache buffers are made of pages, state buffers of a row a sequence.
    """
    buffers: dict[str, Buffer] = {}
    for variant in variants:
        buffers |= variant.buffer
    static = [
        Static(buffer.name, buffer.space.value, bytes_of_buffer(buffer, largest))
        for space in DEVICE_SPACES
        for buffer in buffers.values()
        if buffer.space is space
    ]
    static.append(Static("arena", Space.ACTIVATION.value, arena_bytes))
    if workspace_bytes:
        static.append(Static("workspace of latent attention", WORKSPACE_TAG, workspace_bytes))
    pages: Counter[str] = Counter()
    caches: Counter[int] = Counter()
    for buffer in buffers.values():
        if buffer.space in (Space.KV, Space.STATE):
            pages[str(buffer.type.shape[0])] += page_bytes_of(buffer)
            caches[page_bytes_of(buffer)] += buffer.type.shape[0] == WHOLE.pages
    page_bytes, state_bytes = pages.pop(WHOLE.pages, 0), pages.pop(STATES, 0)
    return Footprint(rank, tuple(static), page_bytes, state_bytes, dict(pages), +caches)


def bytes_of_buffer(buffer: Buffer, largest: Binding) -> int:
    """Bytes of a buffer whose symbolic sides are those of a binding."""
    shape = tuple(dim if isinstance(dim, int) else largest.extents[dim][0] for dim in buffer.type.shape)
    return buffer.type.dtype.bytes_of(elements(shape))


def page_bytes_of(buffer: Buffer) -> int:
    """Bytes of one page of a cache buffer, or one row of a state buffer: the first dimension counts them."""
    shape = tuple(dim for dim in buffer.type.shape[1:] if isinstance(dim, int))
    return buffer.type.dtype.bytes_of(elements(shape))


def _pools(pool: PagePool) -> list[tuple[Reach, PagePool]]:
    """The pool of all tokens, and those of layers that look back only so far."""
    return [(WHOLE, pool), *pool.limited.items()]


def weight_bytes(program: Program) -> int:
    """Bytes of all weight buffers of a program, and of their scales."""
    none, spaces = Binding({}, {}), (Space.WEIGHT, Space.SCALE)
    return sum(bytes_of_buffer(buffer, none) for buffer in program.buffers if buffer.space in spaces)


class Holding(Protocol):
    """Who holds what of a request."""

    @property
    def layout(self) -> Layout:
        """How cards are grouped."""

    def local_tokens(self, request: int, share: int, tokens: int) -> int:
        """How many of the first `tokens` tokens of a request a share of its context holds."""

    def keeps_states(self, request: int, share: int) -> bool:
        """Whether a share is the one that keeps the states of a request."""


class JobMemory:
    """The HBM of every card through a job: the one path that runs, budgets and limits all allocate by.

    Cards whose memory is the very same throughout share one: `footprints` are of one card of each such class, and
    `hbm` may name it under others too.
    """

    def __init__(
        self,
        footprints: Sequence[Footprint],
        capacities: Mapping[int, Hbm],
        pool: PagePools,
        holding: Holding,
        policy: KvPolicy,
    ) -> None:
        self.footprints, self.hbm, self.pool, self.holding = footprints, capacities, pool, holding
        self.policy, self.kv_allocations = policy, Counter[int]()
        self.layout = layout = holding.layout
        self._of_holder: dict[int, list[Footprint]] = {holder: [] for holder in range(layout.holders)}
        for footprint in footprints:
            self._of_holder[layout.holder_of(footprint.rank)].append(footprint)
        self._static: dict[int, list[Allocation]] = {footprint.rank: [] for footprint in footprints}
        self._pages: dict[tuple[int, int, Reach], deque[Allocation]] = {}
        self._has_states = any(footprint.state_bytes for footprint in footprints)
        self._replicas = frozenset(holder // layout.cp for holder, own in self._of_holder.items() if own)

    def load(self, now_ps: int) -> None:
        """Allocate all that lives through the job; OutOfMemory names card and buffer."""
        for footprint in self.footprints:
            rank, wanted = footprint.rank, [(one.owner, one.tag, one.num_bytes) for one in footprint.static]
            try:
                self._static[rank] = self.hbm[rank].allocate_each(wanted, now_ps)
            except OutOfMemory as error:
                error.card, error.instruction = f"card {rank}", LOAD_INSTRUCTION
                raise

    def _is_followed(self, request: int) -> bool:
        """Whether some card of a request is one of the footprints'."""
        return request % self.layout.dp in self._replicas

    def grow_to(self, request: Request, tokens: int, now_ps: int, step: Step | None = None) -> None:
        """Give a request the pages that `tokens` cached tokens need, and its states with the first, on its cards.

        Before its first step (None) pages that no later token reads are not given.
        """
        if not self._is_followed(request.index):
            return
        if step is None:
            self._let_go(request, tokens, now_ps)
        for share, holder in enumerate(self.layout.holders_of(request.index)):
            pool, own = self.pool[holder], self._of_holder[holder]
            keeps = self._has_states and tokens and self.holding.keeps_states(request.index, share)
            if keeps and request.index not in pool.slots:
                each = {footprint.rank: (1, footprint.state_bytes) for footprint in own}
                self._give(request, each, STATE_TAG, STATE_INSTRUCTION, now_ps, step)
                pool.take_slot(request.index)
            wanted = self.policy.tokens_for(tokens, request.most_kv_tokens)
            local = self.holding.local_tokens(request.index, share, wanted)
            for reach, pages in _pools(pool):
                missing, held = pages.missing(request.index, local), len(pages.tables.get(request.index, ()))
                if missing:
                    each = {
                        part.rank: self.policy.blocks(part.caches, part.bytes_of_page(reach), held, held + missing)
                        for part in own
                    }
                    self._give(request, each, KV_TAG, KV_INSTRUCTION, now_ps, step, reach)
                    for rank, (count, _) in each.items():
                        self.kv_allocations[rank] += count
                    pages.grow(request.index, missing)

    def _let_go(self, request: Request, position: int, now_ps: int) -> None:
        """Free the pages that no token at `position` or after it reads."""
        for holder in self.layout.holders_of(request.index):
            for reach, pool in self.pool[holder].limited.items():
                freed = pool.let_go(request.index, reach.oldest(position))
                for footprint in self._of_holder[holder] if freed else ():
                    held = self._pages[footprint.rank, request.index, reach]
                    self._free_first(self.hbm[footprint.rank], held, freed, now_ps)

    def _free_first(self, hbm: Hbm, held: deque[Allocation], pages: int, now_ps: int) -> None:
        """Free the oldest pages of a request on one card."""
        while pages:
            run = held.popleft()
            count = min(pages, run.pieces)
            pages -= count
            if (left := hbm.free(run, now_ps, count)) is not None:
                held.appendleft(left)

    def _give(
        self,
        request: Request,
        blocks: Mapping[int, tuple[int, int]],
        tag: str,
        instruction: str,
        now_ps: int,
        step: Step | None,
        reach: Reach = WHOLE,
    ) -> None:
        """Allocate (count, bytes each) for a request on each of those cards."""
        for rank, (count, size) in blocks.items():
            try:
                made = self._allocate(rank, count, size, f"request {request.index}", tag, now_ps, instruction)
            except OutOfMemory as error:
                error.request = str(request.index)
                if step is not None:
                    error.step, error.step_kind = step.index, step.kind
                raise
            self._pages.setdefault((rank, request.index, reach), deque()).extend(made)

    def begin(self, step: Step, requests: Sequence[Request], now_ps: int) -> None:
        """Free the pages that the step reads no more, and allocate those that it writes into."""
        entries = [entry for entry in step.entries if self._is_followed(entry.request)]
        for entry in entries:
            self._let_go(requests[entry.request], entry.start, now_ps)
        for entry in entries:
            self.grow_to(requests[entry.request], entry.start + entry.count, now_ps, step)

    def release(self, request: Request, now_ps: int) -> None:
        """Free a request's pages and states on all its cards."""
        if not self._is_followed(request.index):
            return
        for holder in self.layout.holders_of(request.index):
            for footprint in self._of_holder[holder]:
                for reach, _ in _pools(self.pool[holder]):
                    for page in self._pages.pop((footprint.rank, request.index, reach), ()):
                        self.hbm[footprint.rank].free(page, now_ps)
            self.pool[holder].release(request.index)

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
