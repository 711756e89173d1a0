"""Room: what a layout cannot do without on its fullest card, told from one card that holds the whole model.

Bounds to search by: nothing of them is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..models.blocks import DeltaNet, LatentAttention
from .fits import MOST_SEQUENCES, longest_of, with_batch
from .job import MOST_TOKENS
from .layout import Layout
from .plan import JobPlan


@dataclass(frozen=True)
class Room:
    """Bytes of one card that holds the whole model, and the job that they are of.

    Whatever a layout deals out lies on its fullest card with at least the mean share; what it copies lies there whole.
    """

    capacity_bytes: int
    sharded_bytes: int
    replicated_bytes: int
    expert_bytes: int
    arena_bytes: int  # without a sequence
    step_bytes: int  # of the arena, for each sequence of a step
    prompt_bytes: float  # of the arena, for each further token of a sequence whose prompt grows and is not cut
    page_bytes: int
    state_bytes: int
    kv_heads: int  # over which the pages can be dealt; 1: every card keeps them whole
    page_tokens: int
    sequence_tokens: int
    batch: int
    lanes: int
    positions: int

    def _left(self, layout: Layout) -> float:
        """What weights leave free."""
        weights = self.replicated_bytes + self.sharded_bytes / layout.tp + self.expert_bytes / (layout.ep * layout.etp)
        return self.capacity_bytes - weights / layout.pp - self.arena_bytes / (layout.tp * layout.cp)

    def _token_bytes(self, layout: Layout) -> float:
        return self.page_bytes / (self.page_tokens * min(layout.tp, self.kv_heads) * layout.pp * layout.cp)

    def _kept_bytes(self, layout: Layout) -> float:
        """What a sequence takes whatever its length."""
        state = self.state_bytes / (layout.tp * layout.pp * layout.cp)
        return state + self.step_bytes / (layout.tp * layout.cp * self.lanes)

    def need_bytes(self, layout: Layout) -> float:
        """The job needs at least so much of a card."""
        own = -(-self.batch // layout.dp)
        each = self.sequence_tokens * self._token_bytes(layout) + self._kept_bytes(layout)
        return self.capacity_bytes - self._left(layout) + own * each

    def batch_of(self, layout: Layout) -> int:
        """At most so many sequences fit."""
        each = self.sequence_tokens * self._token_bytes(layout) + self._kept_bytes(layout)
        own = self._left(layout) / each if each else MOST_SEQUENCES
        return min(MOST_SEQUENCES, max(0, int(own)) * layout.dp)

    def context_of(self, layout: Layout) -> int:
        """At most so many tokens of each sequence fit."""
        own = -(-self.batch // layout.dp)
        state = self.state_bytes / (layout.tp * layout.pp * layout.cp)
        step = self.prompt_bytes / (layout.tp * layout.cp * self.lanes)
        token, left = self._token_bytes(layout) + step, self._left(layout) / own - state
        tokens = left / token if token else MOST_TOKENS
        return min(self.positions, max(0, int(tokens)))


def room_of(plan: JobPlan) -> Room:
    """The room of a job's model and sequences, whatever its layout."""
    alone = replace(plan, layout=Layout(), placements={}, routing=None)
    alone = with_batch(alone, len(plan.sequences))
    buckets = dict.fromkeys(("sharded", "replicated", "expert"), 0)
    for kind, num_bytes in alone.weight_bytes(0).items():
        if (bucket := kind.partition(" ")[0]) in buckets:  # the others live in host memory
            buckets[bucket] += num_bytes
    one, two = (_arena_bytes(with_batch(alone, count)) for count in (1, 2))
    held, hbm, longest = alone.footprint(0), alone.card.hbm, longest_of(plan.sequences)
    mixers = [layer.attention for layer in plan.graph.layers if not isinstance(layer.attention, DeltaNet)]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    grows = longest.prompt_len and not longest.cached_len and plan.chunk_tokens is None
    return Room(
        capacity_bytes=hbm.capacity_bytes - hbm.reserved_bytes,
        sharded_bytes=buckets["sharded"],
        replicated_bytes=buckets["replicated"],
        expert_bytes=buckets["expert"],
        arena_bytes=max(0, 2 * one - two),
        step_bytes=max(0, two - one),
        prompt_bytes=max(0, two - one) / longest.prompt_len if grows else 0,
        page_bytes=held.page_bytes,
        state_bytes=held.state_bytes,
        kv_heads=1 if latent else max((mixer.num_kv_heads for mixer in mixers), default=1),
        page_tokens=plan.page_tokens,
        sequence_tokens=longest.cached_len + longest.prompt_len + longest.max_new_tokens - bool(longest.prompt_len),
        batch=len(plan.sequences),
        lanes=plan.micro_batches,
        positions=plan.graph.max_position_embeddings,
    )


def _arena_bytes(alone: JobPlan) -> int:
    return next(held.num_bytes for held in alone.footprint(0).static if held.owner == "arena")
