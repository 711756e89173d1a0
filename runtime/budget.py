"""The budget of a job before anything runs: closed forms of what every kind of card holds, and their inversion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..isa.program import Binding, Buffer, Program
from .kv_cache import PagePool
from .lowering.arena import plan_arena
from .lowering.reach import Reach
from .memory import DEVICE_SPACES, Footprint, bytes_of_buffer
from .plan import GRANULE_BYTES, JobPlan, Variant


def rounded(num_bytes: int) -> int:
    """Bytes as the allocator gives them: in whole granules."""
    return -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES


@dataclass(frozen=True)
class Load:
    """What a holder's sequences keep at their ends: `pages` counts them by their pages, `states` keep states.

    `limited` are the pages of each reach that lets pages go, at their most.
    """

    pages: tuple[tuple[int, int], ...]  # (pages, sequences that hold so many)
    states: int
    limited: tuple[tuple[Reach, int], ...] = ()

    @property
    def all_pages(self) -> int:
        """Pages over all sequences."""
        return sum(pages * count for pages, count in self.pages)


@dataclass(frozen=True)
class Profile:
    """Ranks whose programs hold buffers of the same sizes; `rank` is the lowest of them."""

    rank: int
    variants: Mapping[Variant, Program]
    footprint: Footprint

    @property
    def programs(self) -> tuple[Program, ...]:
        """Those that compute logits: without the head there is less of everything."""
        return tuple(self.variants.values())

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        """The buffers that live from load to the end, by name."""
        return {
            name: buffer
            for program in self.programs
            for name, buffer in program.buffer.items()
            if buffer.space in DEVICE_SPACES
        }

    @cached_property
    def _growing(self) -> list[Buffer]:
        """Those whose sizes follow from the job's lengths."""
        return [b for b in self.buffers.values() if not all(isinstance(side, int) for side in b.type.shape)]

    @cached_property
    def _fixed_bytes(self) -> int:
        none = Binding({}, {})
        growing = {buffer.name for buffer in self._growing}
        return sum(rounded(bytes_of_buffer(b, none)) for name, b in self.buffers.items() if name not in growing)

    def workspace_bytes(self, plan: JobPlan) -> int:
        """What latent attention needs beside its operands."""
        return plan.latent_steps.workspace_bytes(self.variants)

    def static_bytes(self, plan: JobPlan) -> int:
        """Bytes that stand from load to the end, in granules."""
        arena = max(plan_arena(program, plan.largest).num_bytes for program in self.programs)
        grown = [arena, self.workspace_bytes(plan), *(bytes_of_buffer(b, plan.largest) for b in self._growing)]
        return self._fixed_bytes + sum(map(rounded, grown))

    def cache_bytes(self, plan: JobPlan, load: Load) -> int:
        """Bytes of pages and states of a holder's sequences, in granules."""
        own = self.footprint
        total = load.states * rounded(own.state_bytes)
        for pages, count in load.pages:
            blocks, size = plan.kv_policy.blocks(own.caches, own.page_bytes, 0, pages)
            total += count * blocks * rounded(size)
        return total + sum(pages * rounded(own.bytes_of_page(reach)) for reach, pages in load.limited)


class Budget:
    """The closed forms of a job's memory: profiles of its ranks, what its holders keep, and what follows."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        made = {twin: self._profile(twin) for twin in dict.fromkeys(plan.classes)}
        first: dict[tuple[object, ...], Profile] = {}
        same = {twin: first.setdefault(key, profile) for twin, (key, profile) in made.items()}
        self.profile_of = [same[twin] for twin in plan.classes]
        holders = [plan.layout.holder_of(rank) for rank in range(plan.layout.cards)]
        self._places = set(zip([profile.rank for profile in self.profile_of], holders, strict=True))
        self._others: dict[tuple[Variant, ...], Budget] = {}
        self._profiles = {profile.rank: profile for profile in self.profile_of}

    def _profile(self, twin: int) -> tuple[tuple[object, ...], Profile]:
        """The profile of a rank, and what tells it from others: its stage, and the sizes of its buffers and locals."""
        variants = {variant: self.plan.built(twin, variant).program for variant in self.plan.variants if variant.head}
        programs = variants.values()
        held = tuple((buffer.name, buffer.type, buffer.space) for program in programs for buffer in program.buffers)
        blocks = tuple(tuple(block.locals for block in program.blocks) for program in programs)
        return (self.plan.layout.stage_of(twin), held, blocks), Profile(twin, variants, self.plan.footprint(twin))

    def need_bytes(self, plan: JobPlan) -> int:
        """Bytes of HBM, the reserve included, that the fullest card needs for this job or one of other lengths."""
        if plan.variants != self.plan.variants:  # other lengths, and so other programs
            if plan.variants not in self._others:
                self._others[plan.variants] = Budget(plan)
            return self._others[plan.variants].need_bytes(plan)
        holders = loads(plan)
        static = {rank: profile.static_bytes(plan) for rank, profile in self._profiles.items()}
        most = max(
            static[rank] + self._profiles[rank].cache_bytes(plan, holders[holder]) for rank, holder in self._places
        )
        return rounded(plan.card.hbm.reserved_bytes) + most

    def fits(self, plan: JobPlan) -> bool:
        """Whether the forms stay within the card's capacity."""
        return self.need_bytes(plan) <= plan.card.hbm.capacity_bytes


def loads(plan: JobPlan) -> list[Load]:
    """What every holder's sequences keep at their ends."""
    pool, layout = PagePool(plan.page_tokens), plan.layout
    pages: list[Counter[int]] = [Counter() for _ in range(layout.holders)]
    states, limited = [0] * layout.holders, [Counter[Reach]() for _ in range(layout.holders)]
    for request in plan.asked:
        new_tokens = max(1, min(request.prompt_len, plan.chunk_tokens or request.prompt_len))
        for share, holder in enumerate(layout.holders_of(request.index)):
            local = plan.local_tokens(request.index, share, request.most_kv_tokens)
            pages[holder][pool.pages_for(local)] += 1
            states[holder] += plan.keeps_states(request.index, share)
            for reach in plan.limited_reaches:
                limited[holder][reach] += reach.most_pages(request.most_kv_tokens, new_tokens, plan.page_tokens)
    return [
        Load(tuple(sorted(own.items())), states[holder], tuple(sorted(limited[holder].items())))
        for holder, own in enumerate(pages)
    ]


def differences(plan: JobPlan) -> list[str]:
    """By name, why a run's peaks may stay below the closed forms; nothing where they are equal to the byte."""
    said = []
    crowded = -(-len(plan.sequences) // plan.layout.dp) > 1
    if crowded and (len(set(plan.sequences)) > 1 or plan.chunk_tokens or plan.micro_batches > 1):
        said.append("sequences end in different steps, and may give their memory back before others are longest")
    if plan.limited_reaches:
        said.append("pages that windows let go are counted at the most that any place of a step's tokens needs")
    return said
