"""The commands about measured times: `siltwin calibrate` and `siltwin fidelity`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .cli_show import show
from .isa.errors import ConfigError

if TYPE_CHECKING:
    from .emulator.calibrated import Fit
    from .emulator.spec import CardSpec


@click.command()
@click.option("--card", metavar="NAME|FILE.yaml", help="Only this card (default: the shipped card of each device).")
@click.option("--data", required=True, metavar="DIR", help="Measured tables, a folder a device; see docs/fidelity.md.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the scores as a JSON list; - is stdout.")
@click.option("--plots", "plots_to", metavar="DIR", help="Write parity plots as PNG (needs siltwin[plot]).")
@click.option("--training-rows", is_flag=True, help="Compare rows too that the card was calibrated on.")
def fidelity(card: str | None, data: str, json_to: str | None, plots_to: str | None, training_rows: bool) -> None:
    """Compare emulated times with measured ones: errors by operation and size, the noise of measuring beside them."""
    from .runtime.fidelity.parity import check_folder, plot_parity
    from .runtime.files import check_outputs

    check_outputs(json_to)
    check_folder(plots_to)
    from .emulator.spec import load_card
    from .runtime.fidelity.compare import compare
    from .runtime.fidelity.render import print_fidelity
    from .runtime.fidelity.seen import NOTHING, rows_seen
    from .runtime.progress import DelayedProgress

    asked = None if card is None else load_card(card)
    seen = NOTHING if card is None or asked is None or training_rows else rows_seen(card, asked)
    with DelayedProgress(sys.stderr, "reading the tables") as progress:
        report = compare(Path(data), asked, seen, progress)
    if plots_to is not None:
        plot_parity(report, plots_to)
    show(report, print_fidelity, json_to)


@click.command()
@click.option("--card", required=True, metavar="NAME|FILE.yaml", help="The card to calibrate, by its data sheet.")
@click.option("--data", metavar="DIR", help="Measured tables of that card; see docs/calibration.md.")
@click.option("--fit", type=click.Choice(["points", "physics", "full"]), default="physics", help="How far to fit.")
@click.option("--points", type=click.IntRange(1), default=30, metavar="N", help="Points a kind for --fit points (30).")
@click.option("--seed", type=click.IntRange(0), default=0, metavar="S", help="Of the split into groups (0).")
@click.option("--kernels", metavar="NAME", help="Whose attention tables to fit (default: the card's; vllm, trtllm).")
@click.option("--from", "carried", metavar="FILE.yaml", help="Begin with the constants fitted on another card.")
@click.option(
    "--suggest", type=click.IntRange(1, 10_000), metavar="N", help="Write N points a kind to measure into folder -o."
)
@click.option("--convert", metavar="FILE.csv", help="Write an export of msprof or Nsight Systems as tables into -o.")
@click.option("-o", "--output", required=True, metavar="FILE.yaml|DIR", help="The calibrated card's file.")
def calibrate(
    card: str,
    data: str | None,
    fit: Fit,
    points: int,
    seed: int,
    kernels: str | None,
    carried: str | None,
    suggest: int | None,
    convert: str | None,
    output: str,
) -> None:
    """Fit a card's constants to measured times, and say how far the result errs on rows that the fit did not see."""
    from .emulator.spec import load_card
    from .emulator.transfer import transferred
    from .runtime.calibration.write import check_card_file, write_card

    spec = load_card(card)
    if carried is not None:
        spec = transferred(spec, load_card(carried))
    if suggest is not None or convert is not None:
        _tables(spec, suggest, convert, seed, output)
        return
    check_card_file(output)
    if data is not None:
        _fit(spec, Path(data), fit, points, seed, kernels, output)
    elif carried is not None:
        write_card(output, spec)
    else:
        raise ConfigError("nothing to calibrate with: give --data DIR, or --from FILE.yaml, or --suggest N")


def _tables(spec: CardSpec, suggest: int | None, convert: str | None, seed: int, output: str) -> None:
    """Write a folder of tables: points to measure, or what a profiler measured."""
    from .runtime.calibration.profiles import converted
    from .runtime.calibration.suggest import suggested
    from .runtime.calibration.write import write_tables

    tables = suggested(spec, suggest, seed) if suggest is not None else converted(Path(convert or ""))
    for name in write_tables(output, spec, tables):
        click.echo(name)


def _fit(spec: CardSpec, data: Path, fit: Fit, points: int, seed: int, kernels: str | None, output: str) -> None:
    from .runtime.calibration.calibrate import Ask, calibrate
    from .runtime.calibration.render import print_calibrated
    from .runtime.calibration.tables import read_measured
    from .runtime.calibration.write import write_calibrated
    from .runtime.progress import DelayedProgress
    from .runtime.terminal import console_for

    with DelayedProgress(sys.stderr, "reading the tables") as progress:
        ask = Ask(fit, points, seed, kernels or spec.kernels)
        found = calibrate(spec, read_measured(data), ask, lambda text: progress(0, None, text))
    write_calibrated(output, found)
    print_calibrated(found, console_for(sys.stdout))
