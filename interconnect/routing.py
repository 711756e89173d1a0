"""The links a transfer takes from one node to another."""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from ..isa.errors import ConfigError
from .topology import Topology


@lru_cache(maxsize=1 << 16)
def route(topology: Topology, source: int, target: int) -> tuple[int, ...]:
    """Ids of the directed links from `source` to `target`, in order; empty from a node to itself.

    The route has the fewest links; of several such, the one whose first link has the lowest id, then its second, and
    so on. It is a pure function of the topology. ConfigError for a node that does not exist, or when nothing leads
    there: then it names the cut.
    """
    for node in (source, target):
        if not 0 <= node < topology.nodes:
            raise ConfigError(f"node {node} is not in the topology; its nodes are 0 to {topology.nodes - 1}")
    hops = _hops_to(topology, target)
    if hops[source] < 0:
        raise ConfigError(_cut(topology, source, target))
    path: list[int] = []
    here = source
    while here != target:
        link_id = next(i for i in topology.outgoing[here] if hops[topology.links[i].target] == hops[here] - 1)
        path.append(link_id)
        here = topology.links[link_id].target
    return tuple(path)


@lru_cache(maxsize=4096)
def _hops_to(topology: Topology, target: int) -> tuple[int, ...]:
    """From each node the fewest links to `target`; -1 where there is no way."""
    hops = [-1] * topology.nodes
    hops[target] = 0
    queue = deque([target])
    while queue:
        node = queue.popleft()
        for link_id in topology.incoming[node]:
            before = topology.links[link_id].source
            if hops[before] < 0:
                hops[before] = hops[node] + 1
                queue.append(before)
    return tuple(hops)


def _cut(topology: Topology, source: int, target: int) -> str:
    near = {source}
    queue = [source]
    while queue:
        for link_id in topology.outgoing[queue.pop()]:
            node = topology.links[link_id].target
            if node not in near:
                near.add(node)
                queue.append(node)
    far = set(range(topology.nodes)) - near
    return (
        f"no route from {topology.node_name(source)} to {topology.node_name(target)}: "
        f"no link leads from {topology.names(near)} to {topology.names(far)}; add one, or place the group on one side"
    )
