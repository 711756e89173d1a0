"""What reports are made of: frozen sections, figures with their units, and what can hold time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ..emulator.span import BOUNDS, Bound

Picoseconds = Annotated[int, Field(ge=0)]
NumBytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
PerSecond = Annotated[float, Field(ge=0)]


class Part(BaseModel):
    """A section of a report: frozen, no key but its own, no NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )


class Bounds(Part):
    """Picoseconds of critical card time, by what held them."""

    compute: Picoseconds = 0
    hbm: Picoseconds = 0
    sram: Picoseconds = 0
    link: Picoseconds = 0
    dispatch: Picoseconds = 0
    dependency: Picoseconds = 0
    host: Picoseconds = 0

    @classmethod
    def of(cls, held_ps: Sequence[int]) -> Bounds:
        """From picoseconds in the order of `BOUNDS`."""
        return cls(**dict(zip(BOUNDS, held_ps, strict=True)))

    @classmethod
    def together(cls, parts: Iterable[Bounds]) -> Bounds:
        """All of several added up."""
        known = list(parts)
        return cls(**{name: sum(getattr(part, name) for part in known) for name in BOUNDS})

    @property
    def total_ps(self) -> int:
        """All of it."""
        return sum(getattr(self, name) for name in BOUNDS)

    @property
    def largest(self) -> Bound | None:
        """What held most of the time (the earlier name among equals); None when there was none."""
        held_ps: dict[Bound, int] = {name: getattr(self, name) for name in BOUNDS}
        longest = max(held_ps, key=held_ps.__getitem__)
        return longest if held_ps[longest] else None
