"""One direction of one wire between two nodes, as a value and as users write it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, StrictInt, field_validator, model_validator

from .evidence import Quantity

MAX_LATENCY_PS = 10**12  # a second: beyond it somebody wrote another unit
MAX_BANDWIDTH_BYTES_PER_S = 10**16


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link: bytes leave node `source` and reach node `target`.

    A link is cut-through: a transfer over several links flows on all of them at once, and their latencies add once.
    The other direction is a link of its own, so full duplex is two links.
    """

    source: int
    target: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    name: str


def _checked_bandwidth(quantity: Quantity | None) -> Quantity | None:
    if quantity is not None and not 1 <= quantity.value <= MAX_BANDWIDTH_BYTES_PER_S:
        raise ValueError(f"must be from 1 to {MAX_BANDWIDTH_BYTES_PER_S} bytes a second")
    return quantity


def _checked_latency(quantity: Quantity | None) -> Quantity | None:
    if quantity is not None and quantity.value > MAX_LATENCY_PS:
        raise ValueError(f"must be from 0 to {MAX_LATENCY_PS} picoseconds (a second)")
    return quantity


class LinkSpec(BaseModel):
    """What every link of a cluster is like, a direction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bandwidth_bytes_per_s: Quantity
    latency_ps: Quantity

    _bandwidth = field_validator("bandwidth_bytes_per_s")(_checked_bandwidth)
    _latency = field_validator("latency_ps")(_checked_latency)


class LinkOverride(BaseModel):
    """One directed link, `source` to `target`, that differs from the others (a slow one, say)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: StrictInt = Field(ge=0)
    target: StrictInt = Field(ge=0)
    bandwidth_bytes_per_s: Quantity | None = None
    latency_ps: Quantity | None = None

    _bandwidth = field_validator("bandwidth_bytes_per_s")(_checked_bandwidth)
    _latency = field_validator("latency_ps")(_checked_latency)

    @model_validator(mode="after")
    def _overrides_something(self) -> LinkOverride:
        if self.bandwidth_bytes_per_s is None and self.latency_ps is None:
            raise ValueError("gives neither bandwidth_bytes_per_s nor latency_ps, so it changes nothing")
        return self
