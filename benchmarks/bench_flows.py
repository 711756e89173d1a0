"""How fast the one solver is: point-to-point flows of random sizes between the endpoints of a two-level fat tree."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Generator, Iterator
from itertools import count

import numpy as np
import simpy

from siltwin.emulator.calendar.activity import Demand, flow_ps
from siltwin.emulator.calendar.engine import Calendar, int_env

ENDPOINTS, LEAVES = 512, 16  # 32 endpoints a leaf, and as many spines as a leaf has endpoints: nothing oversubscribed
BYTES_PER_S, LATENCY_PS = 50 * 10**9, 500_000
SIZES = (16 << 10, 16 << 20)  # bytes, the logarithm evenly spread


class FatTree:
    """The directed links of a two-level fat tree as resources; a pair of endpoints always takes the same spine."""

    def __init__(self, calendar: Calendar) -> None:
        self.below = ENDPOINTS // LEAVES
        numbers = count()

        def links(shape: tuple[int, ...]) -> np.ndarray:
            added = [
                calendar.add_resource(f"link {next(numbers)}", BYTES_PER_S, "link") for _ in range(int(np.prod(shape)))
            ]
            return np.array(added).reshape(shape)

        self.up, self.down = links((ENDPOINTS,)), links((ENDPOINTS,))
        self.to_spine, self.from_spine = links((LEAVES, self.below)), links((LEAVES, self.below))

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """The links from one endpoint to another."""
        leaf, other = source // self.below, target // self.below
        if leaf == other:
            return int(self.up[source]), int(self.down[target])
        spine = (source * 7919 + target * 104729) % self.below
        across = int(self.to_spine[leaf, spine]), int(self.from_spine[other, spine])
        return int(self.up[source]), *across, int(self.down[target])


def flows(tree: FatTree, number: int, seed: int) -> list[Demand]:
    """Seeded random sizes between seeded random pairs."""
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, ENDPOINTS, number)
    targets = (sources + rng.integers(1, ENDPOINTS, number)) % ENDPOINTS
    sizes = np.exp(rng.uniform(*np.log(SIZES), number)).astype(int)
    demands = []
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        route = tree.route(source, target)
        demands.append(
            Demand(LATENCY_PS * len(route), flow_ps(size, BYTES_PER_S), tuple((link, size) for link in route))
        )
    return demands


def run(number: int, in_flight: int, seed: int = 1) -> tuple[int, float]:
    """(simulated picoseconds, wall seconds) of `number` flows, of which `in_flight` are under way at any time."""
    env = int_env()
    calendar = Calendar(env)
    work = iter(flows(FatTree(calendar), number, seed))

    def sender(work: Iterator[Demand]) -> Generator[simpy.Event, object, None]:
        for demand in work:
            yield calendar.run(demand).done

    begin = time.perf_counter()
    for _ in range(in_flight):
        env.process(sender(work))
    env.run()
    assert calendar.idle
    return env.now, time.perf_counter() - begin


def main() -> None:
    """Time 256 and 1,024 flows in flight."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=100_000)
    parser.add_argument("--in-flight", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    options = parser.parse_args()
    run(300, 200)  # compiles, or loads what was compiled
    for in_flight in options.in_flight:
        with cProfile.Profile() as profile:
            if not options.profile:
                profile.disable()
            simulated_ps, wall_s = run(options.flows, in_flight)
        rate = options.flows / wall_s
        print(
            f"{options.flows} flows, {in_flight} in flight: {simulated_ps} ps in {wall_s:.2f} s, {rate:,.0f} a second"
        )
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
