"""Clusters as text on a terminal: the list of them, and one drawn with its links, cuts, diameter and evidence."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..terminal import NONE, bullets, duration, plain, table
from .draw import speed
from .show import ClusterDetail, ClustersReport, ClusterSummary


def print_clusters(report: ClustersReport, console: Console) -> None:
    """Every shipped cluster in a row."""
    rows = [
        (entry.name, entry.cards, entry.switches, entry.links, _kind(entry), entry.weakest_evidence, entry.description)
        for entry in report.clusters
    ]
    columns = ("|cluster", "cards", "switches", "links", "<kind", "<evidence", "<description")
    console.print(table("Clusters (`siltwin cluster NAME` draws one)", columns, rows))


def _kind(entry: ClusterSummary) -> str:
    return "; ".join(entry.levels) or entry.kind


def print_cluster(detail: ClusterDetail, console: Console) -> None:
    """One cluster: drawing, links by kind, cuts, diameter, routes, numbers and notes."""
    entry = detail.summary
    console.print(Text(plain(entry.name), "bold") + Text(plain(f"  {entry.description}")))
    console.print()
    for line in detail.drawing:
        console.print(Text(plain(line)), soft_wrap=True)
    console.print()
    rows = [
        (
            f"{kind.level} {kind.ends}".strip(),
            f"{kind.count:,}",
            speed(kind.bandwidth_bytes_per_s),
            duration(kind.latency_ps),
            kind.down or NONE,
        )
        for kind in detail.link_kinds
    ]
    console.print(table("Directed links", ("between", "count", "bandwidth", "latency", "down"), rows))
    console.print()
    console.print(table("What it amounts to", ("figure", "value", "<how"), _figures(detail)))
    if detail.routes:
        console.print()
        ways = [
            (f"{way.source} to {way.target}", duration(way.latency_ps), " > ".join(way.nodes)) for way in detail.routes
        ]
        console.print(table(f"Routes ({detail.routing})", ("cards", "latency", "<way"), ways))
    if detail.protocols or detail.choices:
        console.print()
        said = f"protocols {', '.join(detail.protocols) or NONE}; {detail.choices} rows of choices"
        console.print(Text(plain(f"Collectives: {said} (`siltwin fabric tune` makes them)")))
    console.print()
    numbers = [
        (number.path, f"{number.value:,}", number.evidence + _error(number.error), number.source)
        for number in detail.numbers
    ]
    console.print(table("Numbers", ("|number", "value", "<evidence", "<source"), numbers))
    for part in bullets("Not modelled, and notes", detail.notes, "dim"):
        console.print(part)


def _figures(detail: ClusterDetail) -> list[tuple[str, str, str]]:
    rows = [
        (
            f"bisection, {cut.halves}",
            speed(cut.bandwidth_bytes_per_s),
            "exact minimum cut by maximum flow, the narrower direction",
        )
        for cut in detail.bisections
    ]
    if not rows:
        rows = [("bisection", NONE, "the cards have no two equal halves")]
    return [
        *rows,
        ("diameter", f"{detail.diameter_hops} links", detail.diameter_method),
        ("longest route's latency", duration(detail.diameter_latency_ps), detail.diameter_method),
    ]


def _error(error: float | None) -> str:
    return f" (error {100 * error:.1f} %)" if error is not None else ""
