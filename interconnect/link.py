"""One direction of one wire between two nodes, as a value and as users write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator, model_validator

from .evidence import Quantity

MAX_LATENCY_PS = 10**12  # a second: beyond it somebody wrote another unit
MAX_BANDWIDTH_BYTES_PER_S = 10**16
MAX_PACKET_BYTES = 1 << 30
Forwarding = Literal["cut_through", "store_and_forward"]


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link: bytes leave node `source` and reach node `target`.

    `forwarding` says what the target does with bytes that only pass through it. Cut-through: a transfer over several
    links flows on all of them at once, and their latencies add once. Store-and-forward: the target sends on what has
    arrived whole, the message, or packets of `packet_bytes` where it is not 0. `overhead_ps` is how long each message
    holds the link beside its bytes where it leaves a card. A link that is `down` carries nothing. `level` is that of a
    hierarchy, 0 innermost. The other direction is a link of its own, so full duplex is two links.
    """

    source: int
    target: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    name: str
    overhead_ps: int = 0
    forwarding: Forwarding = "cut_through"
    packet_bytes: int = 0
    down: bool = False
    level: int = 0


def _checked_bandwidth(quantity: Quantity | None) -> Quantity | None:
    if quantity is not None and not 1 <= quantity.value <= MAX_BANDWIDTH_BYTES_PER_S:
        raise ValueError(f"must be from 1 to {MAX_BANDWIDTH_BYTES_PER_S} bytes a second")
    return quantity


def _checked_latency(quantity: Quantity | None) -> Quantity | None:
    if quantity is not None and quantity.value > MAX_LATENCY_PS:
        raise ValueError(f"must be from 0 to {MAX_LATENCY_PS} picoseconds (a second)")
    return quantity


class LinkSpec(BaseModel):
    """What every link of a cluster, or of one of its levels or tiers, is like, a direction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bandwidth_bytes_per_s: Quantity
    latency_ps: Quantity
    overhead_ps: Quantity | None = None
    forwarding: Forwarding = "cut_through"
    packet_bytes: StrictInt = Field(default=0, ge=0, le=MAX_PACKET_BYTES)

    _bandwidth = field_validator("bandwidth_bytes_per_s")(_checked_bandwidth)
    _latency = field_validator("latency_ps", "overhead_ps")(_checked_latency)

    @model_validator(mode="after")
    def _packets_are_stored(self) -> LinkSpec:
        if self.packet_bytes and self.forwarding == "cut_through":
            raise ValueError("packet_bytes says what store_and_forward waits for; cut_through waits for nothing")
        return self

    def quantities(self) -> list[Quantity]:
        """The numbers that times depend on."""
        numbers = (self.bandwidth_bytes_per_s, self.latency_ps, self.overhead_ps)
        return [number for number in numbers if number is not None]

    def facts(self) -> tuple[int, int, int, Forwarding, int]:
        """Bandwidth, latency, overhead, forwarding and packet bytes, as a Link takes them."""
        overhead_ps = self.overhead_ps.value if self.overhead_ps else 0
        numbers = self.bandwidth_bytes_per_s.value, self.latency_ps.value, overhead_ps
        return *numbers, self.forwarding, self.packet_bytes


class LinkOverride(BaseModel):
    """One directed link, `source` to `target`, that differs from the others (a slow one, or one that is down)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: StrictInt = Field(ge=0)
    target: StrictInt = Field(ge=0)
    bandwidth_bytes_per_s: Quantity | None = None
    latency_ps: Quantity | None = None
    down: StrictBool = False

    _bandwidth = field_validator("bandwidth_bytes_per_s")(_checked_bandwidth)
    _latency = field_validator("latency_ps")(_checked_latency)

    @model_validator(mode="after")
    def _overrides_something(self) -> LinkOverride:
        if self.bandwidth_bytes_per_s is None and self.latency_ps is None and not self.down:
            raise ValueError("gives neither bandwidth_bytes_per_s nor latency_ps nor down, so it changes nothing")
        return self

    def quantities(self) -> list[Quantity]:
        """The numbers that times depend on."""
        return [number for number in (self.bandwidth_bytes_per_s, self.latency_ps) if number is not None]
