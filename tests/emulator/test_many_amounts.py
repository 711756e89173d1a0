"""Demands on many resources, as columns: the same shares as one by one, and groups that stand alike worked out once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.calendar.activity import Demand
from siltwin.emulator.calendar.amounts import Amounts
from siltwin.emulator.calendar.resource_columns import Resources
from siltwin.emulator.calendar.shares import share_of
from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.parts import Parts
from siltwin.emulator.spec import load_card
from siltwin.emulator.wires import Message
from siltwin.interconnect.cluster import load_cluster
from siltwin.isa.dtype import BF16
from siltwin.isa.errors import ConfigError

RATES = st.sampled_from([1, 3, 28 * 10**9, 10**10, 2 * 10**10, 1_800_000_000])


@settings(max_examples=200, deadline=None)
@given(data=st.data(), kinds=st.lists(st.sampled_from(["link", "hbm", "unit", "lock", "free"]), min_size=1, max_size=9))
def test_a_share_of_columns_is_that_of_the_pairs(data: st.DataObject, kinds: list[str]) -> None:
    resources = Resources()
    for number, kind in enumerate(kinds):
        per_s = None if kind == "free" else data.draw(RATES)
        resources.add(f"{kind} {number}", per_s, {"lock": "unit", "free": "hbm"}.get(kind, kind), kind == "lock")
    index = data.draw(st.permutations(range(len(kinds))))[: data.draw(st.integers(1, len(kinds)))]
    amounts = [data.draw(st.sampled_from([1, 2, 1000]) | st.integers(1, 1 << 50)) for _ in index]
    alone_ps = data.draw(st.integers(1, 1 << 52) | st.sampled_from([1000, 10**9]))
    pairs = tuple(zip(index, amounts, strict=True))
    columns = Amounts(np.array(index, np.int64), np.array(amounts, np.int64))
    try:
        one = share_of(Demand(0, alone_ps, pairs), resources)
    except ConfigError as wrong:
        with pytest.raises(ConfigError, match="times the capacity"):
            share_of(Demand(0, alone_ps, columns), resources)
        assert "times the capacity" in str(wrong)
        return
    other = share_of(Demand(0, alone_ps, columns), resources)
    assert (one.bound, one.uses, one.exclusive) == (other.bound, other.uses, other.exclusive)
    assert Demand(0, alone_ps, pairs) == Demand(0, alone_ps, columns)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_groups_that_stand_alike_share_as_if_each_were_worked_out(kind: str) -> None:
    spec = load_cluster("cloudmatrix-384")
    cluster = CompiledCluster(load_card("ascend-910c"), spec.topology(), 64, choose=spec.choose)
    sizes = Parts(np.arange(64) * 7001) if kind == "all_to_all" else (70_001,) * 8
    message = Message(kind, sizes, BF16, 0)
    for first in (0, 8, 40):
        ranks = tuple(range(first, first + 8))
        found = cluster._wires.share(message, ranks, 10**6)
        cost = cluster._wires.cost(message, ranks, 10**6)
        share = share_of(Demand(0, cost.demand.alone_ps, tuple(cost.demand.amounts)), cluster.calendar.resources)
        assert (found.fixed_ps, found.alone_ps, found.bound) == (
            cost.demand.fixed_ps,
            cost.demand.alone_ps,
            cost.bound,
        )
        assert found.rate_bound == share.bound
        for mine, theirs in zip((found.resources, found.coefficients, found.loads), share.columns, strict=True):
            assert mine.tolist() == theirs.tolist()
        assert found.units.tolist() == [unit.index for unit in share.exclusive]
        links = {index for index, _ in cost.demand.amounts if index in cluster.link_resources}
        nodes = [cluster.topology.links[index - cluster.link_resources.start] for index in links]
        assert {link.source for link in nodes if link.source < 768} <= set(ranks)
