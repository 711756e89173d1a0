"""Activities: what an executing instruction demands of the machine, and one that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import simpy

from ...isa.errors import ConfigError

if TYPE_CHECKING:
    from .shares import Share

PS_PER_S = 10**12
NOT_YET = -1  # a time that has not come
NOBODY = -1  # the index of no resource

Outcome = Literal["done", "cancelled", "failed"]


def now_ps(env: simpy.Environment) -> int:
    """The environment's time; ConfigError if a delay that was not an int has spoiled it."""
    now = env.now
    if type(now) is not int:
        raise ConfigError(f"the environment's clock stands at {now!r}; start at an int and delay by ints, in ps")
    return now


@dataclass(frozen=True, slots=True)
class Demand:
    """What an activity asks: a fixed part, then a flowing part whose amounts advance together.

    `fixed_ps` holds the activity's queue and no rate. `alone_ps` is what the flowing part lasts when nothing
    else runs (0: there is none). `amounts` are (resource index, cycles or bytes), each at least 1. An `alone_ps`
    shorter than a resource allows is stretched by the sharing. Checked when it is run.
    """

    fixed_ps: int
    alone_ps: int
    amounts: tuple[tuple[int, int], ...]


def flow_ps(amount: int, capacity_per_s: int) -> int:
    """Picoseconds that `amount` (cycles or bytes) takes at full capacity, rounded up so that the rate fits."""
    return -(-amount * PS_PER_S // capacity_per_s)


class Running:
    """An activity in a calendar: its times (picoseconds, -1 until they come), its end and what it moved.

    `done` succeeds with this object when the activity ends or is cancelled, and fails with the cause when it fails;
    `outcome` is then "done", "cancelled" or "failed", and None before.
    """

    __slots__ = (
        "demand", "weight", "priority", "done", "start_ps", "flow_start_ps", "end_ps", "outcome",
        "sequence", "share", "speed", "remaining_ps", "since_ps", "arrival_ps", "version", "visited",
        "due_ps", "holder", "holder_since_ps", "held_ps",
    )  # fmt: skip

    def __init__(
        self, demand: Demand, share: Share, weight: int, priority: int, sequence: int, done: simpy.Event
    ) -> None:
        self.demand, self.share = demand, share
        self.weight, self.priority, self.sequence = weight, priority, sequence
        self.done = done
        self.start_ps = now_ps(done.env)
        self.flow_start_ps = self.end_ps = NOT_YET
        self.due_ps = NOT_YET  # when its fixed or its flowing part ends, as things stand
        self.outcome: Outcome | None = None
        self.speed = 0.0  # relative to alone
        self.remaining_ps = 0.0  # of alone time, as it stood at since_ps
        self.since_ps = self.arrival_ps = 0
        self.version = self.visited = 0
        self.holder = NOBODY  # the resource that holds it now, since when, and for how long each has before
        self.holder_since_ps = 0
        self.held_ps: dict[int, int] | None = None

    def moved(self) -> dict[int, int]:
        """Amount moved so far on each resource (by index): floor(amount * (1 - rem / D)), all of it at the end."""
        amounts = self.demand.amounts
        if self.outcome == "done":
            return dict(amounts)
        if self.flow_start_ps == NOT_YET:
            return dict.fromkeys((resource for resource, _ in amounts), 0)
        remaining_ps = self.remaining_ps
        if self.outcome is None:
            remaining_ps -= self.speed * (now_ps(self.done.env) - self.since_ps)
        # Exactly, for in floats a third of a thousand bytes less a rounding error is 332.
        rem, one = max(0.0, remaining_ps).as_integer_ratio()
        alone = self.demand.alone_ps * one
        return {resource: amount * (alone - rem) // alone for resource, amount in amounts}

    @property
    def held_by(self) -> int | None:
        """The resource that held it longest below its alone speed (ties: the lowest index), or None if none did.

        For one that still runs, the stretch in progress counts up to now.
        """
        held = dict(self.held_ps or {})
        if self.outcome is None and self.holder != NOBODY:
            stretch = now_ps(self.done.env) - self.holder_since_ps
            held[self.holder] = held.get(self.holder, 0) + stretch
        return min((-length, resource) for resource, length in held.items())[1] if any(held.values()) else None

    def hold(self, resource: int, now: int) -> None:
        """From `now` on `resource` (or NOBODY) holds this activity below its alone speed."""
        before = self.holder
        if before == resource:
            return
        if before != NOBODY and now > self.holder_since_ps:
            if self.held_ps is None:
                self.held_ps = {}
            self.held_ps[before] = self.held_ps.get(before, 0) + now - self.holder_since_ps
        self.holder, self.holder_since_ps = resource, now

    def __repr__(self) -> str:
        state = self.outcome or ("flowing" if self.flow_start_ps >= 0 else "starting")
        return f"<Running {self.sequence} {state} since {self.start_ps} ps: {self.demand}>"
