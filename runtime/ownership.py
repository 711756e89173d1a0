"""Ownership: which context-parallel share computes and holds each position of a request, and where it stands there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..isa.instruction import Array, split_even

KEPT = 1 << 12  # lengths that an ownership remembers, and ownerships that are


def pieces(start: int, count: int, shares: int, home: int, contiguous: bool) -> list[tuple[int, int, int]]:
    """(start, stop, share) of the pieces that `count` new tokens from position `start` on are cut in; some are empty.

    Where states pass from share to share the pieces are contiguous, one a share around the ring, the last one at
    `home`, which keeps the state; where they do not divide the last ones are longer. Else there are two a share, the
    n-th and the n-th from the end: causal attention then takes as long on every share.
    """
    if contiguous:
        sizes = [size for _, size in reversed(split_even(count, shares))]
        owners = [(home + 1 + piece) % shares for piece in range(shares)]
    else:
        sizes = [size for _, size in split_even(count, 2 * shares)]
        owners = [(home + min(piece, 2 * shares - 1 - piece)) % shares for piece in range(2 * shares)]
    found = []
    for size, owner in zip(sizes, owners, strict=True):
        found.append((start, start + size, owner))
        start += size
    return found


@dataclass(frozen=True, eq=False)
class Ownership:
    """The positions of one request, in runs that one share owns: run i is positions starts[i] to starts[i + 1] - 1.

    A share holds its positions in order; `held[share, i]` counts those before run i. `home` is the share that keeps
    the request's states.
    """

    home: int
    starts: Array
    owners: Array
    held: Array

    def count(self, share: int, position: int) -> int:
        """How many positions below `position` a share owns: its row of the first one at or after it."""
        return self.below(position)[share]

    def below(self, position: int) -> tuple[int, ...]:
        """The same of every share; kept, for sequences of one length ask it again and again."""
        found = self._below.get(position)
        if found is None:
            if len(self._below) >= KEPT:
                self._below.clear()
            at = np.array([position])
            found = self._below[position] = tuple(int(self.counts(share, at)[0]) for share in range(len(self.held)))
        return found

    @cached_property
    def _below(self) -> dict[int, tuple[int, ...]]:
        return {}

    def counts(self, share: int, positions: Array) -> Array:
        """The same of many positions, int64."""
        run = np.searchsorted(self.starts, positions, "right") - 1
        inside = np.minimum(run, len(self.owners) - 1)
        own = (self.owners[inside] == share) & (run < len(self.owners))
        return np.asarray(self.held[share, run] + own * (positions - self.starts[run]))

    def spans(self, share: int, start: int, stop: int) -> tuple[range, ...]:
        """The positions from `start` to `stop` - 1 that a share owns, as ranges in order."""
        first = int(np.searchsorted(self.starts, start, "right")) - 1
        found: list[range] = []
        for run in range(max(first, 0), len(self.owners)):
            if self.starts[run] >= stop:
                break
            if self.owners[run] == share:
                span = range(max(start, int(self.starts[run])), min(stop, int(self.starts[run + 1])))
                if span:
                    found.append(span)
        return tuple(found)


@lru_cache(maxsize=KEPT)
def ownership(
    cuts: tuple[tuple[int, int], ...], most: int, shares: int, home: int, has_states: bool, page_tokens: int
) -> Ownership:
    """Who owns the positions of a request up to `most`.

    `cuts` are the (start, count) of its entries of cached and prompt tokens, in order. Every token that is generated
    after them goes to the home share where a state stands there, else to each share in turn for a page's tokens.
    """
    runs = [run for cut in cuts for run in pieces(*cut, shares, home, has_states)]
    end = sum(cuts[-1]) if cuts else 0
    if has_states:
        runs.append((end, max(end, most), home))
    else:
        runs += [
            (start, min(start + page_tokens, most), (home + turn) % shares)
            for turn, start in enumerate(range(end, most, page_tokens))
        ]
    runs = [run for run in runs if run[1] > run[0]] or [(0, 0, home)]
    starts = np.array([*(run[0] for run in runs), runs[-1][1]], np.int64)
    owners = np.array([run[2] for run in runs], np.int64)
    sizes = np.diff(starts)
    held = np.zeros((shares, len(starts)), np.int64)
    for share in range(shares):
        held[share, 1:] = np.cumsum(sizes * (owners == share))
    return Ownership(home, starts, owners, held)
