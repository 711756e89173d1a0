"""Rows that a card was fitted on, which say nothing of how true it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...emulator.calibration_file import read_rows
from ...emulator.spec import CardSpec
from ...isa.instruction import Array

NOTHING = np.array([], np.uint64)


def rows_seen(card_file: str, card: CardSpec) -> Array:
    """Hashes uint64 of the rows that the card of this file was fitted on; none for one that was not calibrated."""
    calibration = card.calibration
    return NOTHING if calibration is None else read_rows(Path(card_file), calibration)
