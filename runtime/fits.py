"""Where a job stops to fit: smallest HBM, largest batch and context, smallest tp, by the allocator path that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..emulator.hbm import OutOfMemory
from ..isa.errors import ConfigError
from .expert_room import with_proportional_room
from .layout import legal_tp
from .memory import JobMemory
from .plan import JobPlan, Lengths
from .report import Fits
from .scheduler import Request

Works = Callable[[JobPlan], bool]  # whether a job fits
Need = Callable[[JobPlan], int]  # bytes of the smallest HBM that holds it
UNBOUNDED_BYTES = 1 << 62
MOST_SEQUENCES = 1 << 16


@dataclass(frozen=True)
class MemoryPeak:
    """What a job needs of one card: the smallest HBM that holds it (reserve included), and the peak by tag."""

    rank: int
    high_water_bytes: int
    peak_bytes: int
    by_tag: dict[str, int]


def replay(plan: JobPlan, memory: JobMemory) -> None:
    """Every allocation of a job, step by step as a run does them, without time or numbers; may raise OutOfMemory.

    What the last step leaves is not freed: nothing is allocated after it.
    """
    requests = plan.requests()
    lanes = plan.lanes(requests)
    memory.load(0)
    for request in requests:
        memory.grow_to(request, request.cached_len, 0)
    finished: list[Request] = []
    while (step := lanes.next_step()) is not None or lanes.in_flight:
        if step is None:
            finished += lanes.complete(lanes.oldest, None)
            lanes.skip_steps_within_pages(plan.page_tokens)
            continue
        while finished:
            memory.release(finished.pop(0), 0)
        memory.begin(step, requests, 0)


def peaks(plan: JobPlan) -> list[MemoryPeak]:
    """The memory that a job needs on every rank, found by replaying it on HBM without end."""
    memory = plan.memory(plan.alike, UNBOUNDED_BYTES)
    try:
        replay(plan, memory)
    except OutOfMemory as error:
        raise ConfigError(
            f"{plan.graph.name} needs more than {UNBOUNDED_BYTES} bytes of a card ({error.owner} alone takes "
            f"{error.requested_bytes}); check the sizes in its config"
        ) from None
    return [
        MemoryPeak(rank, hbm.high_water_bytes, hbm.peak_bytes, dict(hbm.peak_by_tag))
        for rank, hbm in memory.hbm.items()
    ]


def fits(plan: JobPlan, capacity_bytes: int | None = None) -> bool:
    """Whether a job runs through on cards of this capacity (None: the card's own)."""
    try:
        replay(plan, plan.memory(plan.alike, capacity_bytes))
    except OutOfMemory:
        return False
    return True


def largest(works: Callable[[int], bool], most: int, guess: int) -> int:
    """The largest n in 1..most for which `works(n)` holds, 0 if none; `works` may turn from true to false once.

    The search starts at `guess` and doubles its stride, so that a good guess costs two calls.
    """
    low = high = max(1, min(guess, most))
    stride = 1
    if works(low):
        while low < most and works(high := min(most, low + stride)):
            low, stride = high, stride * 2
        if low == most:
            return most
    else:
        while (low := max(0, high - stride)) and not works(low):
            high, stride = low, stride * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def _guess(plan_of: Callable[[int], JobPlan], most: int, need: Need, step: int) -> int:
    """Where memory, were it linear in n, would reach the capacity: a start for the search, never an answer.

    Memory grows about once every `step`; a second straight line, to the end of the first, finds what is not quite so.
    """
    first, found = 1, min(1 + 8 * step, most)
    low, capacity = need(plan_of(first)), plan_of(first).card.hbm.capacity_bytes
    for _ in range(2):
        grown = need(plan_of(found)) - low
        if grown <= 0:
            return most
        found = max(1, min(most, first + max(0, capacity - low) * (found - first) // grown))
        if found in (first, most):  # no second point for a line; the search tries either first, and the most costs most
            break
    return found


def longest_of(sequences: Sequence[Lengths]) -> Lengths:
    """The sequence that holds most tokens at its end."""
    return max(sequences, key=lambda s: (s.cached_len + s.prompt_len + s.max_new_tokens, s.prompt_len))


def largest_batch(plan: JobPlan, works: Works = fits, need: Need | None = None) -> int:
    """Most sequences like the job's longest that fit at once on its cards; 0 when not one does."""
    one = longest_of(plan.sequences)

    def with_batch(count: int) -> JobPlan:
        return plan.with_lengths([one] * count)

    guess = _guess(with_batch, MOST_SEQUENCES, need or smallest_hbm, plan.layout.dp)
    return largest(lambda count: works(with_batch(count)), MOST_SEQUENCES, guess)


def largest_context(plan: JobPlan, works: Works = fits, need: Need | None = None) -> int:
    """Most tokens a sequence may hold, as many sequences as the job has, growing its prompt (or what is cached).

    Counts cached, prompt and generated tokens; at most the model's positions; 0 when not even the shortest fits.
    """
    longest = longest_of(plan.sequences)
    rest = longest.max_new_tokens - bool(longest.prompt_len)
    limit = plan.graph.max_position_embeddings

    def with_own(own: int) -> JobPlan:
        if longest.prompt_len and not longest.cached_len:
            grown = replace(longest, prompt_len=own)
        elif longest.prompt_len:
            grown = replace(
                longest, cached_len=max(0, own - longest.prompt_len), prompt_len=min(own, longest.prompt_len)
            )
        else:
            grown = replace(longest, cached_len=own)
        return plan.with_lengths([grown] * len(plan.sequences))

    guess = _guess(with_own, limit - rest, need or smallest_hbm, plan.page_tokens)
    found = largest(lambda own: works(with_own(own)), limit - rest, guess)
    return found + rest if found else 0


def smallest_hbm(plan: JobPlan) -> int:
    """Bytes of the smallest HBM (reserve included) with which every card holds the job."""
    return max(peak.high_water_bytes for peak in peaks(plan))


def smallest_tp(plan: JobPlan) -> int | None:
    """The smallest legal tensor-parallel degree with which the job fits on such cards; None when none does."""
    layout = plan.layout
    for degree in legal_tp(plan.graph, layout.ep, layout.holders, layout.given_etp):
        candidate = replace(plan, layout=layout.with_tp(degree))
        try:
            if fits(candidate):
                return degree
        except ConfigError:
            continue
    return None


def what_fits(plan: JobPlan) -> Fits:
    """What would fit, each changing one thing of the job."""
    other = with_proportional_room(plan)
    return Fits(
        largest_batch=largest_batch(other) or None,
        largest_context=largest_context(other) or None,
        smallest_hbm_bytes=smallest_hbm(plan),
        smallest_tp=smallest_tp(other),
    )
