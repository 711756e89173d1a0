"""Servers of whole models: the time per output token of every measured configuration beside the emulated one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ...emulator.spec import CardSpec
from ..calibration.tables import card_name_of
from .cards import StandIn, stand_in
from .report import Comparison
from .serving import PS_PER_MS, predicted_tpot_ms
from .serving_rows import ServingRow, measured_serving

FOLDER = "serving"


def read_servers(data: Path, notes: list[str]) -> list[ServingRow]:
    """The servers of dense models in `serving/*.csv` of a folder; what was left out is told in `notes`."""
    return [row for path in sorted((data / FOLDER).glob("*.csv")) for row in measured_serving(path, notes)]


def compare_servers(rows: Sequence[ServingRow], asked: CardSpec | None, notes: list[str]) -> Iterator[Comparison]:
    """Servers by device, on the cards that stand for them; what was left out is told in `notes`."""
    for system in dict.fromkeys(row.system for row in rows):
        chosen = stand_in(card_name_of(system), asked)
        if chosen is None:
            notes.append(f"{FOLDER}: servers of {system} left out, as no card that is compared stands for them")
        else:
            yield from _comparison([row for row in rows if row.system == system], chosen, notes)


def _comparison(rows: list[ServingRow], chosen: StandIn, notes: list[str]) -> Iterator[Comparison]:
    predicted_ms = predicted_tpot_ms(rows, lambda system: chosen.card)
    fitting = np.isfinite(predicted_ms)
    if not fitting.all():
        notes.append(
            f"{FOLDER}: {(~fitting).sum()} servers left out, as they do not fit the memory of {chosen.card.name}"
        )
    if not fitting.any():
        return
    measured_ms = np.array([row.tpot_ms for row in rows])[fitting]
    yield Comparison(
        card=chosen.card.name,
        op="tpot",
        subset="tpot_dense",
        library="",
        rests_on=chosen.rests_on,
        columns={"batch_size": np.array([row.concurrency for row in rows])[fitting]},
        predicted_ps=predicted_ms[fitting] * PS_PER_MS,
        measured_ps=measured_ms * PS_PER_MS,
        weights=np.ones(len(measured_ms)),
        floor=None,
    )
