"""How routes are chosen: the policy that a cluster's routing follows, as users write it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, StrictInt, model_validator
from pydantic.fields import Field

Policy = Literal["shortest", "dimension_order", "ecmp", "by_destination"]
Metric = Literal["hops", "time"]


class Routing(BaseModel):
    """Which of the ways between two nodes bytes take; routes never use a link that is down.

    `policy`, among ways of least cost: `shortest` takes the lowest link ids; `ecmp` draws at each node by a hash of
    source, target and `seed`, as switches do, unless the shares of a transfer take all its links alike: then in turn;
    `by_destination` deals targets out in turn, as subnet managers do; `dimension_order` corrects one coordinate of a
    mesh or torus after the other, the first one first, each the shorter way round, and takes the shortest way where a
    link of that order is down.
    `metric`: the cost of a way is its number of links (`hops`; in a hierarchy the fewest of the outermost level, then
    of the next one inwards, and so on, so that what is near is reached by near links), or the time that a message of
    `message_bytes` takes, latencies and store-and-forward of all links added (`time`), so that routes go round slow
    links.
    `stripes`: every transfer is cut into so many equal shares that take neighbouring choices (several planes or rails).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Policy = "shortest"
    metric: Metric = "hops"
    message_bytes: StrictInt = Field(default=1 << 20, ge=1, le=1 << 40)
    stripes: StrictInt = Field(default=1, ge=1, le=64)
    seed: StrictInt = Field(default=0, ge=0, lt=1 << 63)

    @model_validator(mode="after")
    def _fits_together(self) -> Routing:
        if self.policy == "dimension_order" and (self.metric != "hops" or self.stripes != 1):
            raise ValueError("dimension_order is one way counted in hops; leave out metric and stripes")
        return self


SHORTEST = Routing()
