"""How true the cards are: errors on held-out groups before and after calibration, the page docs/fidelity.md.

`python benchmarks/fidelity_page.py DATA` prints the page, `--write` puts it into docs/fidelity.md with its plots.
DATA is a folder of measured tables, a folder a device, and `serving/` with tables of servers.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from siltwin.emulator.spec import CardSpec, load_card
from siltwin.runtime.calibration.calibrate import Ask, calibrate
from siltwin.runtime.calibration.splits import training_rows
from siltwin.runtime.calibration.tables import MeasuredTable, card_name_of, read_measured
from siltwin.runtime.fidelity.compare import compare_tables
from siltwin.runtime.fidelity.parity import plot_parity
from siltwin.runtime.fidelity.render import print_fidelity
from siltwin.runtime.fidelity.report import Comparison, FidelityReport
from siltwin.runtime.fidelity.serving_rows import ServingRow
from siltwin.runtime.fidelity.subsets import SUBSETS
from siltwin.runtime.fidelity.tpot import compare_servers, read_servers

DOCS = Path(__file__).parents[1] / "docs"
PLOTTED = ("h100-sxm-gemm_all", "h100-sxm-prefill_hd128", "h100-sxm-decode_hd128")
SEED, WIDTH = 0, 100
SHEET, POINTS, PHYSICS, FULL = "data sheet", "30 points", "physics fit", "full"
FITS = {POINTS: "points", PHYSICS: "physics", FULL: "full"}
WANTED = {  # mean errors in percent, as SHEET and FITS
    "gemm_all": ("25", "14", "9 (a100: 11)", "5"),
    "gemm_1k_16k": ("20", "8", "6", "4"),
    "prefill_hd128": ("35", "15", "8", "4"),
    "decode_hd128": ("35", "16", "12 (7)", "6"),
    "all_reduce_all": ("40", "15", "8", "6"),
    "tpot_dense": ("35", "-", "15", "10 (7)"),
}
INTRODUCTION = """# Fidelity: emulated times beside measured ones

Made by `make fidelity DATA=DIR`; do not edit by hand.

`siltwin fidelity --data DIR` compares what cards emulate with tables of measured times ([their
form](calibration.md)); this page is what it finds before and after `siltwin calibrate`, on tables of A100 and H100 of
ai-dynamo/aiconfigurator (Apache-2.0) and of public InferenceMAX runs.

- **Held out**: every figure of a fitted card is of groups of shapes that its fit never saw: a group is an (n, k) of a
  GEMM, the heads of an attention, the ranks and the size of a collective; a quarter of the groups, drawn by a seeded
  hash. The data sheet's figures are of the same rows.
- **data sheet**: the shipped card, whose constants of kernels are assumed, the same for all cards. **30 points**: they
  are fitted to 30 measured rows an operation. **physics fit**: to rows of all other groups, at most 12 constants an
  operation (6 for collectives). **full**: with the learned residual on top.
- Errors are |predicted / measured - 1| in percent: mean, and median in brackets. **floor** is how far repeated
  measurements lie from their own mean: nothing below it means anything. Two collections of the same H100 GEMMs differ
  by 4.6 %, two of collectives by 1.5 to 2 %.
- A row is one instruction alone on one card, as the program of a model would hold it, or a collective of a node.
- A server's row is one emulated step of the whole model and what [the framework adds](end-to-end.md). All servers of
  the device are shown; the frameworks' few constants were fitted to them, and that page tells the errors on servers
  that they were not fitted to.
