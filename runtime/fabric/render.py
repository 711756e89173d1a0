"""The bench and the choice table as text on a terminal: the columns that users of nccl-tests know."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ...interconnect.choices import ChoiceSpec
from ..terminal import NONE, bullets, duration, percent, plain, ranges, size, table
from .bench import BenchReport
from .emulate import Measured
from .tune import TuneReport


def print_bench(report: BenchReport, console: Console) -> None:
    """Write a whole bench: what ran where, the table, crossovers and the busiest link."""
    for part in bench_parts(report):
        console.print(part)


def bench_parts(report: BenchReport) -> Iterator[RenderableType]:
    """The bench from top to bottom."""
    cluster = report.cluster
    yield Text(plain(f"{report.collective.name} on {cluster.name}"), "bold") + Text(
        plain(f" ({cluster.kind}, {cluster.cards} cards), {len(report.group)} ranks {ranges(report.group)}")
    )
    yield from bullets("", (), "")
    yield Text(plain(f"size: {report.collective.size_means}; {report.dtype}; {report.ends}"), "dim")
    yield ""
    yield _table(report)
    yield from _crossovers(report)
    yield from _busiest(report)
    yield ""
    yield Text(f"Links: {cluster.weakest_evidence()} (weakest evidence). Every time is of an emulated program.", "dim")
    yield from bullets("Notes", cluster.notes, "dim")


def _table(report: BenchReport) -> Group:
    protocols = any(row.choice.protocol.name != "plain" for row in report.rows)
    columns = ("|size", "count", "time", "algbw", "busbw", "|algorithm", *["|protocol"] * protocols)
    rows = [
        (
            size(row.message.size_bytes),
            f"{row.message.count:,}",
            duration(row.time_ps),
            f"{row.algbw_bytes_per_s / 1e9:.2f}",
            f"{row.busbw_bytes_per_s / 1e9:.2f}",
            algorithm(row),
            *[row.choice.protocol.name] * protocols,
        )
        for row in report.rows
    ]
    return table("Emulated, bandwidths in GB/s", columns, rows)


def algorithm(row: Measured) -> str:
    """The algorithm with its options."""
    return f"{row.choice.algorithm} {row.choice.options}".strip()


def _crossovers(report: BenchReport) -> Iterator[RenderableType]:
    if not report.others:
        return
    yield ""
    yield Text("Fastest algorithm", "bold")
    if report.crossovers:
        for found in report.crossovers:
            yield Text(plain(f" {found.before} up to {size(found.below_bytes)}, then {found.to}"))
    else:
        rows = next(iter(report.others.values()))
        fastest = min(report.others, key=lambda name: report.others[name][-1].time_ps)
        sizes = f"{size(rows[0].message.size_bytes)} to {size(rows[-1].message.size_bytes)}"
        yield Text(plain(f" {fastest} at every size from {sizes}"))
    yield Text(plain(f" compared: {', '.join(report.others)}"), "dim")
    if report.left_out:
        yield Text(plain(f" too large to compare: {', '.join(report.left_out)}"), "dim")


def _busiest(report: BenchReport) -> Iterator[RenderableType]:
    last = report.rows[-1] if report.rows else None
    yield ""
    if last is None or last.busiest is None:
        yield Text("No byte crosses a link.")
        return
    load = last.busiest
    alike = sum(other.bytes == load.bytes for other in last.loads)
    yield Text("Busiest link", "bold") + Text(
        plain(
            f" at {size(last.message.size_bytes)}: {load.ends}, {size(load.bytes)} at "
            f"{load.bandwidth_bytes_per_s / 1e9:g} GB/s, in use {percent(load.utilisation, 1)} of the time"
            + (f" ({alike} links bear as much)" if alike > 1 else "")
        )
    )


def print_tune(report: TuneReport, console: Console) -> None:
    """Write the choice table that was found, and what each row was compared with."""
    console.print(Text(plain(f"Choices for {report.cluster.name}"), "bold") + Text(plain(f"; {report.ends}")))
    protocols = any(row.protocol for row in report.choices)
    rows = [
        (
            row.collective,
            _group(row),
            "any" if row.up_to_bytes is None else f"up to {size(row.up_to_bytes)}",
            row.algorithm,
            *[row.protocol or NONE] * protocols,
        )
        for row in report.choices
    ]
    columns = ("|collective", "|ranks", "|size", "|algorithm", *["|protocol"] * protocols)
    console.print(table("", columns, rows))
    console.print(Text(plain(f"{report.emulated} messages emulated; {report.cases} cases."), "dim"))
    if report.written_to:
        console.print(Text(plain(f"Written to {report.written_to}; `--cluster {report.written_to}` uses it."), "dim"))


def _group(row: ChoiceSpec) -> str:
    low, high = row.from_ranks, row.up_to_ranks
    ranks = f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
    if row.within or row.beyond:
        return f"{ranks} {'within' if row.within else 'beyond'} {row.within or row.beyond}"
    return ranks
