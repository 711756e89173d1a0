"""Which nodes there are and which directed links join them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..isa.errors import ConfigError
from .link import Link
from .link_columns import Ints, LinkColumns, Links
from .policy import SHORTEST, Routing


@dataclass(frozen=True)
class Topology:
    """Cards 0 to `cards` - 1, then `switches` that belong to nobody, and directed links; a link's id is its index.

    `dims` are the sides of a mesh or torus of more than one dimension, card numbers counting through them like digits.
    `shape` says how the cards stand together, outermost level first: (4, 8) is 4 nodes of 8. `reducing` are the nodes
    of the switches that can add and copy what flows through them.
    """

    kind: str
    cards: int
    links: Sequence[Link]
    switches: int = 0
    routing: Routing = SHORTEST
    dims: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    reducing: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.cards < 1 or self.switches < 0:
            raise ConfigError(f"a topology needs cards >= 1, switches >= 0; got {self.cards}, {self.switches}")
        nodes, (source, target) = self.nodes, (self.columns.source, self.columns.target)
        lost = (source < 0) | (source >= nodes) | (target < 0) | (target >= nodes) | (source == target)
        for link_id in np.flatnonzero(lost).tolist():
            link = self.links[link_id]
            raise ConfigError(
                f"link {link.name} leads from node {link.source} to node {link.target}; "
                f"it must join two different nodes from 0 to {nodes - 1}"
            )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # routes and plans are cached by topology, and may look it up for every instruction
        return hash(
            (self.kind, self.cards, len(self.links), tuple(self.links[:8]), self.switches, self.routing, self.shape)
        )

    @property
    def sides(self) -> tuple[int, ...]:
        """The sides of a grid, and of what is one in one dimension."""
        return self.dims or (self.cards,)

    @property
    def wraps(self) -> bool:
        """Whether a grid's ends are joined."""
        return self.kind in ("ring", "torus")

    @property
    def nodes(self) -> int:
        """How many nodes there are, cards and switches."""
        return self.cards + self.switches

    @cached_property
    def columns(self) -> LinkColumns:
        """The links as arrays."""
        return self.links.columns if isinstance(self.links, Links) else LinkColumns.of(self.links)

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """For each node the ids of the links that leave it, ascending."""
        return self._ids_by(self.columns.source)

    @cached_property
    def incoming(self) -> tuple[tuple[int, ...], ...]:
        """For each node the ids of the links that reach it, ascending."""
        return self._ids_by(self.columns.target)

    def _ids_by(self, ends: Ints) -> tuple[tuple[int, ...], ...]:
        ids: list[list[int]] = [[] for _ in range(self.nodes)]
        for link_id, node in enumerate(ends.tolist()):
            ids[node].append(link_id)
        return tuple(tuple(row) for row in ids)

    def node_name(self, node: int) -> str:
        """`card 3`, or `switch 0` for the first node after the cards."""
        return f"card {node}" if node < self.cards else f"switch {node - self.cards}"

    def names(self, nodes: Iterable[int]) -> str:
        """Nodes in words, runs joined: `cards 0-3, 6 and switch 0`."""
        wanted = sorted(nodes)
        groups = [
            ("card", [node for node in wanted if node < self.cards]),
            ("switch", [node - self.cards for node in wanted if node >= self.cards]),
        ]
        return " and ".join(_runs(noun, numbers) for noun, numbers in groups if numbers)


def _runs(noun: str, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    plural = noun if len(numbers) == 1 else noun + ("es" if noun.endswith("ch") else "s")
    return f"{plural} " + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
