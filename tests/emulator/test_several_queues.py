"""Cards that exchange from several queues at once: the compiled calendar does as SimPy's, folded or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import TIGHT
from test_compiled import told, used
from test_folding import KINDS, Machine

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.isa.errors import UnsupportedError

TWO_LINKS = {"queues.2.units": "dma,link"}
LINES = (
    "link | all_reduce x=%c group=rows",
    "link | all_reduce x=%e group=rows | wait dma0+0",
    "dma0 | all_reduce x=%e group=columns",
    "dma0 | all_reduce x=%t group=columns",
    "dma0 | broadcast x=%d group=columns root=0",
    "tensor | matmul dst=%y a=%x w=%w bias=-",
    "vector | add dst=%t a=%t b=%t",
    "dma1 | copy dst=%d src=%c",
)
CARDS = (TIGHT, {}, {"hbm.bandwidth_bytes_per_s": "20GB/s"}, TIGHT | {"queues.0.units": "tensor,vector"})


@settings(max_examples=80, deadline=None)
@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=7),
    shape=st.sampled_from([(4, 2), (6, 3), (8, 4)]),
    kind=st.sampled_from(KINDS),
    overrides=st.sampled_from(CARDS),
    longer=st.sets(st.integers(0, 3), max_size=2),
)
def test_exchanges_of_several_queues_run_as_under_simpy(
    rig: Any,
    lines: list[str],
    shape: tuple[int, int],
    kind: str,
    overrides: Mapping[str, str],
    longer: set[int],
) -> None:
    machine = Machine(rig, *shape, kind, {**overrides, **TWO_LINKS})
    if any("%t group" in line for line in lines):
        longer = set()  # members of an exchange bring the same
    tokens = [48 if rank in longer else 16 for rank in range(shape[0])]
    parts = machine.submissions([machine.program(lines)] * shape[0], tokens)
    clusters: list[Any] = [
        Cluster(machine.spec, machine.topology),
        *(machine.cluster(fold=fold) for fold in (True, False)),
    ]
    told_by = [[[told(cluster, cluster.submit(parts)) for _ in range(2)], used(cluster)] for cluster in clusters]
    assert told_by[0] == told_by[1] == told_by[2]


def test_two_queues_that_come_to_one_group_are_refused_by_name(rig: Any) -> None:
    one = rig(2, overrides=TWO_LINKS)
    cluster = CompiledCluster(one.spec, one.cluster.topology)
    program = one.program("link | all_reduce x=%c group=all\ndma0 | all_reduce x=%d group=all")
    with pytest.raises(UnsupportedError, match="program p comes to group all from the queues dma0, link; the compiled"):
        cluster.submit([one.submission(rank, program) for rank in range(2)])
