"""Parity plots by matplotlib: predicted against measured, a picture a card and operation, coloured by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...isa.errors import ConfigError
from ..figures import figure_of
from .report import Comparison, FidelityReport
from .sizes import SIZES

DOTS = 20_000
MARGINS = (0.1, 0.25)


def check_folder(path: str | None) -> None:
    """Before any work: the folder is there or can be made, and matplotlib is installed."""
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write into --plots {path!r}: {error.strerror or error}; name a folder") from None
    figure_of(1, 1)


def plot_parity(report: FidelityReport, folder: str) -> tuple[Path, ...]:
    """Write `<card>-<subset>.png` for every comparison; the files written."""
    written = []
    for found in report.comparisons:
        path = Path(folder) / f"{found.card}-{found.subset}.png"
        try:
            _picture(found).savefig(path, dpi=110)
        except OSError as error:
            raise ConfigError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
        written.append(path)
    return tuple(written)


def _picture(found: Comparison) -> Any:
    figure = figure_of(6.4, 6)
    axes = figure.subplots()
    every = max(1, -(-len(found.measured_ps) // DOTS))  # a plot of all rows shows no more than one of some
    measured_us, predicted_us = found.measured_ps[::every] / 1e6, found.predicted_ps[::every] / 1e6
    for name, mask in SIZES[found.op].rungs({key: column[::every] for key, column in found.columns.items()}):
        if mask.any():
            axes.plot(measured_us[mask], predicted_us[mask], ".", markersize=3, alpha=0.5, label=name)
    ends = np.array([min(measured_us.min(), predicted_us.min()), max(measured_us.max(), predicted_us.max())])
    axes.plot(ends, ends, color="0.2", linewidth=1)
    for margin in MARGINS:
        for factor in (1 + margin, 1 / (1 + margin)):
            axes.plot(ends, ends * factor, color="0.6", linewidth=0.7, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="measured (us)", ylabel="predicted (us)")
    axes.set_title(f"{found.card} {found.subset}: mean {found.score.mean_ape:.1%}, median {found.score.median_ape:.1%}")
    axes.legend(title=SIZES[found.op].name, markerscale=3, fontsize="small")
    return figure
