"""Plans, routes and amounts of big groups are right from nothing; benchmarks/bench_fabric.py says how fast."""

import numpy as np

from siltwin.interconnect.cluster import make_cluster
from siltwin.interconnect.collectives.amounts import group_amounts
from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.flows import place


def test_a_ring_all_reduce_of_1_gib_over_1024_cards_takes_its_closed_time() -> None:
    """2 * 1023 steps of 1 MiB at 50 GB/s and 0.5 us: a byte takes 20 ps."""
    net = make_cluster("ring", 1024, 50 * 10**9, 500_000, name="cold ring").topology()
    work = group_amounts(expand("all_reduce", 1024), [2**20] * 1024, range(1024), net)
    assert work.alone_ps == 2 * 1023 * (2**20 * 20 + 500_000)


def test_an_uneven_all_to_all_over_512_cards_lasts_as_long_as_its_largest_pair() -> None:
    """In a mesh every link carries its own pair's bytes, so the largest of them is the time."""
    sizes = np.random.default_rng(3).integers(0, 10**6, 512 * 512)
    net = make_cluster("full_mesh", 512, 10**12, 0, name="cold mesh").topology()
    work = group_amounts(expand("all_to_all", 512), sizes.tolist(), range(512), net)
    own = np.arange(512) * 513
    assert work.flow_ps == np.delete(sizes, own).max()


def test_steps_that_differ_only_in_their_parts_are_placed_once() -> None:
    plan = expand("all_reduce", 64)
    placed = place(plan, tuple(range(64)), make_cluster("ring", 64, 1, 0).topology())
    assert len(placed.shape.patterns) == 2  # reducing steps, and those that only copy
    assert sum(len(some.pattern.steps) for some in placed.shape.patterns) == plan.num_steps == 126
