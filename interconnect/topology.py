"""Which nodes there are and which directed links join them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ..isa.errors import ConfigError
from .link import Link


@dataclass(frozen=True)
class Topology:
    """Cards 0 to `cards` - 1, then `switches` that belong to nobody, and directed links; a link's id is its index."""

    kind: str
    cards: int
    links: tuple[Link, ...]
    switches: int = 0

    def __post_init__(self) -> None:
        if self.cards < 1 or self.switches < 0:
            raise ConfigError(f"a topology needs cards >= 1, switches >= 0; got {self.cards}, {self.switches}")
        for link in self.links:
            ends_exist = 0 <= link.source < self.nodes and 0 <= link.target < self.nodes
            if link.source == link.target or not ends_exist:
                raise ConfigError(
                    f"link {link.name} leads from node {link.source} to node {link.target}; "
                    f"it must join two different nodes from 0 to {self.nodes - 1}"
                )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # routes and plans are cached by topology, and may look it up for every instruction
        return hash((self.kind, self.cards, self.links, self.switches))

    @property
    def nodes(self) -> int:
        """How many nodes there are, cards and switches."""
        return self.cards + self.switches

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """For each node the ids of the links that leave it, ascending."""
        return self._ids_by([link.source for link in self.links])

    @cached_property
    def incoming(self) -> tuple[tuple[int, ...], ...]:
        """For each node the ids of the links that reach it, ascending."""
        return self._ids_by([link.target for link in self.links])

    def _ids_by(self, ends: list[int]) -> tuple[tuple[int, ...], ...]:
        ids: list[list[int]] = [[] for _ in range(self.nodes)]
        for link_id, node in enumerate(ends):
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
