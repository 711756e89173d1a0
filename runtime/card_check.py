"""`siltwin card check`: a card or a card file, what is impossible or odd in it, as a report and as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rich.console import Console, RenderableType
from rich.text import Text

from ..emulator.card_check import Severity, check_card
from ..emulator.spec import load_card, read_card
from .report_base import Count, Part
from .report_document import Document
from .terminal import bullets, plain


class CardFinding(Part):
    """One thing that is wrong (error) or odd (warning) at a dotted path; `value` and `expected` in words."""

    severity: Severity
    path: str
    value: str
    expected: str
    why: str


class CardCheckReport(Document):
    """What was found in one card; `sound` where nothing is wrong, though something may be odd."""

    kind: Literal["card-check"] = "card-check"
    card: str
    description: str
    sound: bool
    errors: Count
    warnings: Count
    findings: tuple[CardFinding, ...]


def card_check(name_or_file: str) -> CardCheckReport:
    """Check a shipped card or a .yaml file; ConfigError, as `load_card`, for what is no card at all."""
    is_file = Path(name_or_file).suffix.lower() in {".yaml", ".yml"}
    card = read_card(name_or_file) if is_file else load_card(name_or_file)
    findings = tuple(CardFinding(**finding._asdict()) for finding in check_card(card))
    errors = sum(finding.severity == "error" for finding in findings)
    return CardCheckReport(
        card=card.name,
        description=card.description,
        sound=not errors,
        errors=errors,
        warnings=len(findings) - errors,
        findings=findings,
    )


def print_card_check(report: CardCheckReport, console: Console) -> None:
    """A row a finding, errors first, and what they come to."""
    for part in _parts(report):
        console.print(part)


def _parts(report: CardCheckReport) -> Iterator[RenderableType]:
    for title, severity in (("Errors", "error"), ("Warnings", "warning")):
        yield from bullets(title, [_line(found) for found in report.findings if found.severity == severity])
    counted = f"{report.errors} errors, {report.warnings} warnings"
    yield Text(plain(f"{report.card} is {'sound' if report.sound else 'not sound'}: {counted}"), style="bold")


def _line(found: CardFinding) -> str:
    return f"{found.path}: {found.value}; should be {found.expected}: {found.why}"
