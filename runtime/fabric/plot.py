"""Pictures: the bench's curves, and a cluster's drawing as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...isa.errors import ConfigError
from ..figures import figure_of
from .draw import Drawing, speed

if TYPE_CHECKING:
    from .bench import BenchReport  # the emulator, which drawing a cluster does without

ENDINGS = (".png", ".pdf", ".svg")


def check_picture(path: str | None, endings: Sequence[str] = ENDINGS) -> None:
    """Before any work: the file's ending is known and matplotlib is there."""
    if path is None:
        return
    if Path(path).suffix.lower() not in endings:
        raise ConfigError(f"{path!r} is no picture that can be written; end it in {' or '.join(endings)}")
    figure_of(1, 1)


def plot_bench(report: BenchReport, path: str) -> None:
    """Time and bus bandwidth over size, a line for each algorithm that was emulated."""
    figure = figure_of(8, 8)
    time_axes, bandwidth_axes = figure.subplots(2, 1, sharex=True)
    curves = report.others or {report.rows[0].choice.algorithm: report.rows}
    for name, rows in curves.items():
        sizes = [row.message.size_bytes for row in rows]
        time_axes.plot(sizes, [row.time_ps / 1e6 for row in rows], marker="o", markersize=3, label=name)
        bandwidth_axes.plot(sizes, [row.busbw_bytes_per_s / 1e9 for row in rows], marker="o", markersize=3, label=name)
    for found in report.crossovers:
        for axes in (time_axes, bandwidth_axes):
            axes.axvline(found.size_bytes, color="0.7", linewidth=1)
    time_axes.set_ylabel("time (us)")
    if any(row.time_ps for rows in curves.values() for row in rows):  # one rank alone takes no time
        time_axes.set_yscale("log")
    bandwidth_axes.set(xscale="log", xlabel="size (bytes)", ylabel="busbw (GB/s)")
    bandwidth_axes.set_xscale("log", base=2)
    time_axes.set_title(f"{report.collective.name} on {report.cluster.name}, {len(report.group)} ranks")
    time_axes.legend()
    figure.savefig(path, dpi=150)


def plot_cluster(drawing: Drawing, path: str) -> None:
    """The same drawing as the SVG."""
    xs, ys = [x for x, _ in drawing.points], [-y for _, y in drawing.points]
    width = min(60.0, max(5.0, (max(xs) - min(xs)) / 60 + 2))
    height = min(40.0, max(4.0, (max(ys) - min(ys)) / 60 + 2))
    figure = figure_of(width, height)
    axes = figure.subplots()
    for wire in drawing.wires:
        ends = (wire.source, wire.target)
        style = ":" if wire.down else "-"
        if drawing.arcs and wire.target < drawing.cards:
            arc = {
                "arrowstyle": "-",
                "color": drawing.colour(wire),
                "connectionstyle": "arc3,rad=0.3",
                "linestyle": style,
            }
            axes.annotate("", (xs[ends[1]], ys[ends[1]]), (xs[ends[0]], ys[ends[0]]), arrowprops=arc)
        else:
            axes.plot([xs[n] for n in ends], [ys[n] for n in ends], style, color=drawing.colour(wire), linewidth=0.7)
        if wire.down:  # its way back may be up, and hide the dots
            axes.plot(*([(place[ends[0]] + place[ends[1]]) / 2] for place in (xs, ys)), "x", color="#b00020", zorder=3)
    cards = drawing.cards
    axes.scatter(xs[:cards], ys[:cards], s=120, color="#e8f0f4", edgecolor="#333", zorder=3)
    axes.scatter(xs[cards:], ys[cards:], s=140, marker="s", color="#f6ead8", edgecolor="#333", zorder=3)
    for node, place in enumerate(zip(xs, ys, strict=True)):
        axes.annotate(
            str(node) if node < cards else f"s{node - cards}", place, ha="center", va="center", fontsize=6, zorder=4
        )
    for bandwidth in drawing.speeds:
        wire = next(wire for wire in drawing.wires if wire.bandwidth_bytes_per_s == bandwidth)
        axes.plot([], [], color=drawing.colour(wire), label=f"{speed(bandwidth)} a link and direction")
    axes.set_title(drawing.title)
    if drawing.speeds:
        figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    axes.axis("off")
    axes.margins(0.05)
    figure.savefig(path, dpi=120)
