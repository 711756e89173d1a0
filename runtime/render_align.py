"""An alignment as text on a terminal: every layer, the routers, what lies beside, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from .render import job_line
from .report_align import AlignReport, DriftPart, Flip, RoutingReport
from .terminal import bullets, plain, scientific, table
from .watch import describe


def print_align(report: AlignReport, console: Console) -> None:
    """Every layer against the reference, and the verdict."""
    for part in _parts(report):
        console.print(part)


def _parts(report: AlignReport) -> Iterator[RenderableType]:
    yield job_line(report) + Text(plain(f" against {report.reference}, {report.positions:,} positions"))
    yield from bullets("Not modelled", report.not_modelled, "dim")
    logits = report.logits
    rows = [*((row.name, row) for row in report.layers), ("logits", logits)]
    yield ""
    yield drift_table("Layer by layer", rows)
    if report.routing is not None:
        yield from _routing(report.routing)
    yield ""
    yield Text(f"KL {scientific(logits.kl)}, argmax agreement {100 * logits.argmax_agreement:.2f} %")
    if report.not_finite is not None:
        yield Text(plain(f"Not finite: {describe(report.not_finite)}"), style="bold red")
    yield Text(plain(f"First layer that drifts: {report.first_drift or 'none'}"))
    aligned = report.verdict == "aligned"
    yield Text(
        plain(f"{report.verdict.upper()}: tolerance {report.tolerance:g}, {report.tolerance_of}"),
        style="bold green" if aligned else "bold red",
    )
    yield from bullets("Warnings", report.warnings, "yellow")


def drift_table(title: str, rows: Sequence[tuple[str, DriftPart]]) -> RenderableType:
    """Parts against the reference, a row each, with rounding's own effect where it was measured."""
    measured = any(part.noise_max_rel is not None for _, part in rows)
    noise = ("rms rel", "rounding's\nmax", "its rms") if measured else ()
    cells = [(name, *_drift_cells(part, measured)) for name, part in rows]
    return table(title, ("layer", "max abs", "max rel", "cosine", *noise), cells)


def _cosine(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.8f}"


def _drift_cells(row: DriftPart, with_noise: bool) -> tuple[str, ...]:
    cells = (scientific(row.max_abs), scientific(row.max_rel), _cosine(row.cosine))
    noise = (row.rms_rel, row.noise_max_rel, row.noise_rms_rel) if with_noise else ()
    return (*cells, *(scientific(value) if value is not None else "-" for value in noise))


def _routing(routing: RoutingReport) -> Iterator[RenderableType]:
    """The routers that chose otherwise than the reference's, and the first tokens that did."""
    how = "forced on the reference" if routing.forced else "each side its own"
    title = f"Experts ({how}): {routing.flips:,} of {routing.tokens:,} tokens a layer took others"
    yield ""
    flipped = [part for part in routing.layers if part.flips]
    if not flipped and not routing.forced:
        yield Text(f"{title}", style="bold")
        return
    shown = routing.layers if routing.forced else flipped
    rows = [
        (part.name, f"{part.flips:,}", f"{part.unexplained:,}", _margin(part.largest_margin, part.flips))
        + (scientific(part.max_rel), scientific(part.rms_rel))
        for part in shown
    ]
    columns = ("router", "flips", "unexplained", "largest\nmargin", "logits\nmax rel", "logits\nrms rel")
    yield table(title, columns, rows)
    if flipped and flipped[0].first is not None:
        yield Text(plain(f"First flip: {flip_text(flipped[0].first)}"))


def _margin(margin: float | None, flips: int) -> str:
    return "-" if not flips else scientific(margin)


def flip_text(flip: Flip) -> str:
    """A flip in one sentence."""
    ours, theirs = (", ".join(map(str, experts)) for experts in (flip.ours, flip.reference))
    why = "explained by its logits' errors" if flip.explained else "NOT explained by its logits' errors"
    return (
        f"layer {flip.layer}, request {flip.request}, position {flip.position}: expert {ours} in place of {theirs}, "
        f"margin {scientific(flip.margin)}, {why}"
    )
