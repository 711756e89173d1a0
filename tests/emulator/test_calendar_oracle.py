"""The calendar against an oracle written otherwise: plain integers and fractions, everything solved anew each time."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.calendar.activity import Demand
from siltwin.emulator.calendar.engine import Calendar, int_env
from siltwin.emulator.calendar.solver import Members, solve

# The oracle: rules 1 and 2 in the words they are stated in


@dataclass(eq=False)
class Member:
    bound: int
    uses: dict[str, int]  # coefficient by resource
    weight: int = 1
    priority: int = 0


def oracle_solve(members: list[Member], rooms: dict[str, int]) -> dict[Member, int]:
    """Progressive filling; the smallest bound first, then whoever touches a resource that can give no more."""
    rooms, rates = dict(rooms), {}
    for priority in sorted({m.priority for m in members}, reverse=True):
        unfixed = [m for m in members if m.priority == priority]
        while unfixed:
            fix, level = oracle_step(unfixed, rooms)
            for m in fix:
                rates[m] = min(m.bound, level * m.weight) if level is not None else m.bound
                for r in m.uses:
                    rooms[r] -= m.uses[r] * rates[m]
            unfixed = [m for m in unfixed if m not in fix]
    return rates


def oracle_step(unfixed: list[Member], rooms: dict[str, int]) -> tuple[list[Member], int | None]:
    """Who is fixed next, and at what level (None: at the bound)."""
    levels = {}
    for r in rooms:
        users = [m for m in unfixed if r in m.uses]
        if sum(m.uses[r] * m.bound for m in users) > rooms[r]:  # else it couples nothing and is left out
            levels[r] = rooms[r] // sum(m.uses[r] * m.weight for m in users)
    smallest = min(Fraction(m.bound, m.weight) for m in unfixed)
    if not levels or smallest <= min(levels.values()):
        return [m for m in unfixed if Fraction(m.bound, m.weight) == smallest], None
    level = min(levels.values())
    return [m for m in unfixed if any(levels.get(r, level + 1) <= level for r in m.uses)], level


def oracle_share(demand: Demand, resources: list[tuple[int, str]]) -> Member:
    """Rule 1: rates in each resource's scale, the bound on the share resource, coefficients never rounded up."""
    rates = {}
    for index, amount in demand.amounts:
        rates[index] = max(1, math.floor(max(1, amount * 10**12 // demand.alone_ps) * scale(resources[index][0])))
    for kinds in (("link",), ("hbm", "host"), ("unit",)):
        ours = [index for index in rates if resources[index][1] in kinds]
        if ours:
            break
    busiest = max(ours, key=lambda i: (Fraction(rates[i], math.floor(resources[i][0] * scale(resources[i][0]))), -i))
    bound = rates[busiest]
    return Member(bound, {str(i): max(1, math.floor(Fraction(rate * 2**16, bound))) for i, rate in rates.items()})


def scale(capacity: int) -> Fraction:
    """The power of two that brings a capacity into [2^35, 2^36)."""
    factor = Fraction(1)
    while capacity * factor < 2**35:
        factor *= 2
    while capacity * factor >= 2**36:
        factor /= 2
    return factor


# The solver


def solver_rates(members: list[Member], rooms: dict[str, int]) -> tuple[list[int], list[int]]:
    names = list(rooms)
    pairs = [[(names.index(r), g) for r, g in m.uses.items()] for m in members]
    first = np.cumsum([0] + [len(p) for p in pairs])
    columns = [
        [m.priority for m in members],
        [m.weight for m in members],
        [m.bound for m in members],
        first,
        [r for p in pairs for r, _ in p],
        [g for p in pairs for _, g in p],
    ]
    rate, holder = np.zeros(len(members), np.int64), np.zeros(len(members), np.int64)
    solve(Members(*(np.array(c, np.int64) for c in columns)), np.array(list(rooms.values()), np.int64), rate, holder)
    return rate.tolist(), holder.tolist()


@st.composite
def problems(draw, weighted: bool = False):
    rooms = {str(r): draw(st.integers(0, 2**36 - 1)) << 16 for r in range(draw(st.integers(1, 5)))}
    pool = draw(st.lists(st.integers(1, 2**36), min_size=1, max_size=4))  # few values, so that ties happen
    members = []
    for _ in range(draw(st.integers(1, 9))):
        bound = draw(st.sampled_from(pool) | st.integers(1, 2**36))
        used = draw(st.lists(st.sampled_from(sorted(rooms)), min_size=1, max_size=4, unique=True))
        uses = {r: max(1, draw(st.integers(1, 2**36)) * 2**16 // bound) if r != used[0] else 2**16 for r in used}
        weight = min(bound, draw(st.integers(1, 9))) if weighted else 1
        members.append(Member(bound, uses, weight, draw(st.integers(-1, 1)) if weighted else 0))
    return members, rooms


@pytest.mark.parametrize("weighted", [False, True])
def test_the_solver_equals_the_oracle_on_random_sets(weighted):
    @settings(max_examples=300, deadline=None)
    @given(problems(weighted))
    def check(problem):
        members, rooms = problem
        expected = oracle_solve(members, rooms)
        assert solver_rates(members, rooms)[0] == [expected[m] for m in members]

    check()


@settings(max_examples=150, deadline=None)
@given(problems(weighted=True), st.randoms())
def test_neither_the_order_of_members_nor_of_resources_matters(problem, random):
    members, rooms = problem
    before = dict(zip(members, solver_rates(members, rooms)[0], strict=True))
    shuffled, names = random.sample(members, len(members)), random.sample(list(rooms), len(rooms))
    assert solver_rates(shuffled, {r: rooms[r] for r in names})[0] == [before[m] for m in shuffled]


@settings(max_examples=150, deadline=None)
@given(problems(weighted=True))
def test_no_capacity_is_exceeded_no_bound_either_and_nobody_is_held_without_cause(problem):
    """Work conserving: who runs below its bound is held by a resource with less left than one unit of level takes."""
    members, rooms = problem
    rates, holders = solver_rates(members, rooms)
    left = {r: rooms[r] - sum(m.uses.get(r, 0) * y for m, y in zip(members, rates, strict=True)) for r in rooms}
    assert min(left.values()) >= 0
    for m, rate, holder in zip(members, rates, holders, strict=True):
        assert 0 <= rate <= m.bound and (holder == -1) == (rate == m.bound)
        if holder >= 0:
            r = list(rooms)[holder]
            assert r in m.uses and left[r] < sum(o.uses.get(r, 0) * o.weight for o in members)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_rates_are_max_min_fair_in_fractions_to_what_rounding_costs(problem):
    """True max-min: a member held by a resource has the largest rate there, but for units that rounding lost."""
    members, rooms = problem
    rates, holders = solver_rates(members, rooms)
    for rate, holder in zip(rates, holders, strict=True):
        if holder >= 0:
            r = list(rooms)[holder]
            others = [y for o, y in zip(members, rates, strict=True) if r in o.uses]
            assert rate >= max(others) - 1


def test_250_members_of_different_sizes_are_solved_as_the_oracle_does():
    rng = np.random.default_rng(5)
    rooms = {str(r): int(c) << 16 for r, c in enumerate(rng.integers(2**35, 2**36, 20))}
    members = []
    for bound in rng.integers(2**28, 2**34, 250).tolist():
        used = rng.choice(20, 3, replace=False)
        members.append(Member(bound, {str(r): int(g) for r, g in zip(used, rng.integers(1, 2**17, 3), strict=True)}))
    expected = oracle_solve(members, rooms)
    assert solver_rates(members, rooms)[0] == [expected[m] for m in members]


# The engine: a program on queues, run by SimPy and by a loop that knows nothing of components or events


@dataclass
class Program:
    """Queues of (gap before, demand, weight, priority), and what happens to capacities and activities from outside."""

    resources: list[tuple[int, str]]
    queues: list[list[tuple[int, Demand, int, int]]]
    capacities: list[tuple[int, int, int]] = field(default_factory=list)  # time, resource, capacity


def run_engine(program: Program) -> tuple[list[list[tuple[int, int]]], int]:
    env = int_env()
    calendar = Calendar(env)
    for index, (capacity, kind) in enumerate(program.resources):
        calendar.add_resource(f"r{index}", capacity, kind)
    spans: list[list[tuple[int, int]]] = [[] for _ in program.queues]

    def queue(number: int):
        for gap, demand, weight, priority in program.queues[number]:
            yield env.timeout(gap)
            running = yield calendar.run(demand, weight=weight, priority=priority).done
            spans[number].append((running.start_ps, running.end_ps))

    def operator():
        for time, resource, capacity in program.capacities:
            yield env.timeout(time - env.now)
            calendar.set_capacity(resource, capacity)

    for number in range(len(program.queues)):
        env.process(queue(number))
    env.process(operator())
    env.run()
    return spans, env.now


class Loop:
    """The oracle's engine: at each time to a fixpoint, then one division of all that flows, in plain Python."""

    def __init__(self, program: Program) -> None:
        self.program, self.now = program, 0
        self.capacity = [capacity for capacity, _ in program.resources]
        self.spans: list[list[tuple[int, int]]] = [[] for _ in program.queues]
        self.queues = [iter(q) for q in program.queues]
        self.state: list[dict | None] = [None] * len(self.queues)
        self.changes = list(program.capacities)
        for number in range(len(self.queues)):
            self.fetch(number)

    def fetch(self, number: int) -> None:
        item = next(self.queues[number], None)
        if item is None:
            self.state[number] = None
        else:
            self.state[number] = {"phase": "gap", "next": self.now + item[0], "item": item}

    def advance(self, number: int) -> None:
        state = self.state[number]
        _, demand, weight, priority = state["item"]
        if state["phase"] == "gap":
            state.update(phase="fixed", start=self.now, next=self.now + demand.fixed_ps)
        elif state["phase"] == "fixed" and demand.alone_ps:
            member = oracle_share(demand, self.program.resources)
            member.weight, member.priority = min(weight, member.bound), priority
            state.update(phase="flow", member=member, rem=float(demand.alone_ps), x=None, since=self.now, next=None)
        else:
            self.spans[number].append((state["start"], self.now))
            self.fetch(number)

    def divide(self) -> None:
        flowing = [s for s in self.state if s and s["phase"] == "flow"]
        rooms = {
            str(i): math.floor(self.capacity[i] * scale(nominal)) << 16
            for i, (nominal, _) in enumerate(self.program.resources)
        }
        rates = oracle_solve([s["member"] for s in flowing], rooms)
        for s in flowing:
            x = rates[s["member"]] / s["member"].bound
            if x == s["x"]:
                continue
            s["rem"] -= (s["x"] or 0.0) * (self.now - s["since"])
            s["x"], s["since"] = x, self.now
            s["next"] = self.now if s["rem"] <= 0 else self.now + math.ceil(s["rem"] / x) if x else math.inf

    def run(self) -> tuple[list[list[tuple[int, int]]], int]:
        while True:
            due = [n for n, s in enumerate(self.state) if s and s["next"] is not None and s["next"] <= self.now]
            if due:
                for number in due:
                    self.advance(number)
                continue
            while self.changes and self.changes[0][0] <= self.now:
                _, resource, self.capacity[resource] = self.changes.pop(0)
            self.divide()
            times = [s["next"] for s in self.state if s] + [c[0] for c in self.changes]
            later = [t for t in times if t < math.inf]
            if not later:
                return self.spans, self.now
            self.now = min(later)


CAPACITIES = [1_850_000_000, 50 * 10**9, 10**12, 1_600_000_000_000, 3_350 * 10**9 + 7]


@st.composite
def programs(draw, weighted: bool = False, changing: bool = False):
    count = draw(st.integers(1, 5))
    resources = [
        (draw(st.sampled_from(CAPACITIES)), draw(st.sampled_from(["unit", "hbm", "link", "host"])))
        for _ in range(count)
    ]

    def demand() -> Demand:
        fixed = draw(st.sampled_from([0, 0, 500, 1000]))
        alone = draw(st.sampled_from([0, 20, 997, 1000, 2000]) | st.integers(20, 5000))
        used = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)) if alone else []
        parts = [draw(st.sampled_from([3, 25, 50, 80, 100, 100, 150])) for _ in used]
        amounts = tuple((i, max(1, resources[i][0] * alone * p // 10**14)) for i, p in zip(used, parts, strict=True))
        return Demand(fixed, alone, amounts)

    kinds = [demand() for _ in range(draw(st.integers(1, 3)))]  # a few kinds, so that things end at one time
    queues = []
    for _ in range(draw(st.integers(1, 5))):
        line = []
        for _ in range(draw(st.integers(1, 6))):
            weight, priority = (draw(st.integers(1, 4)), draw(st.integers(0, 1))) if weighted else (1, 0)
            line.append((draw(st.sampled_from([0, 0, 0, 500, 1000])), draw(st.sampled_from(kinds)), weight, priority))
        queues.append(line)
    changes = []
    if changing:
        for time in sorted(draw(st.lists(st.sampled_from([0, 500, 997, 1000, 1500, 3000]), max_size=5))):
            resource = draw(st.integers(0, count - 1))
            part = draw(st.sampled_from([0, 1, 30, 50, 100, 150]))
            changes.append((time, resource, resources[resource][0] * part // 100))
        changes += [(20_000, r, capacity) for r, (capacity, _) in enumerate(resources)]  # none stays dead
    return Program(resources, queues, changes)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("changing", [False, True])
def test_the_engine_equals_the_loop_to_the_picosecond_and_runs_dry_at_the_last_end(weighted, changing):
    @settings(max_examples=150, deadline=None)
    @given(programs(weighted, changing))
    def check(program):
        spans, now = run_engine(program)
        assert spans == Loop(program).run()[0]
        assert now == max([end for line in spans for _, end in line] + [t for t, _, _ in program.capacities])

    check()


@settings(max_examples=50, deadline=None)
@given(programs(weighted=True, changing=True))
def test_the_same_program_twice_gives_the_same_spans(program):
    assert run_engine(program) == run_engine(program)


@settings(max_examples=100, deadline=None)
@given(programs(changing=False))
def test_no_more_flows_through_a_resource_than_its_capacity_allows(program):
    """Up to the end of the program, and up to a picosecond of rounding at the end of each activity."""
    spans, now = run_engine(program)
    for index, (capacity, _) in enumerate(program.resources):
        demands = [demand for line in program.queues for _, demand, _, _ in line]
        moved = sum(amount for demand in demands for i, amount in demand.amounts if i == index)
        slack = max((amount / demand.alone_ps for demand in demands for i, amount in demand.amounts), default=0)
        assert moved <= capacity * now / 1e12 + len(demands) * (slack + 1)


# One activity


def lone_end(capacities: list[tuple[int, str]], demand: Demand) -> int:
    spans, _ = run_engine(Program(capacities, [[(0, demand, 1, 0)]]))
    return spans[0][0][1]


@st.composite
def fitting(draw):
    """Resources, and a demand whose alone time lets its amounts through, often exactly."""
    used = draw(
        st.lists(st.tuples(st.integers(1, 2**45), st.sampled_from(["unit", "hbm", "link"])), min_size=1, max_size=4)
    )
    amounts = [draw(st.integers(1, max(1, capacity // 1000))) for capacity, _ in used]
    shortest = max(-(-amount * 10**12 // capacity) for amount, (capacity, _) in zip(amounts, used, strict=True))
    alone = shortest + draw(st.sampled_from([0, 0, 1, 1000]) | st.integers(0, 10**9))
    return used, Demand(draw(st.integers(0, 10**6)), alone, tuple(enumerate(amounts)))


@settings(max_examples=300, deadline=None)
@given(fitting())
def test_an_activity_alone_takes_exactly_its_fixed_part_and_its_alone_time(case):
    resources, demand = case
    assert lone_end(resources, demand) == demand.fixed_ps + demand.alone_ps


@settings(max_examples=200, deadline=None)
@given(fitting(), st.integers(1, 3), st.sampled_from([1, 2, 10, 64]))
def test_more_capacity_is_never_slower_for_one_alone(case, divisor, factor):
    """The claimed time may be shorter than what the resources allow."""
    resources, demand = case
    demand = Demand(0, max(1, demand.alone_ps // divisor), demand.amounts)
    richer = [(capacity * factor, kind) for capacity, kind in resources]
    assert lone_end(richer, demand) <= lone_end(resources, demand)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=6), st.integers(10**9, 10**13), st.integers(0, 10**12))
def test_a_chain_alone_is_never_slower_with_more_bandwidth(sizes, bandwidth, more):
    def end(capacity: int) -> int:
        line = [(0, Demand(100, -(-n * 10**12 // capacity), ((0, n),)), 1, 0) for n in sizes]
        return run_engine(Program([(capacity, "hbm")], [line]))[1]

    assert end(bandwidth + more) <= end(bandwidth)
    assert end(bandwidth) == sum(100 + -(-n * 10**12 // bandwidth) for n in sizes)


@settings(max_examples=150, deadline=None)
@given(programs(changing=True), st.lists(st.integers(0, 25_000), min_size=1, max_size=6))
def test_what_has_moved_only_grows_and_is_whole_at_the_end(program, times):
    """Looked at from outside at any time, which disturbs nothing; a cancelled one keeps what it had."""
    env = int_env()
    calendar = Calendar(env)
    for index, (capacity, kind) in enumerate(program.resources):
        calendar.add_resource(f"r{index}", capacity, kind)
    starts = [calendar.run(line[0][1]) for line in program.queues]
    for time, resource, capacity in program.capacities[: len(program.resources)]:
        if capacity and time == 0:
            calendar.set_capacity(resource, capacity)
    before = [running.moved() for running in starts]
    for time in sorted(set(times)):
        if time > env.now:
            env.run(time)
        now = [running.moved() for running in starts]
        assert all(a[r] <= b[r] for a, b in zip(before, now, strict=True) for r in a)
        before = now
    calendar.cancel(starts[0])
    assert starts[0].outcome == "done" or starts[0].moved() == before[0]
    env.run()
    for running in starts:
        if running.outcome == "done":
            assert running.moved() == dict(running.demand.amounts)
    assert calendar.idle and all(r.load == 0 and not r.members for r in calendar.resources)
