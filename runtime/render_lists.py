"""The other reports as text on a terminal: limits, cards beside each other, models, one card in full."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from ..emulator.calibrated import Calibration
from .catalogue import CardDetail, CardsReport, CardSummary, FactsPart, ModelsReport
from .terminal import NONE, bullets, plain, table

SKIPPED_SHOWN = 12  # tensors; the JSON has them all


def print_cards(report: CardsReport, console: Console) -> None:
    """Cards, a row each."""
    _print(console, _cards_parts(report))


def print_card(detail: CardDetail, console: Console) -> None:
    """Every number of one card, with what it rests on."""
    _print(console, _card_parts(detail))


def print_models(report: ModelsReport, console: Console) -> None:
    """Models, a row each; one alone in full."""
    alone = report.models[0] if len(report.models) == 1 else None
    _print(console, _model_parts(report) if alone and alone.facts else _models_parts(report))


def _print(console: Console, parts: Iterator[RenderableType]) -> None:
    for part in parts:
        console.print(part)


def _cards_parts(report: CardsReport) -> Iterator[RenderableType]:
    columns = ("|card", "cores", "GHz", "bf16\nTOPS", "fp8\nTOPS", "int8\nTOPS", "fp4\nTOPS", "TDP\nW")
    yield table("Cards", columns, [_compute_row(card) for card in report.cards])
    yield ""
    columns = ("|card", "L2\nMiB", "HBM\nGiB", "HBM\nTB/s", "ports", "link\nGB/s", "a node", "assumed")
    yield table("Their memory, links, and how many of their numbers are assumed", columns, [
        _memory_row(card) for card in report.cards
    ])  # fmt: skip
    yield ""
    yield Text("~ is assumed, all else from a data sheet; TOPS are dense; link is of all ports, one way.", style="dim")
    yield Text("`siltwin cards NAME` shows every number and its source.", style="dim")


def _figure(card: CardSummary, name: str, value: float | None, places: int = 0) -> str:
    """A figure of a card, marked where it is only assumed."""
    return NONE if value is None else f"{value:,.{places}f}" + ("~" if card.rests_on[name] == "assumed" else "")


def _compute_row(card: CardSummary) -> tuple[str, ...]:
    peaks = [(name, card.peak_ops_per_s.get(name)) for name in ("bf16", "fp8_e4m3", "int8", "mxfp4")]
    return (
        card.name,
        _figure(card, "cores", card.cores),
        _figure(card, "clock", card.clock_hz / 1e9, 2),
        *(_figure(card, name, None if peak is None else peak / 1e12) for name, peak in peaks),
        _figure(card, "tdp", card.tdp_w),
    )


def _memory_row(card: CardSummary) -> tuple[str, ...]:
    return (
        card.name,
        _figure(card, "l2", None if card.l2_capacity_bytes is None else card.l2_capacity_bytes / 2**20),
        _figure(card, "hbm_capacity", card.hbm_capacity_bytes / 2**30),
        _figure(card, "hbm_bandwidth", card.hbm_bandwidth_bytes_per_s / 1e12, 2),
        f"{card.link_ports}",
        _figure(card, "link", card.link_ports * card.link_bandwidth_bytes_per_s / 1e9),
        f"{card.node_cards}",
        f"{card.assumed_numbers} of {card.numbers}",
    )


def _card_parts(detail: CardDetail) -> Iterator[RenderableType]:
    yield Text(plain(f"{detail.summary.name}: {detail.summary.description}"), style="bold")
    yield Text("Any value may be changed for a run: --set PATH=VALUE", style="dim")
    yield ""
    rows = [
        (path, _value(value), evidence.evidence if evidence else NONE, evidence.source if evidence else "")
        for path, value, evidence in detail.rows()
        if path.partition(".")[0] != "calibration"
    ]
    yield table("Every number and what it rests on", ("|path", "<value", "|evidence", "<source"), rows)
    yield from bullets("Calibration", _calibrated(detail.card.calibration))


def _calibrated(calibration: Calibration | None) -> list[str]:
    """A line a kind: what was fitted, and how far it errs on rows that the fit did not see."""
    return [
        f"{kind}: {told.fit} fit of {told.rows:,} rows{f' of {told.library}' if told.library else ''}; errs "
        f"{told.usual.mean:.1%} on {told.usual.rows:,} usual rows not seen (median {told.usual.median:.1%}), "
        f"{told.errors.mean:.1%} on every row"
        for kind, told in (calibration.kinds.items() if calibration is not None else ())
    ]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_value(entry) for entry in value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _models_parts(report: ModelsReport) -> Iterator[RenderableType]:
    ready = [entry for entry in report.models if entry.facts]
    rows = [(entry.name, entry.family, *_sizes(entry.facts)) for entry in ready if entry.facts]
    yield table("Models that run", ("|name", "<family", "parameters", "layers", "KV B/token"), rows)
    shipped = ", ".join(entry.name for entry in ready if entry.has_weights)
    yield Text(f"With weights of their own: {shipped or NONE}; all others with seeded random ones.", style="dim")
    refused = [entry for entry in report.models if not entry.facts]
    if refused:
        yield ""
        why = [(entry.name, entry.family, _reason(entry.why_not or NONE)) for entry in refused]
        yield table("Known and refused", ("|name", "<family", "<why"), why)


def _reason(why_not: str) -> str:
    """A refusal without what the row and the table around it say already."""
    return why_not.partition(" is not supported: ")[2].partition("; known: ")[0] or why_not


def _sizes(facts: FactsPart) -> tuple[str, str, str]:
    return f"{facts.total_params:,}", f"{facts.num_layers}", f"{facts.kv_bytes_per_token:,}"


def _model_parts(report: ModelsReport) -> Iterator[RenderableType]:
    entry = report.models[0]
    assert entry.facts is not None
    yield Text(plain(entry.name), style="bold")
    facts = entry.facts.model_dump(exclude={"blocks"})
    rows: list[tuple[str, str]] = [(name, _value(value)) for name, value in facts.items()]
    yield table("Facts", ("fact", "<value"), rows + [("source", entry.source or NONE)])
    yield from bullets("Blocks", entry.facts.blocks)
    skipped = entry.skipped_tensors
    more = (f"and {len(skipped) - SKIPPED_SHOWN} more",) if len(skipped) > SKIPPED_SHOWN else ()
    yield from bullets("In its files, but no part of the model", (*skipped[:SKIPPED_SHOWN], *more))
