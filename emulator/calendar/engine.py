"""The SimPy calendar: activities flow, share, slow down and end, in integer picoseconds.

At a timestamp everything that ends, signals or issues runs first; then one event of low priority divides the resources
anew, once (a round); an activity that thereby ends at the same timestamp starts another round.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush

import simpy
from simpy.events import NORMAL, EventPriority

from ...isa.errors import ConfigError
from .activity import NOBODY, NOT_YET, Demand, Outcome, Running, now_ps
from .division import Division
from .resource_columns import Resources
from .resources import COEFFICIENT_BITS, ROOM_LIMIT, Ints, Resource
from .shares import Share, share_of

AFTER_ALL = EventPriority(2)  # after everything SimPy schedules at a timestamp
KEPT_SHARES = 1 << 13  # shares remembered by demand, since programs repeat themselves
MAX_PRIORITY = 1 << 31


def int_env() -> simpy.Environment:
    """A SimPy environment whose clock starts at the integer 0, in picoseconds."""
    return simpy.Environment(initial_time=0)


class Alarm(simpy.Event):
    """A call of `callback` at a time, in a priority; the calendar's only entries in SimPy's queue besides `done`."""

    def __init__(
        self, env: simpy.Environment, at_ps: int, callback: Callable[[simpy.Event], None], priority: EventPriority
    ):
        super().__init__(env)
        self.at_ps = at_ps
        self._ok, self._value = True, None  # triggered from birth, as simpy.Timeout is
        self.callbacks.append(callback)
        env.schedule(self, priority, at_ps - now_ps(env))


def too_many(resource: Resource) -> str:
    """What to say when the members of a resource want more of it than an int64 counts."""
    times = resource.load // (resource.nominal << COEFFICIENT_BITS)
    return (
        f"resource {resource.name!r} serves {resource.members} activities at once that want {times} times its "
        "capacity together, more than can be counted (about 2,048 times); run fewer at a time, give activities the "
        "time their amounts take alone, or fold cards that are equal"
    )


class Calendar:
    """Activities on shared resources, in a SimPy environment whose clock counts integer picoseconds.

    An activity so slow that its end lies beyond 2^62 ps (53 days) stands still until its speed changes.
    """

    def __init__(self, env: simpy.Environment) -> None:
        now_ps(env)
        self.env = env
        self.resources = Resources()
        self._shares: dict[Hashable, Share] = {}
        self._sequence = self._in_flight = 0
        # (time, sequence, version, activity): the next thing that befalls an activity, unless its version moved on.
        self._agenda: list[tuple[int, int, int, Running]] = []
        self._alarms: list[
            Alarm
        ] = []  # pending ones, the earliest last; each was the head of the agenda when it was set
        self._waiting: list[Running] = []  # for a unit that serves one at a time
        self._dirty: list[Resource] = []
        self._round_due = False
        self._division = Division(env)

    # resources

    def add_resource(self, name: str, capacity_per_s: int | None, kind: str, exclusive: bool = False) -> int:
        """Add a resource and return its index.

        `capacity_per_s` is in cycles (kind "unit") or bytes ("hbm", "link", "host") a second; None is unbounded. An
        exclusive unit serves one activity at a time, in order of arrival. Raises ConfigError.
        """
        resource = self.resources.add(name, capacity_per_s, kind, exclusive)
        self._division.add_resource(resource)
        return resource.index

    def add_resources(self, name_of: Callable[[int], str], capacities_per_s: Ints, kind: str) -> range:
        """Add bounded ones of one kind and return their indices; names by place, and made when asked for."""
        added = self.resources.add_many(name_of, capacities_per_s, kind)
        for index in added:
            self._division.add_resource(self.resources[index])
        return added

    def set_capacity(self, resource: int, capacity_per_s: int) -> None:
        """Change a capacity from now on, 0 for dead; what flows is slowed or sped up at once, without a stall."""
        if not 0 <= resource < len(self.resources):
            raise ConfigError(f"no resource has index {resource}; there are {len(self.resources)}")
        changed = self.resources[resource]
        changed.set_capacity(capacity_per_s)
        self._division.set_room(changed)
        self._touch(changed)

    # activities

    def run(self, demand: Demand, *, weight: int = 1, priority: int = 0, order: int | None = None) -> Running:
        """Start an activity now: its fixed part, then its flowing part.

        On a resource that is short, activities of the highest priority are served first, and those of one priority in
        proportion to their weights. Of those that come for an exclusive unit at one time, in one priority, the lowest
        `order` is served first (None: the one that was started first). Raises ConfigError for a demand that is not well
        formed or when a resource has more members than it can count.
        """
        now, fixed_ps = now_ps(self.env), demand.fixed_ps
        if type(fixed_ps) is not int or fixed_ps < 0:
            raise ConfigError(f"fixed_ps={fixed_ps!r} must be an int, 0 or more")
        if type(weight) is not int or weight < 1:
            raise ConfigError(f"weight={weight!r} must be an int of at least 1")
        if type(priority) is not int or not -MAX_PRIORITY <= priority < MAX_PRIORITY:
            raise ConfigError(f"priority={priority!r} must be an int of 32 bits")
        running = Running(demand, self._share(demand), weight, priority, self._sequence, simpy.Event(self.env))
        if order is not None:
            running.order = order
        self._sequence += 1
        self._in_flight += 1
        if fixed_ps:
            self._expect(running, now + fixed_ps)
            self._set_alarm()
        else:
            self._arrive(running)
        return running

    def cancel(self, running: Running, failed: BaseException | None = None) -> None:
        """End an activity now, with what it moved; its `done` fails with `failed` if there is such a cause.

        One that has ended, or whose last picosecond is now, stays as it ended. As always in SimPy, a failure that
        nobody waits for stops the simulation, unless `running.done.defused` is set.
        """
        if running.outcome is not None:
            return
        now, flows = now_ps(self.env), running.flow_start_ps != NOT_YET
        due_ps = running.due_ps if running.slot == NOBODY else self._division.due_ps(running.slot)
        if due_ps == now and (flows or not running.demand.alone_ps):
            self._finish(running, "done", None)
        else:
            self._finish(running, "cancelled" if failed is None else "failed", failed)
            running.settle(now)
        self._set_alarm()

    @property
    def idle(self) -> bool:
        """True if no activity is in flight."""
        return not self._in_flight

    def stalled(self) -> Iterator[tuple[Running, int]]:
        """Activities that stand still, and the resource (index) each waits for: dead, taken, or given to others."""
        for running in self._waiting:
            yield running, running.holder
        yield from self._division.standing()

    # from arrival to end

    def _share(self, demand: Demand) -> Share:
        key = demand.key
        share = self._shares.get(key)
        if share is None:
            share = share_of(demand, self.resources)
            if len(self._shares) >= KEPT_SHARES:
                self._shares.clear()
            self._shares[key] = share
        return share

    def _arrive(self, running: Running) -> None:
        """The fixed part is over."""
        if running.demand.alone_ps == 0:
            running.flow_start_ps = now_ps(self.env)
            self._finish(running, "done", None)
        elif running.share.exclusive:
            # Who gets the unit is decided in the round: the order of arrival within a timestamp is an accident.
            running.arrival_ps = now_ps(self.env)
            running.version += 1
            self._waiting.append(running)
            self._request_round()
        else:
            self._flow(running)

    def _flow(self, running: Running) -> None:
        """Start the flowing part at full speed; if a resource gets short by that, the round corrects it."""
        for resource, _, load in running.share.uses:
            resource.members += 1
            resource.load += load
            room = resource.room
            if resource.coupled or resource.load > room:  # type: ignore[operator]  # a use is of a bounded resource
                self._touch(resource)
                if resource.load >= ROOM_LIMIT:
                    raise ConfigError(too_many(resource))
        self._expect(running, running.flow(now_ps(self.env)))
        self._division.fresh[running] = None
        if not self._round_due:
            self._set_alarm()

    def _finish(self, running: Running, outcome: Outcome, cause: BaseException | None) -> None:
        now = now_ps(self.env)
        running.outcome, running.end_ps = outcome, now
        running.version += 1
        running.hold(NOBODY, now)
        if running.flow_start_ps != NOT_YET and running.demand.alone_ps:
            self._division.drop(running)
            for resource, _, load in running.share.uses:
                resource.members -= 1
                resource.load -= load
                if resource.coupled:
                    self._touch(resource)
            for unit in running.share.exclusive:
                unit.owner = None
        elif running in self._waiting:
            self._waiting.remove(running)
        if self._waiting:
            self._request_round()
        self._in_flight -= 1
        if cause is None:
            running.done.succeed(running)
        else:
            running.done.fail(cause)  # type: ignore[arg-type]  # SimPy says Exception and takes any

    # the agenda

    def _expect(self, running: Running, at_ps: int) -> None:
        """Whatever was expected of this activity is void; the next thing befalls it at this time."""
        running.version += 1
        running.due_ps = at_ps
        heappush(self._agenda, (at_ps, running.sequence, running.version, running))

    def _set_alarm(self) -> None:
        """See that SimPy wakes us at the head of the agenda, or not at all if it is empty."""
        next_ps, running = self._next()
        if running is None:
            self._drop_alarms()
        elif not self._alarms or next_ps < self._alarms[-1].at_ps:
            self._alarms.append(Alarm(self.env, next_ps, self._on_alarm, NORMAL))

    def _next(self) -> tuple[int, Running | None]:
        """The time at which something befalls an activity next, and which; at one time the one that started first."""
        agenda = self._agenda
        while agenda and agenda[0][2] != agenda[0][3].version:
            heappop(agenda)
        expected = self._division.expected()
        if agenda and agenda[0][:2] < expected[:2]:
            return agenda[0][0], agenda[0][3]
        return expected.at_ps, expected.running

    def _drop_alarms(self) -> None:
        """Take alarms that mean nothing any more out of SimPy's queue, lest an idle clock run on to them."""
        if self._alarms:
            stale = {id(alarm) for alarm in self._alarms}
            queue = self.env._queue
            queue[:] = [entry for entry in queue if id(entry[3]) not in stale]
            heapify(queue)
            self._alarms.clear()

    def _on_alarm(self, alarm: simpy.Event) -> None:
        due = self._alarms.pop()
        assert due is alarm
        now = now_ps(self.env)
        while True:
            next_ps, running = self._next()
            if running is None or next_ps > now:
                break
            if running.flow_start_ps == NOT_YET:
                running.version += 1
                self._arrive(running)
            else:
                self._finish(running, "done", None)
        self._set_alarm()

    # the round

    def _touch(self, resource: Resource) -> None:
        """This resource's members may have to share it otherwise than before."""
        if not resource.dirty:
            resource.dirty = True
            self._dirty.append(resource)
            self._request_round()

    def _request_round(self) -> None:
        if not self._round_due:
            self._round_due = True
            Alarm(self.env, now_ps(self.env), self._round, AFTER_ALL)

    def _round(self, _: simpy.Event) -> None:
        if self._waiting:
            self._grant()
        self._round_due = False
        dirty, self._dirty = self._dirty, []
        self._division.divide(dirty)
        self._set_alarm()

    def _grant(self) -> None:
        """Give units that serve one at a time to those who wait, by arrival, then priority, then order."""
        waiting = sorted(self._waiting, key=lambda r: (r.arrival_ps, -r.priority, r.order))
        self._waiting = []
        claimed: set[Resource] = set()
        for running in waiting:
            units = running.share.exclusive
            taken = next((unit for unit in units if unit.owner is not None or unit in claimed), None)
            if taken is not None:
                claimed.update(units)
                running.hold(taken.index, now_ps(self.env))
                self._waiting.append(running)
                continue
            running.hold(NOBODY, now_ps(self.env))
            for unit in units:
                unit.owner = running
            self._flow(running)
