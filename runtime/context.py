"""What a step binds and loads where a context is spread over shares: lengths, ranges, and who passes what to whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..isa.instruction import Array
from .kv_cache import PagePool
from .lowering import context as names
from .lowering.context import Kind, Mode
from .ownership import Ownership
from .portions import Portion

if TYPE_CHECKING:
    from .plan import JobPlan

Extents = dict[str, tuple[int, ...]]
Inputs = dict[str, Any]


def mode_of(plan: JobPlan, portion: Portion) -> Mode:
    """How the replica that a portion is of computes a step: all its holders agree.

    Where every entry is one token, and none must bring its state from elsewhere, queries go to the shares of the cache;
    else the shares come to the queries, as the job says. A choice among all cached tokens needs them together.
    """
    if plan.layout.cp == 1:
        return "whole"
    if plan.chooses:
        return "allgather"
    decodes = all(entry.count <= 1 for entry in portion.entries)
    if decodes and plan.has_states:
        owners = ((plan.ownership(entry.request), entry) for entry in portion.entries)
        decodes = all(own.spans(own.home, entry.start, entry.start + entry.count) for own, entry in owners)
    return "decode" if decodes else plan.cp_prefill


@dataclass(frozen=True)
class _Sequence:
    """One entry of a step: who owns its positions, and how many there are once the step has run."""

    own: Ownership
    start: int
    stop: int

    def is_here(self) -> bool:
        """Whether all its new tokens stand where its state is kept."""
        return self.own.count(self.own.home, self.stop) - self.own.count(self.own.home, self.start) == (
            self.stop - self.start
        )


class Context:
    """A portion of a step on one of several shares. All lists have an element an entry, in the order of the entries."""

    def __init__(self, plan: JobPlan, portion: Portion) -> None:
        self.plan, self.portion = plan, portion
        self.shares, self.share = plan.layout.cp, portion.share
        self.mode = mode_of(plan, portion)
        self.sequences = [
            _Sequence(plan.ownership(entry.request), entry.start, entry.start + entry.count)
            for entry in portion.entries
        ]

    def _source(self, turn: int) -> int:
        """Whose share is here after some turns of the ring."""
        return (self.share - turn) % self.shares

    @cached_property
    def _lens(self) -> list[list[int]]:
        """Rows of every sequence in every share, by share."""
        return [[one.own.count(share, one.stop) for one in self.sequences] for share in range(self.shares)]

    @cached_property
    def _new(self) -> list[list[int]]:
        """New tokens of every sequence on every share, by share."""
        return [
            [
                held - one.own.count(share, one.start)
                for held, one in zip(self._lens[share], self.sequences, strict=True)
            ]
            for share in range(self.shares)
        ]

    @cached_property
    def _positions(self) -> list[Array]:
        return [self.portion.positions(index) for index in range(len(self.sequences))]

    def _towards(self, offset: int, rows: int) -> tuple[int, ...]:
        """Counts by which `rows` rows go to, or come from, the share at an offset around the ring."""
        peer = (self.share + offset) % self.shares
        return tuple(rows if share == peer else 0 for share in range(self.shares))

    # what both read

    def _ranges(self, index: int, positions: Array, share: int, kind: Kind) -> Array:
        """[queries, 2]: the rows of a sequence's share that queries at these positions see."""
        oldest = np.zeros_like(positions)
        if kind.chunk:
            oldest = positions // kind.chunk * kind.chunk
        elif kind.window:
            oldest = np.maximum(0, positions - kind.window + 1)
        own = self.sequences[index].own
        return np.stack([own.counts(share, oldest), own.counts(share, positions + 1)], axis=1)

    @cached_property
    def _visible(self) -> dict[tuple[Kind, int], list[Array]]:
        """By kind and turn: what this share's queries (or in decode all queries, in the order that they come) see."""
        found: dict[tuple[Kind, int], list[Array]] = {}
        for kind in names.kinds_of(self.plan.graph):
            if self.mode == "decode":
                last = [np.arange(one.start, one.stop) for one in self.sequences]
                found[kind, 0] = [self._ranges(index, last[index], self.share, kind) for index in self._arrival]
            else:
                for turn in range(self.shares):
                    source = self._source(turn)
                    found[kind, turn] = [
                        self._ranges(index, positions, source, kind) for index, positions in enumerate(self._positions)
                    ]
        return found

    @cached_property
    def _arrival(self) -> list[int]:
        """The entries in the order in which their single tokens are gathered: by share, then as they stand."""
        owner = [
            next((share for share in range(self.shares) if self._new[share][index]), 0)
            for index in range(len(self.sequences))
        ]
        return sorted(range(len(self.sequences)), key=lambda index: (owner[index], index))

    # what is asked of it

    def scalars(self) -> dict[str, int]:
        """The extents that are dimensions, beside those that every holder binds."""
        rows = [sum(lens) for lens in self._lens]
        if self.mode == "decode":
            tokens = [sum(new) for new in self._new]
            return {names.ALL_TOKENS: sum(tokens), names.RETURNED: self.shares * tokens[self.share]}
        if self.mode == "ring":
            found = {names.share_rows(turn): rows[self._source(turn)] for turn in range(self.shares)}
        else:
            found = {
                names.share_rows(0): rows[self.share],
                names.GATHERED: sum(rows),
                names.CONTEXT_PAGES: max(1, sum(self._pages)),
                names.CONTEXT_COLUMNS: max([1, *self._pages]),
                names.PIECES: len(self._pieces),
            }
        if self.plan.has_states:
            found |= {names.hop(turn): len(indices) for turn, indices in enumerate(self._hops)}
            found[names.HERE] = len(self._here)
        return found

    def extents(self) -> Extents:
        """What the mode's instructions read, beside what every holder binds."""
        made: dict[str, Callable[[], Extents]] = {
            "ring": self._ring_extents,
            "allgather": self._allgather_extents,
            "decode": self._decode_extents,
        }
        found = {name: (size,) for name, size in self.scalars().items()} | made[self.mode]()
        if self.plan.has_states and self.mode != "decode":
            found |= self._state_extents()
        return found

    def inputs(self, pool: PagePool) -> Inputs:
        """What the host loads for them, by name."""
        if self.mode == "decode":
            return self._decode_inputs(pool)
        found = self._ring_inputs() if self.mode == "ring" else self._allgather_inputs()
        found["share_rows"] = self._share_rows(pool)
        if self.plan.has_states:
            found |= self._state_inputs(pool)
        return found

    def _seen_extents(self) -> Extents:
        return {
            names.seen(kind, turn): tuple(value for ranges in each for value in seen_of(ranges))
            for (kind, turn), each in self._visible.items()
        }

    def _ring_extents(self) -> Extents:
        rows = [sum(self._lens[self._source(turn)]) for turn in range(self.shares)]
        found: Extents = {"query_lens": self.portion.counts, **self._seen_extents()}
        for turn in range(self.shares):
            found[names.share_lens(turn)] = tuple(self._lens[self._source(turn)])
            if turn:
                found[f"sent.{turn}"] = self._towards(1, rows[turn - 1])
                found[f"received.{turn}"] = self._towards(-1, rows[turn])
        return found

    def _ring_inputs(self) -> Inputs:
        found: Inputs = {"query_lens": self.portion.counts}
        for turn in range(self.shares):
            lens = self._lens[self._source(turn)]
            found[names.share_lens(turn)] = lens
            found[f"share_starts.{turn}"] = np.cumsum([0, *lens])[:-1].reshape(-1, 1)
        for (kind, turn), ranges in self._visible.items():
            found[names.visible(kind, turn)] = np.concatenate([np.zeros((0, 2), int), *ranges])
        return found

    def _share_rows(self, pool: PagePool) -> Array:
        """The rows of the cache that this share holds of the step's sequences."""
        rows = [np.zeros(0, int)]
        for entry, length in zip(self.portion.entries, self._lens[self.share], strict=True):
            page, row = np.divmod(np.arange(length), pool.page_tokens)
            rows.append(np.array(pool.tables.get(entry.request, [0]), int)[page] * pool.page_tokens + row)
        return np.concatenate(rows)

    @cached_property
    def _pages(self) -> list[int]:
        """Pages of every sequence's whole context."""
        return [-(-one.stop // self.plan.page_tokens) for one in self.sequences]

    @cached_property
    def _pieces(self) -> list[tuple[int, range]]:
        """(entry, positions) of every run of positions that this share computes."""
        return [(index, span) for index, spans in enumerate(self.portion.spans) for span in spans]

    def _allgather_extents(self) -> Extents:
        return {
            "shares": tuple(sum(lens) for lens in self._lens),
            "piece_lens": tuple(len(span) for _, span in self._pieces),
            "context_lens": tuple(span.stop for _, span in self._pieces),
        }

    def _allgather_inputs(self) -> Inputs:
        first = np.cumsum([0, *self._pages])[:-1]
        tables = np.zeros((len(self._pieces), max([1, *self._pages])), int)
        for piece, (index, _) in enumerate(self._pieces):
            tables[piece, : self._pages[index]] = np.arange(first[index], first[index] + self._pages[index])
        rows = [np.zeros(0, int)]
        for share in range(self.shares):
            for index, one in enumerate(self.sequences):
                for span in one.own.spans(share, 0, one.stop):
                    rows.append(np.arange(span.start, span.stop) + first[index] * self.plan.page_tokens)
        return {
            "context_rows": np.concatenate(rows),
            "context_tables": tables,
            "piece_lens": [len(span) for _, span in self._pieces],
            "context_lens": [span.stop for _, span in self._pieces],
        }

    def _decode_extents(self) -> Extents:
        tokens = [sum(new) for new in self._new]
        return {
            "all_counts": tuple(tokens),
            "own_counts": (tokens[self.share],) * self.shares,
            "query_lens": tuple(self.sequences[index].stop - self.sequences[index].start for index in self._arrival),
            names.share_lens(0): tuple(self._lens[self.share][index] for index in self._arrival),
            **self._seen_extents(),
        }

    def _decode_inputs(self, pool: PagePool) -> Inputs:
        columns = self.plan.largest.extents["table_pages"][0]
        tables = np.zeros((len(self.sequences), columns), int)
        for at, index in enumerate(self._arrival):
            table = pool.tables.get(self.portion.entries[index].request, [])
            tables[at, : len(table)] = table
        found: Inputs = {
            "share_tables": tables,
            "query_lens": [self.sequences[index].stop - self.sequences[index].start for index in self._arrival],
            names.share_lens(0): [self._lens[self.share][index] for index in self._arrival],
        }
        for (kind, turn), ranges in self._visible.items():
            found[names.visible(kind, turn)] = np.concatenate([np.zeros((0, 2), int), *ranges])
        return found

    # states

    @cached_property
    def _hops(self) -> list[list[int]]:
        """By turn: the entries whose state comes to this share then. At the last turn it is at home again."""
        found: list[list[int]] = [[] for _ in range(self.shares)]
        for index, one in enumerate(self.sequences):
            if not one.is_here():
                found[(self.share - one.own.home - 1) % self.shares].append(index)
        return found

    @cached_property
    def _here(self) -> list[int]:
        """The entries that this share computes alone, from the state that it keeps."""
        return [index for index, one in enumerate(self.sequences) if one.is_here() and one.own.home == self.share]

    def _ends(self, indices: list[int]) -> tuple[int, ...]:
        """One past the last position that this share computes of each entry (its start where it computes none)."""
        spans = (self.portion.spans[index] for index in indices)
        return tuple(
            found[-1].stop if found else self.sequences[index].start
            for index, found in zip(indices, spans, strict=True)
        )

    def _state_extents(self) -> Extents:
        counts = self.portion.counts
        found: Extents = {}
        for turn, indices in [*enumerate(self._hops), (names.HERE, self._here)]:
            found[f"q_lens.{turn}"] = tuple(counts[index] for index in indices)
            found[f"kv_lens.{turn}"] = self._ends(indices)
        for turn, indices in enumerate(self._hops):
            found[f"passed.{turn}"] = self._towards(1, len(self._hops[turn - 1]))
            found[f"taken.{turn}"] = self._towards(-1, len(indices))
        return found

    def _state_inputs(self, pool: PagePool) -> Inputs:
        counts = self.portion.counts
        starts = np.cumsum([0, *counts])[:-1]
        found: Inputs = {"home_slots": self._slots(self._hops[-1], pool)}
        for turn, indices in [*enumerate(self._hops), (names.HERE, self._here)]:
            found[f"q_lens.{turn}"] = [counts[index] for index in indices]
            found[f"kv_lens.{turn}"] = self._ends(indices)
            found[f"starts.{turn}"] = [starts[index] for index in indices]
            found[f"slots.{turn}"] = self._slots(indices, pool) if turn == names.HERE else list(range(len(indices)))
        return found

    def _slots(self, indices: list[int], pool: PagePool) -> list[int]:
        return [pool.slots.get(self.portion.entries[index].request, 0) for index in indices]


def seen_of(ranges: Array) -> tuple[int, int, int]:
    """(queries that see anything, pairs, keys that some query sees) of ranges that only move forward."""
    sizes = ranges[:, 1] - ranges[:, 0]
    some = ranges[sizes > 0]
    if not len(some):
        return 0, 0, 0
    before = np.concatenate([some[:1, 0], some[:-1, 1]])
    keys = np.maximum(0, some[:, 1] - np.maximum(some[:, 0], before))
    return len(some), int(sizes.sum()), int(keys.sum())
