"""What reports are made of: frozen sections, figures with their units, and what can hold time."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

BoundName = Literal["compute", "hbm", "sram", "link", "dispatch", "dependency", "host"]
StepKind = Literal["prefill", "decode", "mixed"]
BOUNDS: tuple[BoundName, ...] = get_args(BoundName)

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

    @property
    def total_ps(self) -> int:
        """All of it."""
        return sum(getattr(self, name) for name in BOUNDS)

    @property
    def largest(self) -> BoundName | None:
        """What held most of the time (the earlier name among equals); None when there was none."""
        held_ps: dict[BoundName, int] = {name: getattr(self, name) for name in BOUNDS}
        longest = max(held_ps, key=held_ps.__getitem__)
        return longest if held_ps[longest] else None
