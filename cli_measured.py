"""The commands about measured times: `siltwin fidelity`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .cli_show import show


@click.command()
@click.option("--card", metavar="NAME|FILE.yaml", help="Only this card (default: the shipped card of each device).")
@click.option("--data", required=True, metavar="DIR", help="Measured tables, a folder a device; see docs/fidelity.md.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the scores as a JSON list; - is stdout.")
@click.option("--plots", "plots_to", metavar="DIR", help="Write parity plots as PNG (needs siltwin[plot]).")
def fidelity(card: str | None, data: str, json_to: str | None, plots_to: str | None) -> None:
    """Compare emulated times with measured ones: errors by operation and size, the noise of measuring beside them."""
    from .runtime.fidelity.parity import check_folder, plot_parity
    from .runtime.files import check_outputs

    check_outputs(json_to)
    check_folder(plots_to)
    from .emulator.spec import load_card
    from .runtime.fidelity.compare import compare
    from .runtime.fidelity.render import print_fidelity
    from .runtime.progress import DelayedProgress

    with DelayedProgress(sys.stderr, "reading the tables") as progress:
        report = compare(Path(data), None if card is None else load_card(card), progress=progress)
    if plots_to is not None:
        plot_parity(report, plots_to)
    show(report, print_fidelity, json_to)
