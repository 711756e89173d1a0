"""Semaphores of one submission on one card: counters that only grow, and those who wait for them."""

from __future__ import annotations

import simpy


class Semaphores:
    """Monotone counters by index. A wait compares and never consumes, so one that is satisfied costs no event.

    Readers compare `values[index]` themselves and ask for an event only where it is too low.
    """

    __slots__ = ("values", "waiters", "_env", "_cause")

    def __init__(self, env: simpy.Environment, count: int) -> None:
        self._env = env
        self._cause: Exception | None = None
        self.values = [0] * count
        self.waiters: list[list[tuple[int, simpy.Event]]] = [[] for _ in range(count)]

    def reaches(self, index: int, need: int) -> simpy.Event:
        """An event for the moment at which the counter, now lower, stands at `need` or more."""
        event = simpy.Event(self._env)
        if self._cause is None:
            self.waiters[index].append((need, event))
        else:
            event.fail(self._cause)
        return event

    def add(self, index: int, count: int) -> None:
        """Raise a counter, and wake those whose wait that satisfies."""
        self.values[index] += count
        if self.waiters[index]:
            self.wake(index)

    def wake(self, index: int) -> None:
        """Wake those whose wait a counter satisfies."""
        value, waiting = self.values[index], self.waiters[index]
        if len(waiting) == 1:
            if waiting[0][0] <= value:
                waiting.pop()[1].succeed()
            return
        self.waiters[index] = [waiter for waiter in waiting if waiter[0] > value]
        for need, event in waiting:
            if need <= value:
                event.succeed()

    def poison(self, cause: Exception) -> None:
        """Fail with `cause` every wait, and those to come."""
        self._cause = cause
        for waiting in self.waiters:
            for _, event in waiting:
                event.fail(cause)
            waiting.clear()
