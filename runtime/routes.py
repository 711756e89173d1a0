"""Routes: which experts tokens took, by what logits, and the tap that keeps what the cards' routers chose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..emulator.kernels.binding import Thunk
from ..emulator.payload import Site
from ..isa.experts import ROUTE
from ..isa.instruction import Array
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


class RouteTap:
    """Keeps what the routers of every layer chose on the cards: `inspect` is for a Payload, `take` after every step."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self._held: dict[tuple[int, int], Routes] = {}
        self._parts: dict[tuple[int, int], list[tuple[int, Routes]]] = defaultdict(list)

    def inspect(self, site: Site) -> Thunk | None:
        """For a router of the rank that speaks for its peers: what copies its choices."""
        i, rank = site.instruction, site.image.rank
        layer = layer_of(self.plan, site)
        if not isinstance(i, ROUTE) or layer is None or not speaks(self.plan, rank):
            return None

        def thunk() -> None:
            self._held[layer, rank] = Routes(site.memory.raw(i.ids).copy(), site.memory.get(i.logits).copy())

        return thunk

    def take(self, step: Step) -> None:
        """File what the step that has just run chose under its requests."""
        for (layer, rank), routes in self._held.items():
            row = 0
            for request, span in spans_of(self.plan, step, rank):
                rows = slice(row, row + len(span))
                row += len(span)
                if span:
                    self._parts[layer, request].append((span.start, routes.at(rows)))
        self._held.clear()

    def of(self, request: int) -> dict[int, Routes]:
        """By layer, the choices of all of a request's tokens in order, those of its cached part first."""
        return {
            layer: join_routes([part for _, part in sorted(parts, key=lambda item: item[0])])
            for (layer, owner), parts in sorted(self._parts.items())
            if owner == request
        }
