"""Routes: which experts tokens took, by what logits, and the tap that keeps what the cards' routers chose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..emulator.kernels.binding import Thunk
from ..emulator.payload import Site
from ..isa.experts import ROUTE
from ..isa.instruction import Array
from ..isa.sparse import SELECT_KEYS
from .places import layer_of, spans_of, speaks
from .plan import JobPlan
from .scheduler import Step


@dataclass(frozen=True)
class Routes:
    """One router over some tokens: ids [tokens, chosen] and logits [tokens, experts].

    `choice` are the scores that were chosen by, minus infinity or 0 where a group was out; `groups` those of groups.
    """

    ids: Array
    logits: Array
    choice: Array | None = None
    groups: Array | None = None

    def at(self, rows: slice | Array) -> Routes:
        """Some of the tokens."""
        choice, groups = (None if part is None else part[rows] for part in (self.choice, self.groups))
        return Routes(self.ids[rows], self.logits[rows], choice, groups)


def join_routes(parts: Sequence[Routes]) -> Routes:
    """The tokens of several, one after the other."""

    def together(arrays: list[Array | None]) -> Array | None:
        held = [array for array in arrays if array is not None]
        return np.concatenate(held) if held else None

    return Routes(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.logits for part in parts]),
        together([part.choice for part in parts]),
        together([part.groups for part in parts]),
    )


def join_keys(parts: Sequence[Array]) -> Array:
    """Keys of several sequences, one after the other, short rows filled up with -1."""
    most = max(part.shape[-1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, most - part.shape[-1])), constant_values=-1) for part in parts])


class RouteTap:
    """Keeps what the routers of every layer chose on the cards: `inspect` is for a Payload, `take` after every step."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self._held: dict[tuple[int, int], Routes] = {}
        self._parts: dict[tuple[int, int], list[tuple[int, Routes]]] = defaultdict(list)
        self._chosen: dict[tuple[int, int], Array] = {}
        self._keys: dict[tuple[int, int], list[tuple[int, Array]]] = defaultdict(list)

    def inspect(self, site: Site) -> Thunk | None:
        """For a router, or an indexer, of the rank that speaks for its peers: what copies its choices."""
        i, rank = site.instruction, site.image.rank
        layer = layer_of(self.plan, site)
        if layer is None or not speaks(self.plan, rank):
            return None
        if isinstance(i, SELECT_KEYS):
            keys = site.memory.raw(i.dst)
            return lambda: self._chosen.__setitem__((layer, rank), keys.copy())
        if not isinstance(i, ROUTE):
            return None

        def thunk() -> None:
            self._held[layer, rank] = Routes(site.memory.raw(i.ids).copy(), site.memory.get(i.logits).copy())

        return thunk

    def take(self, step: Step) -> None:
        """File what the step that has just run chose under its requests."""
        for (layer, rank), routes in self._held.items():
            for request, start, rows in self._rows(step, rank):
                self._parts[layer, request].append((start, routes.at(rows)))
        for (layer, rank), keys in self._chosen.items():
            for request, start, rows in self._rows(step, rank):
                self._keys[layer, request].append((start, keys[rows]))
        self._held.clear()
        self._chosen.clear()

    def _rows(self, step: Step, rank: int) -> Iterator[tuple[int, int, slice]]:
        """(request, first position, rows) of all that a card computed."""
        row = 0
        for request, span in spans_of(self.plan, step, rank):
            if span:
                yield request, span.start, slice(row, row + len(span))
            row += len(span)

    def keys_of(self, request: int) -> dict[int, Array]:
        """By layer, the keys that an indexer chose for all of a request's tokens in order; -1 fills up short rows."""
        return {
            layer: np.concatenate([part for _, part in sorted(parts, key=lambda item: item[0])])
            for (layer, owner), parts in sorted(self._keys.items())
            if owner == request
        }

    def of(self, request: int) -> dict[int, Routes]:
        """By layer, the choices of all of a request's tokens in order, those of its cached part first."""
        return {
            layer: join_routes([part for _, part in sorted(parts, key=lambda item: item[0])])
            for (layer, owner), parts in sorted(self._parts.items())
            if owner == request
        }
