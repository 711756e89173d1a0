"""Activities: what an executing instruction demands of the machine, and one that runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import simpy

from ...isa.errors import ConfigError
from .amounts import Amounts

if TYPE_CHECKING:
    from .division import Division
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
    shorter than a resource allows is stretched by the sharing. Many amounts are `Amounts`, few a tuple. Checked when it
    is run.
    """

    fixed_ps: int
    alone_ps: int
    amounts: Sequence[tuple[int, int]]

    @property
    def key(self) -> Hashable:
        """Equal for demands that flow alike."""
        amounts = self.amounts
        return self.alone_ps, amounts.key if isinstance(amounts, Amounts) else amounts


def flow_ps(amount: int, capacity_per_s: int) -> int:
    """Picoseconds that `amount` (cycles or bytes) takes at full capacity, rounded up so that the rate fits."""
    return -(-amount * PS_PER_S // capacity_per_s)


class Account(NamedTuple):
    """How an activity flows: its speed relative to alone, and the alone time that remained at `since_ps`."""

    speed: float
    remaining_ps: float
    since_ps: int


class Running:
    """An activity in a calendar: its times (picoseconds, -1 until they come), its end and what it moved.

    `done` succeeds with this object when the activity ends or is cancelled, and fails with the cause when it fails;
    `outcome` is then "done", "cancelled" or "failed", and None before.
    """

    __slots__ = (
        "demand", "weight", "priority", "done", "start_ps", "flow_start_ps", "end_ps", "outcome", "sequence",
        "share", "arrival_ps", "version", "due_ps", "slot", "_division", "_speed", "_remaining_ps", "_since_ps",
        "holder", "_holder_since_ps", "_held_ps", "order",
    )  # fmt: skip

    def __init__(
        self, demand: Demand, share: Share, weight: int, priority: int, sequence: int, done: simpy.Event
    ) -> None:
        self.demand, self.share = demand, share
        self.weight, self.priority, self.sequence = weight, priority, sequence
        self.order = sequence  # among those that ask for one unit at one time
        self.done = done
        self.start_ps = now_ps(done.env)
        self.flow_start_ps = self.end_ps = NOT_YET
        self.due_ps = NOT_YET  # when its fixed part ends, or its flowing part while nothing has hindered it
        self.outcome: Outcome | None = None
        self.arrival_ps = self.version = 0
        # The division keeps the account of one that has a slot there.
        self.slot = NOBODY
        self._division: Division | None = None
        self._speed = self._remaining_ps = 0.0
        self._since_ps = 0
        self.holder = NOBODY  # the unit that it waits for, since when, and for how long each resource has held it
        self._holder_since_ps = 0
        self._held_ps: dict[int, int] | None = None

    def flow(self, now: int) -> int:
        """The flowing part starts, at full speed; returns when it ends unless something hinders it."""
        self.flow_start_ps = self._since_ps = now
        self._speed, self._remaining_ps = 1.0, float(self.demand.alone_ps)
        self.due_ps = now + self.demand.alone_ps
        return self.due_ps

    def take_slot(self, division: Division, slot: int) -> None:
        """From now on the division keeps its account."""
        self._division, self.slot = division, slot

    def leave_slot(self, account: Account, held_ps: dict[int, int]) -> None:
        """From now on it keeps its account itself again, as the division leaves it; nothing holds it any more."""
        self.slot = NOBODY
        self._speed, self._remaining_ps, self._since_ps = account
        if held_ps:
            self._held_ps = add_up(self._held_ps or {}, held_ps)

    @property
    def account(self) -> Account:
        """Its speed, and what of its alone time remained at a time; good while it flows."""
        if self.slot != NOBODY:
            assert self._division is not None
            return self._division.account(self.slot)
        return Account(self._speed, self._remaining_ps, self._since_ps)

    @property
    def since_ps(self) -> int:
        """When its speed last changed."""
        return self.account.since_ps

    def settle(self, now: int) -> None:
        """It has no slot and ends before its time: keep what remains."""
        self._remaining_ps, self._since_ps = self.remaining_ps(now), now

    def remaining_ps(self, now: int) -> float:
        """What remains of its alone time."""
        speed, remaining_ps, since_ps = self.account
        return remaining_ps - speed * (now - since_ps)

    def moved(self) -> dict[int, int]:
        """Amount moved so far on each resource (by index): floor(amount * (1 - rem / D)), all of it at the end."""
        amounts = self.demand.amounts
        if self.outcome == "done":
            return dict(amounts)
        if self.flow_start_ps == NOT_YET:
            return dict.fromkeys((resource for resource, _ in amounts), 0)
        remaining_ps = self.remaining_ps(now_ps(self.done.env) if self.outcome is None else self._since_ps)
        # Exactly, for in floats a third of a thousand bytes less a rounding error is 332.
        rem, one = max(0.0, remaining_ps).as_integer_ratio()
        alone = self.demand.alone_ps * one
        return {resource: amount * (alone - rem) // alone for resource, amount in amounts}

    @property
    def held_ps(self) -> dict[int, int] | None:
        """For how long each resource (by index) has held it below its alone speed; None if none has. At its end."""
        return self._held_ps

    @property
    def held_by(self) -> int | None:
        """The resource that held it longest below its alone speed (ties: the lowest index), or None if none did.

        For one that still runs, the stretch in progress counts up to now.
        """
        held, holder, since_ps = dict(self._held_ps or {}), self.holder, self._holder_since_ps
        if self.slot != NOBODY:
            assert self._division is not None
            holder, since_ps, stretches = self._division.held(self.slot)
            held = add_up(held, stretches)
        if self.outcome is None and holder != NOBODY:
            held = add_up(held, {holder: now_ps(self.done.env) - since_ps})
        return min((-length, resource) for resource, length in held.items())[1] if any(held.values()) else None

    def hold(self, resource: int, now: int) -> None:
        """From `now` on `resource` (or NOBODY) holds this activity, which has no slot, below its alone speed."""
        before = self.holder
        if before == resource:
            return
        if before != NOBODY and now > self._holder_since_ps:
            self._held_ps = add_up(self._held_ps or {}, {before: now - self._holder_since_ps})
        self.holder, self._holder_since_ps = resource, now

    def __repr__(self) -> str:
        state = self.outcome or ("flowing" if self.flow_start_ps >= 0 else "starting")
        return f"<Running {self.sequence} {state} since {self.start_ps} ps: {self.demand}>"


def add_up(some: dict[int, int], more: dict[int, int]) -> dict[int, int]:
    """Picoseconds by resource, together."""
    return some | {resource: some.get(resource, 0) + length for resource, length in more.items()}
