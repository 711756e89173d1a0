"""The KV cache of one job by every policy: what each reserves while the steps run, and what of it holds tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .fits import UNBOUNDED_BYTES, fits
from .kv_policy import KV_POLICIES
from .memory import KV_TAG
from .plan import JobPlan
from .report import KvUse
from .scheduler import Request, Step


class TimedStep(NamedTuple):
    """A step, and when it began and ended."""

    step: Step
    start_ps: int
    end_ps: int


class Reserved(NamedTuple):
    """Bytes that a card's cache takes at one time, and those of them that hold tokens."""

    held_bytes: int
    used_bytes: int


def untimed(plan: JobPlan) -> list[TimedStep]:
    """The steps of a job of which only the order is known, one after the other and each as long as the others."""
    lanes, steps = plan.lanes(plan.requests()), list[TimedStep]()
    while (step := lanes.next_step()) is not None or lanes.in_flight:
        if step is None:
            lanes.complete(lanes.oldest, None)
        else:
            steps.append(TimedStep(step, len(steps), len(steps) + 1))
    return steps


def kv_uses(plan: JobPlan, steps: Sequence[TimedStep]) -> tuple[KvUse, ...]:
    """What each policy reserves over these steps of a job, and whether all of the job fits by it."""
    return tuple(_use(replace(plan, kv_policy=replace(plan.kv_policy, name=name)), steps) for name in KV_POLICIES)


class _Cache:
    """The cache of a job on memory without end, step by step, and what of it holds tokens."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan, self.requests = plan, plan.requests()
        self.memory = plan.memory(plan.alike_of_holder, UNBOUNDED_BYTES)
        self._tokens: dict[tuple[int, int], int] = {}  # of each request, and holder
        self._used: Counter[int] = Counter()  # tokens of each holder
        for request in self.requests:
            self.memory.grow_to(request, request.cached_len, 0)
            self._hold(request, request.cached_len)

    def begin(self, step: Step, now_ps: int) -> None:
        """Take the memory that a step writes into."""
        self.memory.begin(step, self.requests, now_ps)
        for entry in step.entries:
            self._hold(self.requests[entry.request], entry.start + entry.count)

    def release(self, request: Request, now_ps: int) -> None:
        """Give back all of a request."""
        self.memory.release(request, now_ps)
        self._hold(request, 0)

    def _hold(self, request: Request, tokens: int) -> None:
        for share, holder in enumerate(self.plan.layout.holders_of(request.index)):
            local = self.plan.local_tokens(request.index, share, tokens)
            self._used[holder] += local - self._tokens.get((request.index, holder), 0)
            self._tokens[request.index, holder] = local

    def reserved(self) -> dict[int, Reserved]:
        """What every card reserves now."""
        found = {}
        for footprint in self.memory.footprints:
            tokens = self._used[self.plan.layout.holder_of(footprint.rank)]
            held = self.memory.hbm[footprint.rank].bytes_by_tag.get(KV_TAG, 0)
            found[footprint.rank] = Reserved(held, tokens * footprint.page_bytes // self.plan.page_tokens)
        return found


def _use(plan: JobPlan, steps: Sequence[TimedStep]) -> KvUse:
    """What one policy reserves: the cache followed from event to event, releases before what begins as they end."""
    cache = _Cache(plan)
    last = {entry.request: timed.end_ps for timed in steps for entry in timed.step.entries}
    ends = [(end_ps, 0, request, None) for request, end_ps in last.items()]
    events = sorted([*ends, *((timed.start_ps, 1, index, timed.step) for index, timed in enumerate(steps))], key=_when)
    now, before_ps, waste_ps = cache.reserved(), 0, Counter[int]()
    peak = dict(now)
    for now_ps, _, request, step in events:
        for rank, reserved in now.items():
            waste_ps[rank] += (reserved.held_bytes - reserved.used_bytes) * (now_ps - before_ps)
        if step is None:
            cache.release(cache.requests[request], now_ps)
        else:
            cache.begin(step, now_ps)
        now, before_ps = cache.reserved(), now_ps
        peak |= {rank: reserved for rank, reserved in now.items() if reserved.held_bytes > peak[rank].held_bytes}
    card = max(peak, key=lambda rank: (peak[rank].held_bytes, -rank))
    return KvUse(
        policy=plan.kv_policy.name,
        card=card,
        peak_bytes=peak[card].held_bytes,
        used_bytes=peak[card].used_bytes,
        mean_waste_bytes=waste_ps[card] // before_ps if before_ps else 0,
        allocations=cache.memory.kv_allocations[card],
        fits=fits(plan),
    )


def _when(event: tuple[int, int, int, Step | None]) -> tuple[int, int, int]:
    return event[:3]
