"""Lanes: a job's requests dealt into micro-batches, whose steps are in flight together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from .scheduler import Request, Scheduler, Step


class Lanes:
    """Schedulers of `count` micro-batches, of whose steps at most as many are in flight, in the order they began.

    Request i is of replica i % replicas and of micro-batch i // replicas % count. A lane goes on at once after a step
    that picks no token, so that the chunks of a prompt follow one another through the stages, and else when the tokens
    are known.
    """

    def __init__(
        self, requests: Sequence[Request], chunk_tokens: int | None, replicas: int = 1, count: int = 1
    ) -> None:
        shares: list[list[Request]] = [[] for _ in range(count)]
        for request in requests:
            shares[request.index // replicas % count].append(request)
        self.schedulers = tuple(Scheduler(share, chunk_tokens, replicas) for share in shares)
        self._in_flight: deque[tuple[int, Step]] = deque()
        self._awaited: set[int] = set()
        self._turn = self._steps = 0

    @property
    def in_flight(self) -> int:
        """Steps that have begun and are not complete."""
        return len(self._in_flight)

    def next_step(self) -> Step | None:
        """A step that may begin now, its index the number of those before it; None where none may, or all is done."""
        count = len(self.schedulers)
        if self.in_flight == count:
            return None
        for lane in ((self._turn + offset) % count for offset in range(count)):
            step = None if lane in self._awaited else self.schedulers[lane].next_step()
            if step is not None:
                return self._begin(lane, step)
        return None

    def _begin(self, lane: int, step: Step) -> Step:
        if any(entry.emits for entry in step.entries):
            self._awaited.add(lane)
        else:
            self.schedulers[lane].complete(step, None)  # there is nothing to wait for
        step = replace(step, index=self._steps, lane=lane)
        self._turn, self._steps = lane + 1, self._steps + 1
        self._in_flight.append((lane, step))
        return step

    def complete(self, step: Step, picked: Sequence[int] | None) -> list[Request]:
        """Account the step that began first, as `Scheduler.complete` does; returns the requests that finished."""
        lane, oldest = self._in_flight.popleft()
        assert step is oldest, f"step {step.index} ended before step {oldest.index}, which began before it"
        if not any(entry.emits for entry in step.entries):
            return []
        self._awaited.discard(lane)
        return self.schedulers[lane].complete(step, picked)

    @property
    def oldest(self) -> Step:
        """The step in flight that began first, which ends first."""
        return self._in_flight[0][1]

    def skip_steps_within_pages(self, page_tokens: int) -> None:
        """As `Scheduler.skip_steps_within_pages`, where one step is in flight at a time."""
        if len(self.schedulers) == 1 and not self._in_flight:
            self._steps += self.schedulers[0].skip_steps_within_pages(page_tokens)
