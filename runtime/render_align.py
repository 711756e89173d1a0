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
    yield from _keys(report)
    yield from _beside(report)
    yield from _extremes(report)
    yield from _curve(report)
    yield ""
    yield Text(f"KL {scientific(logits.kl)}, argmax agreement {100 * logits.argmax_agreement:.2f} %")
    if report.text is not None:
        yield Text(plain(_read(report)))
    if report.not_finite is not None:
        yield Text(plain(f"Not finite: {describe(report.not_finite)}"), style="bold red")
    if report.saturated is not None:
        yield Text(plain(f"Saturated: {describe(report.saturated)}"), style="yellow")
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
    choices = routing.tokens * len(routing.layers)
    title = f"Experts ({how}): {routing.flips:,} of {choices:,} choices were others"
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


def _beside(report: AlignReport) -> Iterator[RenderableType]:
    """What lies beside and is not judged: what quantising costs, and a plain run of ours."""
    named = [(name, side) for name, side in (("cost", report.cost), ("baseline", report.baseline)) if side is not None]
    sides = [side for _, side in named]
    if not sides:
        return
    yield ""
    columns = ("layer", *(f"{name}\n{what}" for name, _ in named for what in ("max rel", "rms rel")))
    names = [*(layer.name for layer in report.layers), "logits"]
    parts = [[*side.layers, side.logits] for side in sides]
    rows = [
        (name, *(cell for column in parts for cell in (scientific(column[i].max_rel), scientific(column[i].rms_rel))))
        for i, name in enumerate(names)
    ]
    yield table("Beside, not judged", columns, rows)
    for name, side in named:
        read = "" if side.perplexity is None else f", perplexity {side.perplexity:.4f}"
        logits = side.logits
        agree = f"KL {scientific(logits.kl)}, argmax agreement {100 * logits.argmax_agreement:.2f} %"
        yield Text(plain(f"{name.capitalize()}: {side.of}, {agree}{read}; against {side.against}"))


def _read(report: AlignReport) -> str:
    text = report.text
    assert text is not None
    ours, theirs = (
        "not finite" if value is None else f"{value:.4f}" for value in (text.perplexity, text.reference_perplexity)
    )
    return (
        f"Perplexity {ours}, reference {theirs}, over {text.tokens:,} tokens in {text.windows:,} windows of "
        f"{text.window:,}, one every {text.stride:,}"
    )


def _extremes(report: AlignReport) -> Iterator[RenderableType]:
    if not report.extremes:
        return
    yield ""
    rows = [
        (case.name, f"{case.positions:,}", scientific(case.logits.max_rel), scientific(case.logits.rms_rel))
        + (f"{100 * case.logits.argmax_agreement:.1f} %", case.first_drift or case.verdict)
        for case in report.extremes
    ]
    columns = ("case", "positions", "logits\nmax rel", "logits\nrms rel", "argmax", "<verdict")
    yield table("Extreme inputs, each by itself", columns, rows)
    for case in report.extremes:
        if case.not_finite is not None:
            yield Text(plain(f"{case.name}: {describe(case.not_finite)}"), style="bold red")


BAR = 16  # characters of the longest bar


def _curve(report: AlignReport) -> Iterator[RenderableType]:
    """Error by position as bars, as long as the root mean square."""
    if not report.curve:
        return
    yield ""
    longest = max((bucket.rms_rel or 0.0 for bucket in report.curve), default=0.0) or 1.0
    measured = any(bucket.noise_rms_rel is not None for bucket in report.curve)
    rows = [
        (f"{bucket.start:,}-{bucket.stop - 1:,}", scientific(bucket.max_rel), scientific(bucket.rms_rel))
        + ((scientific(bucket.noise_rms_rel),) if measured else ())
        + (scientific(bucket.kl), f"{100 * bucket.argmax_agreement:.1f} %", _bar(bucket.rms_rel, longest))
        for bucket in report.curve
    ]
    noise = ("rounding's\nrms",) if measured else ()
    columns = ("positions", "max rel", "rms rel", *noise, "KL", "argmax", "|rms rel")
    yield table("Drift by position (logits)", columns, rows)


def _bar(value: float | None, longest: float) -> str:
    return "?" if value is None else "\u2588" * max(1, round(BAR * value / longest))


def _keys(report: AlignReport) -> Iterator[RenderableType]:
    """What indexers chose, where the reference was told to attend to the same."""
    if not report.keys or report.routing is None or not report.routing.forced:
        return
    yield ""
    rows = [
        (part.name, "-" if part.max_abs is None else f"{part.max_abs:.0f}", scientific(part.max_rel))
        + (scientific(part.rms_rel), "-" if part.noise_rms_rel is None else scientific(part.noise_rms_rel))
        for part in report.keys
    ]
    columns = ("indexer", "keys of\na token", "share\nmax", "share\nrms", "rounding's\nrms")
    yield table("Keys chosen otherwise by the reference", columns, rows)
