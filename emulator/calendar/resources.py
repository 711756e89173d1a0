"""Resources that activities share: their kinds, their power-of-two scale and their state in a calendar."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...isa.errors import ConfigError

if TYPE_CHECKING:
    from .activity import Running
    from .resource_columns import Resources

Ints = np.ndarray[Any, np.dtype[Any]]

# The order in which kinds are asked for an activity's share resource: its links first, then memory, then its unit.
SHARE_ORDER: dict[str, int] = {"link": 0, "hbm": 1, "host": 1, "unit": 2}

SCALED_BITS = 36  # a scaled capacity lies in [2^35, 2^36): fine enough for 1 part in 10^10, small enough to add up
COEFFICIENT_BITS = 16  # coefficients are in units of 2^-16, and so a resource's room is its scaled capacity << 16
ROOM_LIMIT = 1 << 63  # rooms, and the sum of coefficient * bound over a resource's members, are int64
UNBOUNDED = ROOM_LIMIT - 1  # the room, in tables, of a resource without a capacity


def scaled(per_s: int, shift: int) -> int:
    """A rate or capacity times 2^shift, rounded down."""
    return per_s << shift if shift >= 0 else per_s >> -shift


class Resource:
    """One capacity of the machine, and how much the activities whose flowing part uses it now, `members`, ask of it.

    `shift` is the power-of-two scale, chosen from the first capacity (scaled: `nominal`) and fixed for the run; `room`
    is the scaled capacity << 16, or None for an unbounded resource. `load` is the sum of coefficient * bound over the
    members: while it does not exceed `room` the resource holds nobody back. `coupled`: whether it did at the last
    division.
    """

    __slots__ = (
        "index", "name", "kind", "order", "exclusive", "shift", "nominal_per_s", "nominal", "capacity_per_s", "room",
        "load", "coupled", "dirty", "members", "owner",
    )  # fmt: skip

    def __init__(self, index: int, name: str, capacity_per_s: int | None, kind: str, exclusive: bool) -> None:
        if kind not in SHARE_ORDER:
            raise ConfigError(f"resource {name!r}: unknown kind {kind!r}; known: {', '.join(sorted(SHARE_ORDER))}")
        if exclusive and kind != "unit":
            raise ConfigError(f"resource {name!r}: only a unit can be exclusive, and this is of kind {kind!r}")
        self.index, self.name, self.kind, self.exclusive = index, name, kind, exclusive
        self.order, self.nominal = SHARE_ORDER[kind], 0
        self.load = 0
        self.coupled = self.dirty = False
        self.members = 0
        self.owner: Running | None = None
        self.shift = 0
        self.capacity_per_s = self.nominal_per_s = capacity_per_s
        self.room: int | None = None
        if capacity_per_s is not None:
            if type(capacity_per_s) is not int or capacity_per_s < 1:
                raise ConfigError(
                    f"resource {name!r}: capacity_per_s={capacity_per_s!r} must be an int of at least 1, or "
                    "None for an unbounded one; add a dead one with its nominal capacity, then set that to 0"
                )
            self.shift = SCALED_BITS - capacity_per_s.bit_length()
            self.nominal = scaled(capacity_per_s, self.shift)
            self.set_capacity(capacity_per_s)

    def set_capacity(self, capacity_per_s: int) -> None:
        """Change the capacity (cycles or bytes a second, 0 is dead); the scale stays."""
        if self.nominal_per_s is None:
            raise ConfigError(f"resource {self.name!r} is unbounded; give it a capacity when it is added")
        if type(capacity_per_s) is not int or capacity_per_s < 0:
            raise ConfigError(f"resource {self.name!r}: capacity_per_s={capacity_per_s!r} must be an int, 0 or more")
        room = scaled(capacity_per_s, self.shift) << COEFFICIENT_BITS
        if room >= ROOM_LIMIT:
            raise ConfigError(
                f"resource {self.name!r}: capacity_per_s={capacity_per_s} is over 2,048 times the {self.nominal_per_s} "
                "it was added with, which sets its scale; add it with a capacity of the size it will have"
            )
        self.capacity_per_s, self.room = capacity_per_s, room

    def __repr__(self) -> str:
        return f"<Resource {self.index} {self.name!r} ({self.kind}) {self.capacity_per_s}/s>"


def room_of(resource: Resource) -> int:
    """What a resource can give, in scaled capacity << 16."""
    return UNBOUNDED if resource.room is None else resource.room


class ResourceTable(Protocol):
    """Where cards and links enter what activities share."""

    @property
    def resources(self) -> Resources:
        """All of them, by index."""

    def add_resource(self, name: str, capacity_per_s: int | None, kind: str, exclusive: bool = False) -> int:
        """Add a resource and return its index."""

    def add_resources(self, name_of: Callable[[int], str], capacities_per_s: Ints, kind: str) -> range:
        """Enter many bounded ones of one kind and return their indices; names by their place among them."""

    def set_capacity(self, resource: int, capacity_per_s: int) -> None:
        """Change a capacity from now on, 0 for dead."""
