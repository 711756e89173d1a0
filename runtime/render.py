"""A run's report as text on a terminal: what the model said, then how long it took, what held it and what it needed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from .render_breakdown import breakdown_parts, shares
from .render_energy import energy_parts
from .render_experts import expert_lines
from .render_oom import oom_parts
from .report import AlertReport, CardReport, KvUse, LatentReport, PassReport, Report, RequestReport
from .report_document import JobDocument
from .terminal import (
    NONE,
    bullets,
    byte_unit,
    digits,
    duration,
    in_unit,
    number,
    percent,
    plain,
    ranges,
    seconds,
    size,
    table,
)

MOST_TAG_COLUMNS = 7
LEAST_TAG_SHARE = 1e-4  # of all bytes; smaller tags are shown together
MOST_REQUESTS_LISTED = 16
MOST_ASSUMED_LISTED = 6
MOST_LINKS_LISTED = 5
MOST_NAMES_LISTED = 4
MOST_KINDS_LISTED = 8
SHORT_TAGS = {"activation": "activ.", "communication": "comm.", "workspace": "work"}


def print_report(report: Report, console: Console) -> None:
    """Write a whole report: generated text, what is not modelled, tables, warnings and what the figures are worth."""
    for part in report_parts(report):
        console.print(part, soft_wrap=False)


def report_parts(report: Report) -> Iterator[RenderableType]:
    """The report from top to bottom."""
    yield from generated_text(report)
    yield headline(report)
    yield from bullets("Not modelled", report.not_modelled, "dim")
    yield from bullets("Passes over the programs of a step", [_pass_line(item) for item in report.passes])
    yield from bullets(
        "Latent attention, sequences of steps by the order of its products",
        [_latent_line(item) for item in report.latent_attention],
    )
    if report.oom:
        yield ""
        yield from oom_parts(report.oom)
    if report.steps:  # else memory ran out before time began
        yield from _tables(report, (_figures, _requests, _phases))
        if not report.payload:
            yield from breakdown_parts(report.phases)
        yield from _tables(report, (_stages, _units, _communication, _busiest_links))
    if report.energy is not None:
        yield from energy_parts(report.energy)
    if report.expert_loads is not None:
        yield ""
        yield from expert_lines(report.expert_loads)
    if report.cards:
        yield ""
        yield memory_table("Memory at the peak", report.cards)
        yield Text(_largest_peak(report), "dim")
    if report.kv:
        yield ""
        yield kv_table(report.kv)
    yield from bullets("Alerts", [_alert_line(item) for item in report.alerts])
    yield from _closing(report)


def _alert_line(alert: AlertReport) -> str:
    """Whether a threshold was crossed, by whom first, and when."""
    shown = (lambda share: percent(share, 1)) if alert.name == "memory" else seconds
    if not alert.crossed:
        return f"{alert.name}: never above {shown(alert.limit)} (at most {shown(alert.most)})"
    first = f"card {alert.card}" if alert.card is not None else f"request {alert.request}"
    when = "as the job was loaded or began" if alert.step is None else f"in step {alert.step}"
    many = f"{alert.crossed:,} {'cards' if alert.card is not None else 'requests'} in all"
    return (
        f"{alert.name}: ABOVE {shown(alert.limit)}, {first} first, {when}, at {duration(alert.time_ps)}; {many}, "
        f"at most {shown(alert.most)}"
    )


def _tables(report: Report, tables: Sequence[Callable[[Report], Group | None]]) -> Iterator[RenderableType]:
    """Those of some tables for which the report has anything, with a line between them."""
    for part in (made(report) for made in tables):
        if part is not None:
            yield ""
            yield part


def _pass_line(item: PassReport) -> str:
    more = f"{abs(item.launches):,} {'more' if item.launches > 0 else 'fewer'} launches"
    into = ", ".join(item.into) if len(item.into) <= MOST_KINDS_LISTED else f"{len(item.into)} kinds of instruction"
    return f"{item.name}: {item.places:,} places, into {into}; {more}"


def _latent_line(item: LatentReport) -> str:
    """Which order of products a phase took for how many sequences."""
    pieces = f" in {item.pieces:,} pieces of {item.piece_tokens:,} tokens" if item.pieces > 1 else " whole"
    taken = [f"{item.expanded:,} expanded{pieces}"] * bool(item.expanded)
    taken += [f"{item.absorbed:,} absorbed"] * bool(item.absorbed)
    return f"{item.kind}: {', '.join(taken)}; workspace {size(item.workspace_bytes)}"


def generated_text(report: Report) -> Iterator[Text]:
    """What the model wrote, first of all; numbered where there are several requests."""
    texts = [(index, request.text) for index, request in enumerate(report.requests) if request.text]
    for index, text in texts:
        if len(texts) > 1:
            yield Text(f"[{index}]", style="bold")
        yield Text(plain(text))
    if texts:
        yield Text("")


def headline(report: Report) -> Text:
    """Which model ran on what."""
    return job_line(report) + Text(f"; engine {report.engine}, payload {'on' if report.payload else 'off'}", "dim")


def job_line(report: JobDocument) -> Text:
    """The model, its dtypes, the cards and the layout of any report that has them."""
    model, layout, cluster = report.model, report.layout, report.cluster
    degrees = " ".join(
        f"{axis}={getattr(layout, axis)}" for axis in ("tp", "pp", "dp", "cp", "ep") if getattr(layout, axis) > 1
    )
    unused = f", {cluster.cards_unused} unused" if cluster.cards_unused else ""
    kv = "" if model.kv_dtype == model.dtype else f", KV {model.kv_dtype}"
    kv += ", ideal KV pages" if model.kv_pages == "ideal" else ""
    kv += f", {model.kv_policy} KV" if model.kv_policy != "paged" else ""
    return Text(plain(f"{model.name} ({model.dtype}{kv})"), "bold") + Text(
        plain(
            f" on {layout.cards} x {report.card.name}{_own_numbers(report)}{f' ({degrees})' if degrees else ''}, "
            f"{cluster.name} ({cluster.kind}{unused}{_placed(cluster.placement)})"
        )
    )


def _placed(placement: tuple[int, ...]) -> str:
    """Which cards were taken, where those are not simply the first ones in order."""
    return "" if placement == tuple(range(len(placement))) else f", ranks in order on cards {ranges(placement)}"


def _own_numbers(report: JobDocument) -> str:
    """What the user changed of the card: the figures are no longer those of the one it is named after."""
    own = report.card.set_by_user
    return f" with {', '.join(f'{path}={value}' for path, value in own.items())} (set by the user)" if own else ""


def _figures(report: Report) -> Group:
    totals = report.totals
    several = len(report.requests) > 1
    rows = [
        ("time to first token" + (", largest" if several else ""), seconds(totals.ttft_max_s), "ttft_s"),
        ("time to first token, mean", seconds(totals.ttft_mean_s) if several else None, "ttft_s"),
        ("time per output token" + (", mean" if several else ""), seconds(totals.tpot_mean_s), "tpot_s"),
        ("output tokens/s", number(totals.output_tokens_per_s), "output_tokens_per_s"),
        ("prompt tokens/s", number(totals.prompt_tokens_per_s), "prompt_tokens_per_s"),
        ("elapsed", duration(totals.elapsed_ps), "elapsed_ps"),
        ("cycles", f"{totals.cycles:,}", "cycles"),
        ("memory peak of a card", size(max((c.peak_bytes for c in report.cards), default=0)), "peak_bytes"),
    ]
    shown = [(name, value, _mark(report, figure)) for name, value, figure in rows if value is not None]
    return table("Simulated", ("figure", "value", "<weakest evidence"), shown)


def _mark(report: Report, figure: str) -> str:
    said = report.evidence_for(figure)
    if said is None:
        return NONE
    own = ", set by the user in part" if said.set_by_user else ""
    return said.weakest + own + (", outside what was calibrated (!)" if said.extrapolated else "")


def _requests(report: Report) -> Group | None:
    requests = report.requests
    if len(requests) < 2:
        return None
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        alike[_request_cells(request)].append(index)
    shown = list(alike.items())[:MOST_REQUESTS_LISTED]
    rows = [(ranges(indices), *cells) for cells, indices in shown]
    if len(alike) > len(shown):
        rows.append((f"{len(requests) - sum(len(indices) for _, indices in shown)} more", *[""] * 6))
    return table("Requests", ("request", "cached", "prompt", "output", "TTFT", "TPOT", "<ended"), rows)


def _request_cells(request: RequestReport) -> tuple[object, ...]:
    ended = request.finish_reason or NONE
    times = seconds(request.ttft_s), seconds(request.tpot_s)
    return (request.cached_tokens, request.prompt_tokens, request.output_tokens, *times, ended)


def _phases(report: Report) -> Group | None:
    rows = [
        (kind, phase.steps, duration(phase.elapsed_ps), phase.bound or NONE, shares(phase.bounds))
        for kind, phase in report.phases.by_kind.items()
    ]
    return (
        table("What held each phase", ("phase", "steps", "time", "<bound", "<share of critical time"), rows)
        if rows
        else None
    )


def _stages(report: Report) -> Group | None:
    if len(report.stages) < 2:
        return None
    rows = [
        (item.stage, item.layers, duration(item.busy_ps), f"{100 * item.idle_share:.1f} %") for item in report.stages
    ]
    return table("Pipeline stages", ("stage", "layers", "busy", "idle"), rows)


def _units(report: Report) -> Group | None:
    names = list(dict.fromkeys(name for card in report.cards for name in card.units))
    if not names:
        return None
    rows = []
    for name in names:
        uses = [card.units[name] for card in report.cards if name in card.units]
        fractions = [use.utilisation for use in uses]
        cycles = [use.cycles for use in uses if use.cycles is not None]
        mean = sum(fractions) / len(fractions)
        spread = (f"{100 * share:.1f} %" for share in (mean, min(fractions), max(fractions)))
        rows.append((name, *spread, duration(max(use.busy_ps for use in uses)), f"{max(cycles):,}" if cycles else NONE))
    return table("Utilisation of each unit", ("unit", "mean", "least", "most", "busy, most", "cycles, most"), rows)


def _communication(report: Report) -> Group | None:
    if not report.collectives:
        return None
    rows = [
        (item.axis, item.kind, f"{item.count:,}", size(item.bytes), duration(item.time_ps))
        for item in report.collectives
    ]
    kinds = Counter(item.axis for item in report.collectives)
    for axis in (axis for axis in report.axes if kinds[axis.axis] > 1):
        rows.append((axis.axis, "all of it", f"{axis.count:,}", size(axis.bytes), duration(axis.time_ps)))
    return table("Communication", ("axis", "<kind", "count", "bytes sent", "time, most"), rows)


def _busiest_links(report: Report) -> Group | None:
    """The links that were used most, alike ones in a row."""
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for link in sorted(report.links, key=lambda link: -(link.utilisation or 0)):
        share = NONE if link.utilisation is None else f"{100 * link.utilisation:.1f} %"
        speed = NONE if link.bandwidth_bytes_per_s is None else f"{link.bandwidth_bytes_per_s / 1e9:g} GB/s"
        alike[share, size(link.bytes), duration(link.busy_ps), speed].append(link.name)
    rows = [(_some(names), *cells) for cells, names in alike.items()][:MOST_LINKS_LISTED]
    if not rows:
        return None
    columns = ("directed link", "of its bandwidth", "bytes", "in use", "bandwidth")
    return table(f"Busiest of {sum(link.count for link in report.links)} links", columns, rows)


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES_LISTED
    return ", ".join(names[:MOST_NAMES_LISTED]) + (f" and {more} more" if more > 0 else "")


def _largest_peak(report: Report) -> str:
    """Which card's peak is the largest, and when it had it."""
    card = max(report.cards, key=lambda card: card.peak_bytes)
    during = [step for step in report.steps if step.start_ps <= card.peak_ps < step.end_ps]
    where = f"in step {during[0].index} ({during[0].kind})" if during else "outside of steps"
    return f"The largest is that of card {card.rank}, at {duration(card.peak_ps)}, {where}."


