"""Where a job stops to fit: smallest HBM, largest batch and context, smallest tp, by the allocator path that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
MOST_LINES = 5


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


def largest(works: Callable[[int], bool], most: int, guess: int, step: int = 1) -> int:
    """The largest n in 1..most for which `works(n)` holds, 0 if none; `works` may turn from true to false once.

    The search starts at `guess` and doubles its stride, so that a good guess costs two calls. Multiples of `step` are
    where `works` is likely to hold for the last time.
    """
    low = high = max(1, min(guess, most))
    stride = 1
    if works(low):
        while low < most and works(high := min(most, low + stride)):
            low, stride = high, max(step, stride * 2)
        if low == most:
            return most
    else:
        while (low := max(0, high - stride)) and not works(low):
            high, stride = low, max(step, stride * 2)
    while high - low > 1:
        middle = _middle(low, high, step)
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def _middle(low: int, high: int, step: int) -> int:
    """The number between two to ask for: a multiple of the step, or what comes after one."""
    middle = (low + high) // 2
    multiple = max(middle // step, low // step + 1) * step
    if multiple < high:
        return multiple
    return middle if low % step else low + 1


def _guess(plan_of: Callable[[int], JobPlan], most: int, need: Need, step: int) -> int:
    """Where memory, were it made of straight lines in n, would reach the capacity: a start, never an answer.

    Memory grows about once every `step`; each line goes through the two points last found, while they are apart.
    """
    before, at = 1, min(1 + 8 * step, most)
    before_bytes, at_bytes = need(plan_of(before)), need(plan_of(at))
    capacity = plan_of(at).card.hbm.capacity_bytes
    for _ in range(MOST_LINES):
        grown = (at_bytes - before_bytes) * (1 if at > before else -1)
        if grown <= 0:
            return at  # the search doubles its stride from there, and the most costs most
        found = max(1, min(most, at + (capacity - at_bytes) * abs(at - before) // grown))
        if found in (1, most) or abs(found - at) <= 2 * step:  # the search tries it first, and the most costs most
            return found
        before, before_bytes, at = at, at_bytes, found
        at_bytes = need(plan_of(at))
    return at


def longest_of(sequences: Sequence[Lengths]) -> Lengths:
    """The sequence that holds most tokens at its end."""
    return max(sequences, key=lambda s: (s.cached_len + s.prompt_len + s.max_new_tokens, s.prompt_len))


def with_batch(plan: JobPlan, count: int) -> JobPlan:
    """The job with so many sequences like its longest."""
    return plan.with_lengths([longest_of(plan.sequences)] * count)


def with_context(plan: JobPlan, tokens: int) -> JobPlan:
    """The job with its longest sequence, as often as it has sequences, grown or shrunk to so many tokens at its end.

    Cached, prompt and generated tokens count; its prompt grows, or what is cached where something is.
    """
    longest = longest_of(plan.sequences)
    own = tokens - _generated(longest)
    if not longest.prompt_len:
        changed = replace(longest, cached_len=own)
    elif not longest.cached_len:
        changed = replace(longest, prompt_len=own)
    else:
        prompt = min(own, longest.prompt_len)
        changed = replace(longest, cached_len=own - prompt, prompt_len=prompt)
    return plan.with_lengths([changed] * len(plan.sequences))


def context_of(plan: JobPlan) -> int:
    """Tokens of the job's longest sequence at its end."""
    longest = longest_of(plan.sequences)
    return longest.cached_len + longest.prompt_len + _generated(longest)


def shortest_context(plan: JobPlan) -> int:
    """Tokens of a sequence of the job that has but one token of its own."""
    return _generated(longest_of(plan.sequences)) + 1


def _generated(lengths: Lengths) -> int:
    """Generated tokens that count to the context: the first one after a prompt takes its last place."""
    return lengths.max_new_tokens - bool(lengths.prompt_len)


def largest_batch(plan: JobPlan, works: Works = fits, need: Need | None = None) -> int:
    """Most sequences like the job's longest that fit at once on its cards; 0 when not one does."""
    dp = plan.layout.dp
    guess = _guess(partial(with_batch, plan), MOST_SEQUENCES, need or smallest_hbm, dp)
    guess -= guess % dp if guess > dp else 0  # replicas break when one more sequence comes to the first of them
    return largest(lambda count: works(with_batch(plan, count)), MOST_SEQUENCES, guess, dp)


def largest_context(plan: JobPlan, works: Works = fits, need: Need | None = None) -> int:
    """Most tokens a sequence may hold, as many sequences as the job has, growing its prompt (or what is cached).

    Counts cached, prompt and generated tokens; at most the model's positions; 0 when not even the shortest fits.
    """
    rest = _generated(longest_of(plan.sequences))
    most = plan.graph.max_position_embeddings - rest

    def with_own(own: int) -> JobPlan:
        return with_context(plan, own + rest)

    guess = _guess(with_own, most, need or smallest_hbm, plan.page_tokens)
    found = largest(lambda own: works(with_own(own)), most, guess)
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
