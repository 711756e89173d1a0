"""A cache that counts bytes, not entries: a plan of a thousand members weighs as much as a million small ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class WeighedCache(Generic[Value]):
    """Keeps what was made while all of it weighs at most `max_bytes` on the host; the least recently used go first."""

    def __init__(self, max_bytes: int, weigh: Callable[[Value], int]) -> None:
        self._max_bytes, self._weigh = max_bytes, weigh
        self._held: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value under `key`, made now where there is none. The latest one is kept however heavy it is."""
        held = self._held.get(key)
        if held is not None:
            self._held.move_to_end(key)
            return held[0]
        value = make()
        weight = self._weigh(value)
        self._held[key] = (value, weight)
        self._num_bytes += weight
        while self._num_bytes > self._max_bytes and len(self._held) > 1:
            _, (_, gone) = self._held.popitem(last=False)
            self._num_bytes -= gone
        return value