def memory_table(title: str, cards: Iterable[CardReport]) -> Group:
    """Bytes of each tag on every card at its peak; cards that are alike share a row."""
    cards = list(cards)
    total: Counter[str] = Counter()
    for card in cards:
        total.update(card.by_tag)
    least = sum(total.values()) * LEAST_TAG_SHARE
    shown = [tag for tag, num_bytes in total.most_common(MOST_TAG_COLUMNS) if num_bytes > least]
    tags, rest = shown, [tag for tag, num_bytes in total.items() if num_bytes and tag not in shown]
    unit = byte_unit(max((card.peak_bytes for card in cards), default=0))
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for card in cards:
        held = [card.by_tag.get(tag, 0) for tag in tags] + [sum(card.by_tag.get(tag, 0) for tag in rest)] * bool(rest)
        usable = card.capacity_bytes - card.reserved_bytes
        cells = (in_unit(card.peak_bytes, unit), percent(card.peak_bytes, usable), *(in_unit(h, unit) for h in held))
        alike[cells].append(card.rank)
    capacity = ", ".join(sorted({size(card.capacity_bytes) for card in cards}))
    reserved = ", ".join(sorted({size(card.reserved_bytes) for card in cards}))
    columns = ("card", "peak", "of usable", *(SHORT_TAGS.get(tag, tag) for tag in tags), *["other"] * bool(rest))
    rows = [(ranges(ranks), *cells) for cells, ranks in alike.items()]
    return table(f"{title}, {unit[0]} (capacity {capacity}, of it reserved {reserved})", columns, rows)