"""


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(found: Comparison | None) -> str:
    """Mean and median in percent."""
    if found is None:
        return "-"
    return f"{100 * found.score.mean_ape:.1f} ({100 * found.score.median_ape:.1f})"


def held_out(tables: Sequence[MeasuredTable]) -> list[MeasuredTable]:
    """The rows of every table that no fit sees."""
    parts = (table.take(~training_rows(table, SEED)) for table in tables)
    return [part for part in parts if len(part)]


class Device:
    """A measured device: its shipped card, the fitted ones by their names on this page, and what each of them shows."""

    def __init__(self, card: CardSpec, tables: Sequence[MeasuredTable], servers: Sequence[ServingRow]) -> None:
        self.name, self.cards = card.name, {SHEET: card}
        self.servers = [row for row in servers if card_name_of(row.system) == card.name]
        self.judged = held_out(tables)
        for name, fit in FITS.items():
            say(f"{card.name}: {name}")
            self.cards[name] = calibrate(card, tables, Ask(fit=fit, seed=SEED, all_rows=False)).card
        self.reports = {name: self.report(fitted) for name, fitted in self.cards.items()}

    def report(self, card: CardSpec) -> FidelityReport:
        """The held-out rows, and all servers of this device."""
        say(f"{card.name}: comparing")
        found = compare_tables(self.judged, card)
        notes = list(found.notes)
        return FidelityReport((*found.comparisons, *compare_servers(self.servers, card, notes)), tuple(notes))

    def found(self, name: str, subset: str) -> Comparison | None:
        """What a card shows in a subset."""
        return next((each for each in self.reports[name].comparisons if each.subset == subset), None)


def score_rows(devices: Sequence[Device]) -> Iterator[Sequence[str]]:
    """What is wanted of every subset, and a line for every device: its cards beside each other."""
    for subset in SUBSETS:
        yield subset.name, "wanted", "", *WANTED[subset.name], ""
        for device in devices:
            sheet = device.found(SHEET, subset.name)
            if sheet is None:
                continue
            floor = "-" if sheet.floor is None else f"{100 * sheet.floor:.1f}"
            cells = [cell(device.found(name, subset.name)) for name in (SHEET, *FITS)]
            yield "", device.name, f"{sheet.score.n:,}", *cells, floor


def transfer_rows(
    devices: Sequence[Device], tables: Sequence[MeasuredTable], servers: Sequence[ServingRow]
) -> Iterator[Sequence[str]]:
    """A line for every subset of a device under another's physics fit."""
    for source in devices:
        say(f"the fit of {source.name} on other devices")
        fitted = source.cards[PHYSICS]
        others = compare_tables([t for t in tables if t.card_name != source.name], fitted).comparisons
        unmeasured = [row for row in servers if card_name_of(row.system) not in [device.name for device in devices]]
        for each in (*others, *compare_servers(unmeasured, fitted, [])):
            yield each.subset, each.card, source.name, f"{each.score.n:,}", cell(each)


def as_text(report: FidelityReport) -> str:
    """What `siltwin fidelity` prints."""
    stream = io.StringIO()
    print_fidelity(report, Console(file=stream, width=WIDTH, markup=False, highlight=False, emoji=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def page(devices: Sequence[Device], tables: Sequence[MeasuredTable], servers: Sequence[ServingRow]) -> Iterator[str]:
    """The parts of the page."""
    yield INTRODUCTION
    yield "## Held-out groups\n"
    means = [f"- {subset.name}: {subset.means}" for subset in SUBSETS]
    yield "\n".join(means) + "\n"
    yield markdown(("subset", "card", "rows", SHEET, *FITS, "floor"), score_rows(devices))
    yield "## A card that was never measured\n"
    yield "Its own data sheet, with the constants of another card's physics fit; all rows.\n"
    yield markdown(("subset", "card", "fitted on", "rows", "mean (median)"), transfer_rows(devices, tables, servers))
    yield "## Predicted against measured\n"
    yield "The physics fits on held-out groups.\n"
    yield "\n".join(f"![{name}](fidelity/{name}.png)" for name in PLOTTED) + "\n"
    for device in devices:
        yield f"```text\n{as_text(device.reports[PHYSICS])}\n```\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true", help="into docs/, with the plots")
    asked = parser.parse_args()
    tables, servers = read_measured(asked.data), read_servers(asked.data, [])
    devices = []
    for name in dict.fromkeys(table.card_name for table in tables):
        own = [table for table in tables if table.card_name == name]
        devices.append(Device(load_card(name), own, servers))
    text = "\n".join(page(devices, tables, servers))
    if not asked.write:
        print(text)
        return
    (DOCS / "fidelity.md").write_text(text)
    plots = DOCS / "fidelity"
    plots.mkdir(exist_ok=True)
    for device in devices:
        for path in plot_parity(device.reports[PHYSICS], str(plots)):
            if path.stem not in PLOTTED:
                path.unlink()


if __name__ == "__main__":
    main()
