"""The cards at the ends of the wires: a real card's dispatch, HBM and reducing unit, or ideal ends at no cost."""

from __future__ import annotations

from functools import lru_cache

from ...emulator.spec import CardSpec, load_card, override

IDEAL = {
    "dispatch.link_ps": "0",
    "hbm.bandwidth_bytes_per_s": "1e18",
    "hbm.attainable_fraction": "1",
    "link.reduces_on": "dma",
    "dma.bytes_per_cycle": "1e12",
}
IDEAL_ENDS = (
    "ideal ends: no dispatch, HBM and reductions unbounded, so that only the wires cost (--card NAME counts them)"
)


@lru_cache(maxsize=1)
def ideal_card() -> CardSpec:
    """The reference card with nothing that a message could wait for at its ends."""
    return override(load_card("reference-npu"), IDEAL)


def ends(card: str | None) -> tuple[CardSpec, str]:
    """(the card at the ends, what the output says of it); ConfigError for an unknown card."""
    if card is None:
        return ideal_card(), IDEAL_ENDS
    spec = load_card(card)
    return spec, f"ends: {spec.name}, with its dispatch, its HBM and its {spec.link.reduces_on} unit that reduces"
