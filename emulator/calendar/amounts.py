"""What an activity asks of many resources: two columns of numbers that read as a tuple of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

Ints = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[int, int]


class Amounts(Sequence[Pair]):
    """(resource index, amount) of each, from int64 [n] columns that nobody writes to any more."""

    def __init__(self, resources: Ints, amounts: Ints) -> None:
        self.resources, self.amounts = resources, amounts

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """As a tuple."""
        return tuple(zip(self.resources.tolist(), self.amounts.tolist(), strict=True))

    @cached_property
    def key(self) -> bytes:
        """The same for the same amounts, and quicker to compare than all of them."""
        return self.resources.tobytes() + self.amounts.tobytes()

    def __len__(self) -> int:
        return len(self.resources)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Pair, ...]: ...
    def __getitem__(self, index: int | slice) -> Pair | tuple[Pair, ...]:
        return self.pairs[index]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Amounts):
            return self is other or self.key == other.key
        return self.pairs == other

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        return repr(self.pairs)


def columns_of(amounts: Sequence[Pair]) -> tuple[Ints, Ints]:
    """Resources and amounts as columns."""
    if isinstance(amounts, Amounts):
        return amounts.resources, amounts.amounts
    resources, many = np.array(amounts, np.int64).reshape(-1, 2).T.copy()
    return resources, many
