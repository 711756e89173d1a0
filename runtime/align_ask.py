"""AlignAsk: what an alignment is asked beside the job itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AlignAsk:
    """Switches of an alignment.

    `forced_routing` lets the reference's tokens take the experts that ours took, so that a flipped expert does not hide
    what comes after it.
    """

    forced_routing: bool = False


PLAIN = AlignAsk()
