"""All directed links of a topology as columns; a Link object is made of those that somebody looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from .link import Link

Ints = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class LinkColumns:
    """One entry a link, by its id: int64 arrays, and bools for `stores` and `down`."""

    source: Ints
    target: Ints
    bandwidth_bytes_per_s: Ints
    latency_ps: Ints
    overhead_ps: Ints
    stores: Ints
    packet_bytes: Ints
    down: Ints
    level: Ints

    @staticmethod
    def of(links: Sequence[Link]) -> LinkColumns:
        """The columns of some links."""
        count = len(links)
        return LinkColumns(
            np.fromiter((link.source for link in links), np.int64, count),
            np.fromiter((link.target for link in links), np.int64, count),
            np.fromiter((link.bandwidth_bytes_per_s for link in links), np.int64, count),
            np.fromiter((link.latency_ps for link in links), np.int64, count),
            np.fromiter((link.overhead_ps for link in links), np.int64, count),
            np.fromiter((link.forwarding == "store_and_forward" for link in links), bool, count),
            np.fromiter((link.packet_bytes for link in links), np.int64, count),
            np.fromiter((link.down for link in links), bool, count),
            np.fromiter((link.level for link in links), np.int64, count),
        )

    @property
    def all(self) -> tuple[Ints, ...]:
        """Every column."""
        return self.source, self.target, *self.facts, self.down, self.level

    @property
    def facts(self) -> tuple[Ints, ...]:
        """What decides how long bytes take: bandwidths, latencies, overheads, which store, and packets."""
        return self.bandwidth_bytes_per_s, self.latency_ps, self.overhead_ps, self.stores, self.packet_bytes


class Links(Sequence[Link]):
    """Links in order of their ids, from their columns; `name_of` names a node."""

    def __init__(self, columns: LinkColumns, name_of: Callable[[int], str]) -> None:
        self.columns, self._name_of = columns, name_of

    def __len__(self) -> int:
        return len(self.columns.source)

    @overload
    def __getitem__(self, index: int) -> Link: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Link, ...]: ...
    def __getitem__(self, index: int | slice) -> Link | tuple[Link, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        c = self.columns
        source, target = int(c.source[index]), int(c.target[index])
        return Link(
            source,
            target,
            int(c.bandwidth_bytes_per_s[index]),
            int(c.latency_ps[index]),
            f"{self._name_of(source)}>{self._name_of(target)}",
            int(c.overhead_ps[index]),
            "store_and_forward" if c.stores[index] else "cut_through",
            int(c.packet_bytes[index]),
            bool(c.down[index]),
            int(c.level[index]),
        )

    def __iter__(self) -> Iterator[Link]:
        return iter(self._made)

    @cached_property
    def _made(self) -> tuple[Link, ...]:
        return self[:]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Links):
            pairs = zip(self.columns.all, other.columns.all, strict=True)
            return self is other or all(np.array_equal(mine, theirs) for mine, theirs in pairs)
        return self._made == other

    def __hash__(self) -> int:
        return hash(self._made)
