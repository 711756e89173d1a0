"""The other reports as text on a terminal: limits, cards beside each other, models, one card in full."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from .catalogue import CardDetail, CardsReport, FactsPart, ModelsReport
from .terminal import NONE, bullets, digits, plain, table

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
    rows = [
        (
            card.name,
            card.cores,
            digits(card.clock_hz / 1e9),
            _tera(card.peak_ops_per_s.get("bf16")),
            _tera(card.peak_ops_per_s.get("int8")),
            f"{card.hbm_capacity_bytes / 2**30:.0f}",
            _tera(card.hbm_bandwidth_bytes_per_s),
            f"{card.link_ports} x {digits(card.link_bandwidth_bytes_per_s / 1e9)}",
            f"{card.node_cards}",
        )
        for card in report.cards
    ]
    columns = ("card", "cores", "GHz", "bf16\nTOPS", "int8\nTOPS", "HBM\nGiB", "HBM\nTB/s", "links\nGB/s", "a node")
    yield table("Cards", columns, rows)
    yield ""
    said = [f"{c.name}: {c.assumed_numbers} of {c.numbers} numbers are assumed" for c in report.cards]
    yield from bullets("What they rest on (`siltwin cards NAME` shows every number and its source)", said)


def _tera(value: int | None) -> str:
    return NONE if value is None else digits(value / 1e12)


def _card_parts(detail: CardDetail) -> Iterator[RenderableType]:
    yield Text(plain(f"{detail.summary.name}: {detail.summary.description}"), style="bold")
    yield Text("Any value may be changed for a run: --set PATH=VALUE", style="dim")
    yield ""
    rows = [
        (path, _value(value), evidence.evidence if evidence else NONE, evidence.source if evidence else "")
        for path, value, evidence in detail.rows()
    ]
    yield table("Every number and what it rests on", ("|path", "<value", "|evidence", "<source"), rows)


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