def kv_table(uses: Iterable[KvUse]) -> Group:
    """What the KV cache takes by each policy, on the card of which it takes most."""
    rows = [
        (
            use.policy,
            use.card,
            size(use.peak_bytes),
            size(use.waste_bytes),
            percent(use.waste_bytes, use.peak_bytes),
            size(use.mean_waste_bytes),
            f"{use.allocations:,}",
            "yes" if use.fits else "NO",
        )
        for use in uses
    ]
    columns = ("|policy", "card", "reserved", "unused", "share", "mean", "allocs", "fits")
    return table("The KV cache by each policy: reserved at the peak, unused then and on average", columns, rows)


def _closing(report: Report) -> Iterator[RenderableType]:
    if report.warnings:
        yield ""
        yield from bullets("Warnings", report.warnings, "yellow")
    shown = [item for item in report.evidence if report.steps or item.figure == "memory"]
    said = [f"{item.figure}: {item.weakest}{_listed(item.assumed)}" for item in shown]
    if said:
        yield ""
        yield from bullets("What the figures rest on (weakest evidence)", said)
    yield ""
    rate = report.host.output_tokens_per_s
    speed = f", {digits(rate)} output tokens/s of wall time" if rate is not None else ""
    yield Text(
        f"Emulated in {digits(report.host.wall_s)} s on this machine{speed}; siltwin {report.siltwin_version}.", "dim"
    )


def _listed(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    more = len(names) - MOST_ASSUMED_LISTED
    return f" ({', '.join(names[:MOST_ASSUMED_LISTED])}" + (f" and {more} more)" if more > 0 else ")")
