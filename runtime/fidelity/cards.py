"""Which card stands for a device that was measured: the one asked for, or the device's own under the other's fit."""

from __future__ import annotations

from dataclasses import dataclass

from ...emulator.spec import CardSpec, load_card
from ...emulator.transfer import transferred
from ...isa.errors import ConfigError

KIND, TOOL = "tuning.", "siltwin calibrate: "
DATA_SHEET = "its data sheet, and assumed constants for what no data sheet states"


@dataclass(frozen=True)
class StandIn:
    """The card that is compared with a device's tables, and in words what its constants rest on."""

    card: CardSpec
    rests_on: str


def stand_in(device: str, asked: CardSpec | None) -> StandIn | None:
    """The card for tables of this device (a card's name or alias); None where nothing stands for it.

    Nothing asked: the shipped card. A card of that device itself stands for it. Constants that were fitted on another
    device go with the device's own data sheet; a card without such constants says nothing of other devices.
    """
    fit = "" if asked is None else _fit(asked)
    if asked is not None and device in (asked.name, *asked.aliases):
        return StandIn(asked, fit or DATA_SHEET)
    if asked is not None and not fit:
        return None
    try:
        shipped = load_card(device)
    except ConfigError:
        return None
    if asked is None:
        return StandIn(shipped, DATA_SHEET)
    if shipped.name == asked.name:
        return StandIn(asked, fit)
    return StandIn(transferred(shipped, asked), f"its data sheet, with what was fitted on {asked.name}: {fit}")


def _fit(card: CardSpec) -> str:
    """What a card's constants of kernels rest on where they were fitted, by kind; "" where all are defaults."""
    kinds = {path.removeprefix(KIND): found for path, found in card.evidence.items() if path.startswith(KIND)}
    return "; ".join(f"{kind} by {found.source.removeprefix(TOOL)}" for kind, found in kinds.items())
