"""Many flows in one calendar: put right step by step they go as divided from nothing, and in good time."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from siltwin.emulator.calendar import division
from siltwin.emulator.calendar.activity import Demand, Running, flow_ps
from siltwin.emulator.calendar.engine import Calendar, int_env

BYTES_PER_S, LATENCY_PS = 50 * 10**9, 500_000


class FatTree:
    """A two-level fat tree, nothing oversubscribed: as many spines as a leaf has endpoints."""

    def __init__(self, calendar: Calendar, endpoints: int, leaves: int) -> None:
        self.endpoints, self.below = endpoints, endpoints // leaves
        names = count()

        def links(*shape: int) -> np.ndarray:
            size = int(np.prod(shape))
            added = [calendar.add_resource(f"link {next(names)}", BYTES_PER_S, "link") for _ in range(size)]
            return np.array(added).reshape(shape)

        self.up, self.down = links(endpoints), links(endpoints)
        self.to_spine, self.from_spine = links(leaves, self.below), links(leaves, self.below)

    def route(self, source: int, target: int) -> list[int]:
        leaf, other = source // self.below, target // self.below
        spine = (source * 7919 + target * 104729) % self.below
        across = [] if leaf == other else [self.to_spine[leaf, spine], self.from_spine[other, spine]]
        return [int(link) for link in (self.up[source], *across, self.down[target])]


def flows(tree: FatTree, number: int, seed: int) -> list[tuple[Demand, int]]:
    """Seeded random sizes of 16 KiB to 16 MiB between seeded random pairs, and a number for each."""
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, tree.endpoints, number)
    targets = (sources + rng.integers(1, tree.endpoints, number)) % tree.endpoints
    sizes = np.exp(rng.uniform(np.log(16 << 10), np.log(16 << 20), number)).astype(int)
    drawn = []
    for row in zip(sources.tolist(), targets.tolist(), sizes.tolist(), rng.integers(0, 1 << 30, number), strict=True):
        source, target, size, choice = row
        route = tree.route(source, target)
        fixed = LATENCY_PS * len(route)
        drawn.append((Demand(fixed, flow_ps(size, BYTES_PER_S), tuple((link, size) for link in route)), int(choice)))
    return drawn


Options = Callable[[int], dict[str, int]]


def run(
    number: int, in_flight: int, endpoints: int, leaves: int, options: Options = lambda _: {}, changing: bool = True
) -> list[tuple]:
    """Start, end and holder of every flow; `in_flight` are under way at any time, and links may change now and then."""
    env = int_env()
    calendar = Calendar(env)
    tree = FatTree(calendar, endpoints, leaves)
    work = iter(flows(tree, number, seed=1))
    ended: list[Running] = []

    def sender():
        for demand, choice in work:
            running = yield calendar.run(demand, **options(choice)).done
            ended.append(running)
            if changing and choice % 16 == 0:
                capacity = BYTES_PER_S * (choice // 16 % 3) // 2 or BYTES_PER_S // 50
                calendar.set_capacity(int(tree.up[choice % endpoints]), capacity)

    for _ in range(in_flight):
        env.process(sender())
    env.run()
    assert calendar.idle and len(ended) == number
    assert all(resource.load == resource.members == 0 for resource in calendar.resources)
    return [(running.sequence, running.start_ps, running.end_ps, running.held_by) for running in ended]


MIXTURES: dict[str, Options] = {
    "equal": lambda _: {},
    "weighted": lambda choice: {"weight": 1 + choice % 5},
    "of two priorities": lambda choice: {"priority": choice % 2},
    "seldom of another priority": lambda choice: {"priority": int(choice % 50 == 0), "weight": 1 + choice % 3},
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_levels_put_right_equal_those_filled_from_nothing(mixture, monkeypatch):
    shape = (1200, 48, 32, 4)
    put_right = run(*shape, MIXTURES[mixture])
    monkeypatch.setattr(division, "LOOKS", -1)  # not patient at all: each division fills from nothing
    monkeypatch.setattr(division, "PATIENCE", 0)
    assert run(*shape, MIXTURES[mixture]) == put_right


def mixed(seed: int) -> list[tuple]:
    """Demands of any shape on resources of any speed and kind: up to six uses, weights, capacities that come and go."""
    rng = np.random.default_rng(seed)
    env = int_env()
    calendar = Calendar(env)
    kinds, speeds = ("link", "hbm", "unit", "host"), rng.integers(10**9, 10**12, 24).tolist()
    for number, speed in enumerate(speeds):
        calendar.add_resource(f"r{number}", speed, kinds[number % 4])
    ended: list[Running] = []

    def sender(seed: int):
        own = np.random.default_rng(seed)
        for _ in range(12):
            used = own.choice(24, own.integers(1, 7), replace=False).tolist()
            alone = int(own.integers(1000, 10**6))
            shares = own.choice([3, 40, 77, 100, 100, 130], len(used)).tolist()
            amounts = tuple(
                (r, max(1, speeds[r] * alone * part // 10**14)) for r, part in zip(used, shares, strict=True)
            )
            demand = Demand(int(own.integers(0, 3)) * 500, alone, amounts)
            ended.append((yield calendar.run(demand, weight=int(own.integers(1, 4))).done))
            if own.random() < 0.2:
                r = int(own.integers(0, 24))
                calendar.set_capacity(r, speeds[r] * int(own.choice([1, 50, 100, 150])) // 100)

    for number in range(int(rng.integers(4, 40))):
        env.process(sender(1000 * seed + number))
    env.run()
    return [(running.sequence, running.end_ps, running.held_by, running.held_ps) for running in ended]


@pytest.mark.parametrize("seed", range(8))
def test_demands_of_any_shape_go_as_divided_from_nothing(seed, monkeypatch):
    put_right = mixed(seed)
    for looks in (-1, 100):
        monkeypatch.setattr(division, "LOOKS", looks)
        monkeypatch.setattr(division, "PATIENCE", 0)
        assert mixed(seed) == put_right


def test_a_division_that_loses_patience_half_way_is_filled_from_nothing(monkeypatch):
    shape = (600, 64, 32, 4)
    put_right = run(*shape)
    for looks in (20, 60, 200):
        monkeypatch.setattr(division, "LOOKS", looks)
        monkeypatch.setattr(division, "PATIENCE", 0)
        assert run(*shape) == put_right


def test_the_solver_is_not_called_where_all_are_of_one_priority(monkeypatch):
    monkeypatch.setattr(division, "solve", None)
    assert len(run(200, 16, 32, 4, MIXTURES["weighted"])) == 200


def test_an_end_beyond_53_days_is_not_expected_until_its_speed_changes():
    """The rest of 10^15 bytes at a byte a second would take 10^27 ps; it stands still for 1,000 ps."""
    env = int_env()
    calendar = Calendar(env)
    link = calendar.add_resource("link", 10**12, "link")
    running = calendar.run(Demand(0, 10**15, ((link, 10**15),)))
    env.run(1000)
    calendar.set_capacity(link, 1)
    env.run(2000)
    assert list(calendar.stalled()) == [(running, link)]
    calendar.set_capacity(link, 10**12)
    env.run()
    assert running.end_ps == 10**15 + 1000 and running.held_by == link


@pytest.mark.long
@pytest.mark.parametrize("in_flight", [256, 1024])
def test_a_hundred_thousand_flows_between_512_endpoints_come_to_their_end(in_flight):
    run(100_000, in_flight, 512, 16, changing=False)  # benchmarks/bench_flows.py says how fast
